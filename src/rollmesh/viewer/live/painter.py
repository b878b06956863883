"""The thread that shows a run: reads the tally at most four times a second and paints a screen.

What a screen raises, or a terminal that takes no more, ends the showing and never the run.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollmesh.viewer.live.progress import News, Progress
    from rollmesh.viewer.live.tally import Tally

_logger = logging.getLogger(__name__)

PERIOD_S = 0.25
PATIENCE_S = 2.0
"""How long the end of a run waits for a screen that hangs."""


class Screen(Protocol):
    """What shows a run; called from one thread at a time."""

    def open(self) -> None:
        """Take the terminal."""
        ...

    def paint(self, progress: Progress, news: Sequence[News]) -> None:
        """Show the state of the run and what is new."""
        ...

    def close(self, progress: Progress, news: Sequence[News]) -> None:
        """Show the last state, and leave the terminal as it was."""
        ...


class Painter:
    """Paints screens from a daemon thread until stopped.

    Guarantees: what a screen raises is logged once and that screen is painted no more; `stop`
    returns within about 2 s whatever the screens do; the thread never keeps the process alive.
    """

    def __init__(self, tally: Tally, screens: Sequence[Screen], period_s: float = PERIOD_S) -> None:
        self._tally = tally
        self._screens = list(screens)
        self._period_s = period_s
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rollmesh-painter", daemon=True)

    def start(self) -> None:
        """Open the screens and begin to paint."""
        self._each(lambda screen: screen.open())
        self._thread.start()

    def stop(self) -> bool:
        """Show what is left and take the screens away; may be called again, and by a handler.

        Returns:
            Whether the screens were closed in time.
        """
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(PATIENCE_S)
        return not self._thread.is_alive()

    def note(self, text: str) -> None:
        """Show a line for people."""
        self._tally.note(text)

    def _run(self) -> None:
        while not self._stopping.wait(self._period_s):
            progress, news = self._tally.read()
            self._each(lambda screen, p=progress, n=news: screen.paint(p, n))
        progress, news = self._tally.read()
        self._each(lambda screen: screen.close(progress, news))

    def _each(self, call: _Call) -> None:
        for screen in tuple(self._screens):
            try:
                call(screen)
            except (Exception, SystemExit):  # the run matters, what shows it does not
                self._screens.remove(screen)
                _logger.warning(
                    "viewer.failed screen=%s (the run goes on, unseen)",
                    type(screen).__name__,
                    exc_info=True,
                )


class _Call(Protocol):
    def __call__(self, screen: Screen, /) -> None: ...
