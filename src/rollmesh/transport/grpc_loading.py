"""gRPC: the import of grpc (layer 5). Our modules take it from here.

grpc 1.7x and later move all I/O to threads of their own ("event engine"), which hand every message
over: a small round trip takes twice the processor time of the older way, in which the thread that
waits for a message also reads it. Both ways are part of grpc; which one is taken is fixed when it
is loaded, by a variable of the environment. We choose the older one where the choice is still ours:
not where grpc is loaded already, the variable is set, or grpc is newer than what was measured.
"""

from __future__ import annotations

import os
import sys
from importlib import metadata

_VARIABLE = "GRPC_EXPERIMENTS"
_OLDER_WAY = "-event_engine_client,-event_engine_listener"
_LATEST = (1, 85)
"""The newest grpcio that was measured."""


def chooses(version: str, *, is_loaded: bool, is_set: bool) -> bool:
    """Return whether the choice is ours, and the older way is known to be there."""
    if is_loaded or is_set:
        return False
    numbers = tuple([int(part) for part in version.split(".")[:2] if part.isdigit()])
    return len(numbers) == len(_LATEST) and numbers <= _LATEST


def _version() -> str:
    try:
        return metadata.version("grpcio")
    except metadata.PackageNotFoundError:
        return ""


IS_OLDER_WAY = chooses(_version(), is_loaded="grpc" in sys.modules, is_set=_VARIABLE in os.environ)
"""Whether the thread that waits for a message also reads it."""

if IS_OLDER_WAY:
    os.environ[_VARIABLE] = _OLDER_WAY
    try:
        import grpc
    finally:
        del os.environ[_VARIABLE]
else:
    import grpc

__all__ = ["IS_OLDER_WAY", "chooses", "grpc"]
