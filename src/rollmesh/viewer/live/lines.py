"""Plain lines for logs and pipes: one every ten seconds and one at each error, no escape codes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollmesh.viewer.live.progress import clean, clock_text, first_line, rate_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rollmesh.viewer.live.progress import News, Progress, Worker

INTERVAL_S = 10.0
_MOST_ERRORS = 20
"""Error lines between two progress lines; what is more is counted."""


class PlainLines:
    """A line at the first episode, now and then, at each error and lost worker, and at the end."""

    def __init__(self, write: Callable[[str], None], interval_s: float = INTERVAL_S) -> None:
        """Begin with nothing written.

        Args:
            write: Writes a line; may raise, which ends the showing.
            interval_s: Seconds between two progress lines.
        """
        self._write = write
        self._interval_s = interval_s
        self._written_s: float | None = None
        self._written: tuple[int, int] | None = None
        self._told = 0
        self._untold = 0

    def open(self) -> None:
        """Do nothing: lines need no room of their own."""

    def paint(self, progress: Progress, news: Sequence[News]) -> None:
        """Write what is due."""
        for one in news:
            self._tell(one)
        fresh = self._written_s is None and progress.done > progress.resumed
        due_s = (self._written_s or 0.0) + self._interval_s
        if fresh or progress.elapsed_s >= due_s or progress.done == progress.planned:
            self._progress(progress)

    def close(self, progress: Progress, news: Sequence[News]) -> None:
        """Write what is new and where the run ended."""
        for one in news:
            self._tell(one)
        if progress.done:
            self._progress(progress)

    def _progress(self, progress: Progress) -> None:
        state = (progress.done, progress.planned)
        if self._written == state and progress.done == progress.planned:
            return  # the last line stands
        if self._untold:
            self._write(f"{self._untold} more episodes errored")
        self._told = self._untold = 0
        self._written_s = progress.elapsed_s
        self._written = state
        self._write(progress_line(progress))

    def _tell(self, one: News) -> None:
        if one.episode is not None and one.episode.error is not None and not one.is_stored:
            if self._told >= _MOST_ERRORS:
                self._untold += 1
                return
            self._told += 1
            self._write(f"episode {one.episode.index} errored: {first_line(one.episode.error)}")
        elif one.worker is not None:
            if one.worker.state == "lost":
                self._write(worker_line(one.worker))
        elif one.note is not None and one.session is None:
            self._write("\n".join(clean(line) for line in one.note.splitlines()))


def progress_line(progress: Progress) -> str:
    """Return the state of a run in one line."""
    parts = [f"{progress.done}/{progress.planned} episodes"]
    if progress.mean_return is not None:
        parts.append(f"mean return {progress.mean_return:,.2f}")
    rate, interval = progress.success_rate, progress.success_interval
    if rate is not None and interval is not None:
        parts.append(f"success {rate:.3f} [{interval.low:.3f}, {interval.high:.3f}]")
    if progress.errored:
        parts.append(f"{progress.errored} errored")
    if progress.retries:
        parts.append(f"{progress.retries} tried again")
    if progress.episodes_per_min is not None and progress.steps_per_s is not None:
        parts.append(f"{rate_text(progress.episodes_per_min)} episodes/min")
        parts.append(f"{progress.steps_per_s:,.0f} steps/s")
    if progress.done < progress.planned:
        parts.append(f"after {clock_text(progress.elapsed_s)}")
        if progress.eta_s is not None:
            parts.append(f"{clock_text(progress.eta_s)} left")
    return "  ".join(parts)


def worker_line(worker: Worker) -> str:
    """Return a worker's state in one line."""
    process = f" (process {worker.pid})" if worker.pid is not None else ""
    detail = f": {first_line(worker.detail)}" if worker.detail else ""
    return f"worker {worker.number}{process} {worker.state}{detail}"
