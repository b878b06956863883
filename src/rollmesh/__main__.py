"""`python -m rollmesh`: the command line, for where its script is not on PATH (layer 9)."""

from __future__ import annotations

import sys

from rollmesh.cli import main

if __name__ == "__main__":
    sys.exit(main())
