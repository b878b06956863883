"""Servers: sessions, places, deadlines, lifecycle of a served env or model (layer 6)."""
