"""Weights & Biases as a hooks object (extra `wandb`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollmesh.observers.observer import library
from rollmesh.observers.tracker import Tracker, named

if TYPE_CHECKING:
    from collections.abc import Mapping


class WandbHooks(Tracker):
    """Logs episodes and a summary to a Weights & Biases run.

    A run that is given is used and left open; else one is begun and finished here.

    Raises:
        InvalidSpec: wandb is not installed.
    """

    def __init__(self, *, run: Any = None, **init: Any) -> None:
        """Begin a run, or use one.

        Args:
            run: A run of yours; None begins one.
            init: Keyword arguments for `wandb.init`, such as `project`, `name` or `mode`.
        """
        self._owns_run = run is None
        # What a run prints is its own; wandb would put itself between it and the terminal.
        init.setdefault("settings", {"console": "off"})
        self._theirs: Any = library("wandb", "wandb").init(**init) if run is None else run
        super().__init__()

    def log_start(self, facts: Mapping[str, str]) -> None:
        """Put what runs into the config."""
        self._theirs.config.update({"rollmesh": dict(facts)}, allow_val_change=True)

    def log_episode(self, place: int, values: Mapping[str, float]) -> None:
        """Log an episode with its place as the x axis."""
        self._theirs.log({"rollmesh/episode/place": place, **named(values, "episode")})

    def log_summary(self, values: Mapping[str, float]) -> None:
        """Write the final numbers into the summary."""
        self._theirs.summary.update(named(values, "result"))

    def finish(self) -> None:
        """Finish the run if it was begun here."""
        if self._owns_run:
            self._theirs.finish()
