"""Local envs as ports: scalar, vector, lanes, each built and used where rule R49 says (layer 6)."""
