"""Endpoints: local envs and models as ports (layer 6)."""
