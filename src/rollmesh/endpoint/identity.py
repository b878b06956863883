"""What our ends of a connection say of themselves in HELLO and WELCOME (layer 6)."""

from __future__ import annotations

import os
import platform

import rollmesh


def who_we_are(component: str) -> dict[str, str]:
    """Return the facts of this process, for logs and reports of the other end.

    Args:
        component: `rollmesh-client`, `rollmesh-env` or `rollmesh-model`.
    """
    return {
        "component": component,
        "package_version": rollmesh.__version__,
        "language": "python",
        "language_version": platform.python_version(),
        "host": platform.node(),
        "process": str(os.getpid()),
    }
