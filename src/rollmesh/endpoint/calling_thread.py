"""A thread of one's own that is somebody else's: calls run where `run` is called (layer 6)."""

from __future__ import annotations

import threading

from rollmesh.endpoint.own_thread import OwnThread


class CallingThread(OwnThread):
    """Runs submitted calls on the thread that calls `run`; else as `OwnThread`."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._thread = threading.current_thread()

    def run(self) -> None:
        """Run what is submitted until `stop`; on the thread that made this object."""
        self._work()
