"""Watching a run: one object that counts it and shows it, in the way that suits where it goes."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, TextIO

from rollmesh.viewer.live.json_lines import JsonLines
from rollmesh.viewer.live.lines import PlainLines
from rollmesh.viewer.live.painter import Painter, Screen
from rollmesh.viewer.live.tally import Tally

if TYPE_CHECKING:
    from collections.abc import Callable, Generator


@contextlib.contextmanager
def watching(
    tally: Tally,
    *,
    notes: TextIO,
    json_lines: Callable[[str], None] | None = None,
    is_stored: bool = False,
) -> Generator[Painter]:
    """Show a run while the context lasts.

    Args:
        tally: Counts the run; give it to the run as a hooks object.
        notes: Where people look: a board if it is a terminal, else plain lines.
        json_lines: Takes one JSON object a line, for machines; None for none.
        is_stored: Whether a journal tells the tally which episodes are on disk.
    """
    screens: list[Screen] = [screen_for(notes)]
    if json_lines is not None:
        screens.append(JsonLines(json_lines, is_stored=is_stored))
    painter = Painter(tally, screens)
    painter.start()
    try:
        yield painter
    finally:
        painter.stop()


def screen_for(notes: TextIO) -> Screen:
    """Return a board if the stream is a terminal that can be drawn on, else plain lines."""
    if notes.isatty() and os.environ.get("TERM", "dumb") != "dumb":
        from rollmesh.viewer.live.board import Board

        return Board(notes)
    return PlainLines(_line_writer(notes))


def _line_writer(stream: TextIO) -> Callable[[str], None]:
    def write(line: str) -> None:
        stream.write(line + "\n")
        stream.flush()

    return write
