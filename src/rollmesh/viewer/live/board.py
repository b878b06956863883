"""The board on a terminal: where a run stands, drawn in place and taken away at its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, TextIO

from rollmesh.viewer.live.lines import worker_line
from rollmesh.viewer.live.progress import clean, clock_text, first_line, rate_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import Console, RenderableType
    from rich.text import Text

    from rollmesh.viewer.live.progress import News, Progress, TaskProgress

_MOST_TASKS = 8
_MOST_WORKERS = 64
_MOST_ERROR_LINES = 20
"""Error lines that scroll away above the board in one paint; what is more is counted."""
_STATES = {
    "starting": ("○", "yellow"),
    "ready": ("●", "green"),
    "lost": ("✕", "red"),
    "stopped": ("·", "dim"),
}


class Board:
    """Draws a run in place; lines for people scroll away above it."""

    def __init__(self, stream: TextIO, *, console: Console | None = None) -> None:
        """Prepare a board.

        Args:
            stream: The terminal.
            console: A console to draw on instead, for tests.
        """
        from rich.console import Console  # a tenth of a second, paid only on a terminal
        from rich.live import Live

        self._console = console or Console(file=stream)
        self._title = ""
        self._live = Live(
            console=self._console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def open(self) -> None:
        """Take the bottom of the terminal."""
        self._live.start()

    def paint(self, progress: Progress, news: Sequence[News]) -> None:
        """Write what is new above the board and draw the board anew."""
        self._scroll(news)
        self._live.update(render(progress, self._title), refresh=True)

    def close(self, progress: Progress, news: Sequence[News]) -> None:
        """Write what is new and take the board away."""
        del progress
        try:
            self._scroll(news)
        finally:
            self._live.stop()

    def _scroll(self, news: Sequence[News]) -> None:
        errors = 0
        for one in news:
            line: str | None = None
            if one.session is not None:
                self._title = clean(one.note or "") if one.session == "started" else self._title
            elif one.episode is not None and one.episode.error is not None and not one.is_stored:
                errors += 1
                if errors <= _MOST_ERROR_LINES:
                    error = first_line(one.episode.error)
                    line = f"episode {one.episode.index} errored: {error}"
            elif one.worker is not None and one.worker.state == "lost":
                line = worker_line(one.worker)
            elif one.note is not None:
                line = "\n".join(clean(part) for part in one.note.splitlines())
            if line is not None:
                self._print(line)
        if errors > _MOST_ERROR_LINES:
            self._print(f"{errors - _MOST_ERROR_LINES} more episodes errored")

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


def render(progress: Progress, title: str = "") -> RenderableType:
    """Return the board as something rich can draw."""
    from rich.console import Group

    parts: list[RenderableType] = [_bar(progress, title), _results(progress)]
    speed = _speed(progress)
    if speed.plain:
        parts.append(speed)
    if progress.phases:
        parts.append(_phases(progress))
    if progress.tasks:
        parts.append(_tasks(progress.tasks))
    if progress.workers:
        parts.append(_workers(progress))
    if progress.errors:
        parts.append(_errors(progress))
    return Group(*parts)


def _bar(progress: Progress, title: str) -> RenderableType:
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    times = clock_text(progress.elapsed_s)
    if progress.eta_s is not None and progress.done < progress.planned:
        times += f", {clock_text(progress.eta_s)} left"
    grid = Table.grid(padding=(0, 1), expand=False)
    for is_whole in (False, False, True, True):  # a narrow terminal cuts title and bar
        grid.add_column(no_wrap=is_whole)
    grid.add_row(
        Text(title[:60], style="bold", no_wrap=True, overflow="ellipsis"),
        ProgressBar(total=max(1, progress.planned), completed=progress.done, width=32),
        Text(f"{progress.done}/{progress.planned} episodes"),
        Text(times, style="dim"),
    )
    return grid


def _results(progress: Progress) -> Text:
    from rich.text import Text

    line = Text(overflow="ellipsis", no_wrap=True)
    rate, interval = progress.success_rate, progress.success_interval
    if rate is not None and interval is not None:
        line.append("success ", style="dim")
        line.append(f"{rate:.3f}", style="bold")
        line.append(f" [{interval.low:.3f}, {interval.high:.3f}]   ")
    if progress.mean_return is not None:
        line.append("mean return ", style="dim")
        line.append(f"{progress.mean_return:,.2f}   ", style="bold")
    if progress.errored:
        line.append(f"{progress.errored} errored   ", style="red")
    if progress.retries:
        line.append(f"{progress.retries} tried again   ", style="yellow")
    if progress.resumed:
        line.append(f"{progress.resumed} from before", style="dim")
    return line


def _speed(progress: Progress) -> Text:
    from rich.text import Text

    line = Text(overflow="ellipsis", no_wrap=True)
    if progress.episodes_per_min is not None and progress.steps_per_s is not None:
        line.append(rate_text(progress.episodes_per_min))
        line.append(" episodes/min   ", style="dim")
        line.append(f"{progress.steps_per_s:,.0f}")
        line.append(" steps/s   ", style="dim")
    if progress.batches is not None:
        line.append("rows a predict ", style="dim")
        line.append(f"{progress.batches.mean:.1f} (up to {progress.batches.largest})")
    return line


def _phases(progress: Progress) -> RenderableType:
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("call")
    for name in ("per s", "p50", "p99"):
        table.add_column(name, justify="right")
    for phase in progress.phases:
        per_s = "" if phase.per_s is None else f"{phase.per_s:,.0f}"
        table.add_row(phase.name, per_s, _ms(phase.p50_ms), _ms(phase.p99_ms))
    return table


def _tasks(tasks: Sequence[TaskProgress]) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("task")
    for name in ("episodes", "success", "errored"):
        table.add_column(name, justify="right")
    for task in tasks[-_MOST_TASKS:]:
        rate = f"{task.successes / task.judged:.3f}" if task.judged else "-"
        errored = str(task.errored or "")
        table.add_row(Text(clean(task.task)[:48]), str(task.done), rate, errored)
    if len(tasks) > _MOST_TASKS:
        table.caption = f"the last {_MOST_TASKS} of {len(tasks)} tasks"
        table.caption_justify = "left"
    return table


def _workers(progress: Progress) -> Text:
    from rich.text import Text

    line = Text("workers ", style="")
    line.stylize("dim")
    for worker in progress.workers[:_MOST_WORKERS]:
        mark, style = _STATES.get(worker.state, ("?", ""))
        line.append(f"{mark}{worker.number}", style=style)
        line.append(f"({worker.losses}✕) " if worker.losses else " ", style="red")
    states = [worker.state for worker in progress.workers]
    counts = (f"{states.count(state)} {state}" for state in _STATES if state in states)
    line.append("  " + ", ".join(counts), style="dim")
    return line


def _errors(progress: Progress) -> Text:
    from rich.text import Text

    lines: Iterable[str] = (f"  episode {e.index}: {e.error}" for e in progress.errors)
    text = Text("last errors", style="red", overflow="ellipsis", no_wrap=True)
    for line in lines:
        text.append(f"\n{line}", style="dim")
    return text


def _ms(value: float) -> str:
    """Return a duration in the unit that reads best."""
    if value >= 1000:  # noqa: PLR2004
        return f"{value / 1000:,.2f} s"
    return f"{value:.2f} ms" if value >= 1 else f"{value * 1000:.0f} µs"
