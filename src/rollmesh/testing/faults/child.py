"""What runs in the process of a `Child`: `python -m rollmesh.testing.faults.child …` (layer 7).

Arguments: the target (`module:function`), its keyword arguments as JSON, the descriptor to tell
lines on, and the descriptor whose end says that the parent is gone. Imports nothing but the
standard library before the target does.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import threading

LINE_BYTES = 4096
"""Longest line told; the pipe takes such a line in one piece."""


def main(arguments: list[str]) -> int:
    """Call the target with a function that tells a line to the parent; return the exit code."""
    target, text, tell_fd, lifeline = arguments
    _follow_parent(int(lifeline))
    module_name, _, name = target.partition(":")
    function = getattr(importlib.import_module(module_name), name)

    def tell(line: str = "ready") -> None:
        """Write one line to the parent."""
        data = " ".join(line.splitlines()).encode()[: LINE_BYTES - 1] + b"\n"
        with contextlib.suppress(BrokenPipeError):
            os.write(int(tell_fd), data)

    code = function(tell, **json.loads(text))
    return code if isinstance(code, int) else 0


def _follow_parent(lifeline: int) -> None:
    """End this process at once when its parent is gone, however that came."""

    def watch() -> None:
        with contextlib.suppress(OSError):
            while os.read(lifeline, 1):
                pass
        os._exit(70)

    threading.Thread(target=watch, name="lifeline", daemon=True).start()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
