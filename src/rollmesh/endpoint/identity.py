"""What our ends of a connection say of themselves in HELLO and WELCOME (layer 6)."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping

import rollmesh

PROCESSES_FACT = "processes"
"""What clients say in addition that ask several servers in turn: how many processes that makes."""
SERVER_FACT = "server"
"""What clients say in addition that were told of an address: the id of the server that did so."""
_MOST_DIGITS = 6


def processes_of(facts: Mapping[str, str]) -> int:
    """Return how many processes take turns with the other end; 2 where it does not say."""
    text = facts.get(PROCESSES_FACT, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS else 2


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
