"""The route runtime: spec, episode loop, engines, hooks, telemetry (layer 3)."""
