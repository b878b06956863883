"""TensorBoard as a hooks object, by tensorboardX: no torch, no TensorFlow (extra `tensorboard`)."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from rollmesh.observers.observer import library
from rollmesh.observers.tracker import Tracker, named

if TYPE_CHECKING:
    from collections.abc import Mapping


class TensorBoardHooks(Tracker):
    """Writes episodes and a summary as TensorBoard event files.

    Raises:
        InvalidSpec: tensorboardX is not installed.
    """

    def __init__(self, *, folder: str | os.PathLike[str] = "tensorboard") -> None:
        """Begin an event file.

        Args:
            folder: Where it goes; `tensorboard --logdir` of it shows it.
        """
        writer = library("tensorboardX", "tensorboard").SummaryWriter(os.fspath(folder))
        self._writer: Any = writer
        super().__init__()

    def log_start(self, facts: Mapping[str, str]) -> None:
        """Write what runs as text."""
        self._writer.add_text("rollmesh/run", json.dumps(dict(facts)), 0)

    def log_episode(self, place: int, values: Mapping[str, float]) -> None:
        """Write an episode's scalars."""
        for name, value in named(values, "episode").items():
            self._writer.add_scalar(name, value, place)

    def log_summary(self, values: Mapping[str, float]) -> None:
        """Write the final numbers."""
        for name, value in named(values, "result").items():
            self._writer.add_scalar(name, value, 0)

    def finish(self) -> None:
        """Write out and close the file."""
        self._writer.close()
