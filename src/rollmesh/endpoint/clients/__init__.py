"""Clients: served envs and models as ports, and as Gymnasium envs (layer 6)."""
