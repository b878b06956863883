"""Seeing a run: `live` while it goes on, `report` as a page afterwards (layer 9).

Knows events, results and stored runs; never envs, models or how anything ran. Nothing in here
changes what a run comes to.
"""
