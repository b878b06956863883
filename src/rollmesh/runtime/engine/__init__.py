"""Engines: interpreters of the episode loop (layer 3)."""
