"""Says odd things about values once, not once a step (layer 6)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeAlias

_logger = logging.getLogger(__name__)

Report: TypeAlias = Callable[[str, str], None]
"""Takes a path (`info['frame']`) and what is odd there."""

_MOST_PATHS = 1024


def log_warning(path: str, detail: str) -> None:
    """Report to the module's logger."""
    _logger.warning("odd_value path=%s detail=%s", path, detail)


class OnceReporter:
    """Passes on the first report of every path and drops the rest.

    After 1024 paths nothing more is passed on, so that made-up info keys cannot fill the memory.
    """

    def __init__(self, report: Report | None = None) -> None:
        self._report = report or log_warning
        self._seen: set[str] = set()

    def __call__(self, path: str, detail: str) -> None:
        """Report `detail` about `path` unless that path was reported before."""
        if path in self._seen or len(self._seen) >= _MOST_PATHS:
            return
        self._seen.add(path)
        self._report(path, detail)
