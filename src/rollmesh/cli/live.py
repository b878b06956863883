"""Live progress of an evaluation: a bar on a terminal, plain lines elsewhere (layer 9).

A view is a hooks object that looks at episode-level events only, so that it costs nothing a step.
It also keeps what had finished, for a user who does not wait for the end.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Protocol

from rollmesh.results.result import EpisodeResult
from rollmesh.results.stats import mean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rollmesh.cli.output import Output
    from rollmesh.events import EpisodeCompleted, EpisodeErrored, Log

PLAIN_INTERVAL_S = 2.0
_TOLD_SOURCE = "evaluate"


class Display(Protocol):
    """What shows progress."""

    def show(self, done: int, text: str) -> None:
        """Show how many episodes ended and what they came to."""
        ...

    def note(self, text: str) -> None:
        """Show a line that stays."""
        ...

    def stop(self) -> None:
        """Show nothing more, and leave the terminal as it was."""
        ...


class View:
    """Follows a run as a hooks object, and shows it.

    Attributes:
        planned: Episodes asked for.
    """

    def __init__(self, planned: int, display: Display) -> None:
        self.planned = planned
        self._display = display
        self._lock = threading.Lock()
        self._episodes: list[EpisodeResult] = []
        self._returns: list[float] = []
        self._successes: list[bool] = []

    @property
    def episodes(self) -> tuple[EpisodeResult, ...]:
        """The episodes that ended so far, in plan order."""
        return tuple(sorted(self._episodes.copy(), key=lambda e: e.index))

    def episode_completed(self, event: EpisodeCompleted) -> None:
        """Count an episode that ended."""
        with self._lock:
            self._returns.append(event.total_reward)
            if event.success is not None:
                self._successes.append(event.success)
            self._episodes.append(
                EpisodeResult(
                    index=event.episode_index,
                    seed=event.seed,
                    env_index=event.env_index,
                    episode_id=event.episode_id,
                    steps=event.steps,
                    total_reward=event.total_reward,
                    terminated=event.terminated,
                    truncated=event.truncated,
                    success=event.success,
                    duration_s=event.duration_s,
                )
            )
            self._display.show(len(self._episodes), self._text())

    def episode_errored(self, event: EpisodeErrored) -> None:
        """Count an episode that was spoiled, and say why."""
        with self._lock:
            self._episodes.append(
                EpisodeResult(
                    index=event.episode_index,
                    seed=event.seed,
                    env_index=event.env_index,
                    episode_id=event.episode_id,
                    steps=event.steps,
                    total_reward=event.total_reward,
                    terminated=False,
                    truncated=False,
                    duration_s=event.duration_s,
                    error=event.error,
                )
            )
            first = event.error.strip().partition("\n")[0]
            self._display.note(f"episode {event.episode_index} errored: {first}")
            self._display.show(len(self._episodes), self._text())

    def log(self, event: Log) -> None:
        """Show what `evaluate` itself has to say."""
        if event.source == _TOLD_SOURCE:
            self._display.note(event.message)

    def _text(self) -> str:
        parts: list[str] = []
        average = mean(self._returns)
        if average is not None:
            parts.append(f"mean return {average:,.2f}")
        if self._successes:
            parts.append(f"success {sum(self._successes) / len(self._successes):.3f}")
        errors = len(self._episodes) - len(self._returns)
        if errors:
            parts.append(f"{errors} errored")
        return "  ".join(parts)


class PlainLines:
    """A line now and then, for logs and pipes: the first episode, the last, and one every 2 s."""

    def __init__(
        self,
        planned: int,
        write: Callable[[str], None],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._planned = planned
        self._write = write
        self._now_s = now_s
        self._shown_s: float | None = None

    def show(self, done: int, text: str) -> None:
        """Write a line if one is due."""
        now = self._now_s()
        due = self._shown_s is None or now - self._shown_s >= PLAIN_INTERVAL_S
        if due or done == self._planned:
            self._shown_s = now
            self._write(f"{done}/{self._planned} episodes  {text}".rstrip())

    def note(self, text: str) -> None:
        """Write a line."""
        self._write(text)

    def stop(self) -> None:
        """Do nothing: a line stays where it is."""


class Bar:
    """A progress bar on a terminal."""

    def __init__(self, planned: int, output: Output) -> None:
        from rich.console import Console  # a tenth of a second, paid only on a terminal
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
        )

        self._progress = Progress(
            TextColumn("episodes"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.description}"),
            console=Console(file=output.notes),
            redirect_stdout=False,
            redirect_stderr=False,
            transient=True,
        )
        self._task = self._progress.add_task("", total=planned)
        self._progress.start()

    def show(self, done: int, text: str) -> None:
        """Move the bar."""
        self._progress.update(self._task, completed=done, description=text)

    def note(self, text: str) -> None:
        """Write a line above the bar."""
        self._progress.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def stop(self) -> None:
        """Take the bar away."""
        self._progress.stop()


@contextlib.contextmanager
def display(planned: int, output: Output) -> Iterator[Display]:
    """Give a progress bar if the notes go to a terminal, else plain lines."""
    shown: Display = (
        Bar(planned, output) if output.notes.isatty() else PlainLines(planned, output.note)
    )
    try:
        yield shown
    finally:
        shown.stop()
