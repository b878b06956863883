"""Local policies as ports: callables, `Model` classes, files; and batching (layer 6)."""
