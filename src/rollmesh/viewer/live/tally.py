"""Counts a run as a hooks object: a few fields into a queue on the engine's thread, no more.

Whoever shows the run calls `read` now and then; the counting happens there. Only events of
episodes, telemetry windows and workers are looked at, so a step costs nothing.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from rollmesh import events
from rollmesh.clock import SYSTEM_CLOCK, Clock
from rollmesh.results.result import EpisodeResult
from rollmesh.results.stats import wilson_interval
from rollmesh.runtime.hooks import Hooks
from rollmesh.viewer.live.progress import (
    Batches,
    EpisodeErrorLine,
    News,
    Phase,
    Progress,
    TaskProgress,
    Worker,
    first_line,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import TypeAlias

    _News: TypeAlias = Sequence[News]
    _Take: TypeAlias = Callable[[float, int, Any], _News]

_TOLD_SOURCES = ("evaluate", "fleet")
_LAST_ERRORS = 5
_RECENT_NS = 60_000_000_000
_SAMPLE_NS = 1_000_000_000
_ENOUGH = 5
_PHASES = {"env.reset": "reset", "model.predict": "predict", "env.step": "step"}


class Tally(Hooks):
    """Follows a run.

    Guarantees: a hook method appends to a queue and returns, whatever the screens do; events are
    reduced to plain numbers at once, so no observation is kept alive; `read` may be called from any
    thread, one at a time.

    Attributes:
        planned: Episodes asked for.
    """

    def __init__(
        self,
        planned: int,
        *,
        keep_episodes: bool = True,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Begin to count.

        Args:
            planned: Episodes asked for.
            keep_episodes: Whether `episodes` is kept; not needed where a journal keeps them.
            clock: Tells the time.
        """
        self.planned = planned
        self._clock = clock
        self._inbox: deque[tuple[int, int, _Take, Any]] = deque()
        self._lock = threading.RLock()  # a signal handler may read while its own thread does
        self._started_ns = self._rates_ns = clock.monotonic_ns()
        self._kept: list[EpisodeResult] | None = [] if keep_episodes else None
        self._earlier: tuple[EpisodeResult, ...] = ()
        self._counts = _Counts()
        self._window_ns: int | None = None
        self._phases: tuple[Phase, ...] = ()
        self._batches: Batches | None = None
        self._workers: dict[int, Worker] = {}
        self._is_kept = True
        self._resumed = 0
        self._steps_before = 0
        self._samples: deque[tuple[int, int, int]] = deque([(self._started_ns, 0, 0)])

    # ------------------------------------------------------------------ the engine's threads

    def session_started(self, event: events.SessionStarted) -> None:
        """Note it."""
        self._put(self._took_start, event)

    def session_ended(self, event: events.SessionEnded) -> None:
        """Note it."""
        self._put(self._took_end, event)

    def session_failed(self, event: events.SessionFailed) -> None:
        """Note it."""
        self._put(self._took_failure, event)

    def episode_completed(self, event: events.EpisodeCompleted) -> None:
        """Note an episode that ended, without its observation."""
        self._put(self._took_episode, _result_of(event))

    def episode_errored(self, event: events.EpisodeErrored) -> None:
        """Note an episode that was spoiled."""
        self._put(self._took_episode, _result_of(event))

    def log(self, event: events.Log) -> None:
        """Note what the run itself has to say; warnings come by the logger as well."""
        if event.source in _TOLD_SOURCES:
            self._put(self._took_note, event.message)

    def on_telemetry(self, event: events.TelemetryEmitted) -> None:
        """Note a snapshot."""
        self._put(self._took_telemetry, event.snapshot)

    def on_worker_changed(self, event: events.WorkerChanged) -> None:
        """Note a worker's state."""
        self._put(self._took_worker, event)

    def on_episodes_stored(self, event: events.EpisodesStored) -> None:
        """Note what a journal has on disk."""
        if event.is_resumed:
            self.resumed(event.episodes, event.planned)
        else:
            self.acknowledged(event.episodes)

    def resumed(self, finished: Iterable[EpisodeResult], planned: int | None = None) -> None:
        """Note what an earlier start of the same run had finished, before anything else ends.

        Args:
            finished: Its finished episodes.
            planned: Episodes of the whole plan, where that is known now.
        """
        if planned is not None:
            self.planned = planned
        done = tuple(finished)
        if self._kept is not None:
            self._earlier += done
        self._put(self._took_earlier, done)

    def acknowledged(self, episodes: Sequence[EpisodeResult]) -> None:
        """Note episodes that a journal has on disk; may be called from the journal's thread."""
        self._put(self._took_stored, tuple(episodes))

    def count_as_stored(self) -> None:
        """Take every episode for stored as it ends: no journal keeps this run after all."""
        self._is_kept = False

    def note(self, text: str) -> None:
        """Note a line for people."""
        self._put(self._took_note, text)

    def _put(self, take: _Take, what: Any) -> None:
        self._inbox.append((self._clock.wall_ns(), self._clock.monotonic_ns(), take, what))

    # ------------------------------------------------------------------ the screens' thread

    @property
    def episodes(self) -> tuple[EpisodeResult, ...]:
        """All episodes that ended, in plan order; none without `keep_episodes`."""
        with self._lock:
            waiting = [what for *_, what in self._inbox.copy() if isinstance(what, EpisodeResult)]
            ended = [*self._earlier, *(self._kept or ()), *waiting]
            return tuple(sorted(ended, key=lambda e: e.index))

    def read(self) -> tuple[Progress, tuple[News, ...]]:
        """Count what came in, and return the state of the run and what is new in it."""
        with self._lock:
            news: list[News] = []
            for _ in range(len(self._inbox)):
                wall_ns, mono_ns, take, what = self._inbox.popleft()
                news.extend(take(wall_ns / 1e9, mono_ns, what))
            return self._progress(), tuple(news)

    # What each kind of entry comes to: counted, and returned where it is to be told.

    def _took_episode(self, wall_s: float, _mono_ns: int, episode: EpisodeResult) -> _News:
        self._counts.add(episode)
        if self._kept is not None:
            self._kept.append(episode)
        ended = News(wall_s=wall_s, episode=episode)
        if self._is_kept:
            return (ended,)
        return ended, News(wall_s=wall_s, episode=episode, is_stored=True)

    def _took_stored(self, wall_s: float, _mono_ns: int, stored: Sequence[EpisodeResult]) -> _News:
        return [News(wall_s=wall_s, episode=episode, is_stored=True) for episode in stored]

    def _took_note(self, wall_s: float, _mono_ns: int, text: str) -> _News:
        return (News(wall_s=wall_s, note=text),)

    def _took_start(self, wall_s: float, mono_ns: int, event: events.SessionStarted) -> _News:
        self._window_ns = mono_ns
        if self._counts.done == self._resumed:  # building and loading are no part of a rate
            self._rates_ns = mono_ns
            self._samples = deque([(mono_ns, 0, 0)])
        note = f"{event.route.model_component} in {event.route.env_component}"
        return (News(wall_s=wall_s, session="started", note=note),)

    def _took_end(self, wall_s: float, _mono_ns: int, event: events.SessionEnded) -> _News:
        return (News(wall_s=wall_s, session="ended", note=str(event.reason)),)

    def _took_failure(self, wall_s: float, _mono_ns: int, event: events.SessionFailed) -> _News:
        return (News(wall_s=wall_s, session="failed", note=str(event.reason)),)

    def _took_earlier(self, _wall_s: float, _mono_ns: int, done: Sequence[EpisodeResult]) -> _News:
        for episode in done:
            self._counts.add(episode)
        self._resumed += len(done)
        self._steps_before += sum(episode.steps for episode in done)
        return ()

    def _took_worker(self, wall_s: float, _mono_ns: int, event: events.WorkerChanged) -> _News:
        before = self._workers.get(event.worker)
        losses = (before.losses if before else 0) + (event.state == "lost")
        worker = Worker(
            number=event.worker,
            state=event.state,
            detail=event.detail,
            pid=event.pid,
            losses=losses,
        )
        self._workers[event.worker] = worker
        return (News(wall_s=wall_s, worker=worker),)

    def _took_telemetry(
        self, _wall_s: float, now_ns: int, snapshot: events.TelemetrySnapshot
    ) -> _News:
        seconds: float | None = None
        if snapshot.horizon == "window":
            if self._window_ns is not None:
                seconds = max(1e-9, (now_ns - self._window_ns) / 1e9)
            self._window_ns = now_ns
        phases: dict[str, Phase] = {}
        for row in snapshot.rows:
            name = _PHASES.get(row.operation)
            if name is not None and row.metric == "rpc.total":
                phases[name] = Phase(
                    name=name,
                    calls=row.count,
                    per_s=None if seconds is None else row.count / seconds,
                    p50_ms=row.p50,
                    p99_ms=row.p99,
                )
            elif row.operation == "model.predict" and row.metric == "group.size":
                self._batches = Batches(mean=row.mean, p50=row.p50, largest=int(row.max))
        kept = {phase.name: phase for phase in self._phases} | phases
        self._phases = tuple(kept[name] for name in _PHASES.values() if name in kept)
        return ()

    def _progress(self) -> Progress:
        counts, now_ns = self._counts, self._clock.monotonic_ns()
        ended, steps = counts.done - self._resumed, counts.steps - self._steps_before
        rate, step_rate = self._rates(now_ns, ended, steps)
        left = max(0, self.planned - counts.done)
        return Progress(
            planned=self.planned,
            done=counts.done,
            resumed=self._resumed,
            errored=counts.errored,
            retries=counts.retries,
            steps=steps,
            successes=counts.successes,
            judged=counts.judged,
            success_interval=wilson_interval(counts.successes, counts.judged),
            mean_return=counts.mean_return,
            wall_s=self._clock.wall_ns() / 1e9,
            elapsed_s=(now_ns - self._started_ns) / 1e9,
            eta_s=left / rate if rate else None,
            episodes_per_min=rate * 60 if rate else None,
            steps_per_s=step_rate,
            phases=self._phases,
            batches=self._batches,
            workers=tuple(self._workers[number] for number in sorted(self._workers)),
            tasks=counts.task_rows(),
            errors=tuple(counts.last_errors),
        )

    def _rates(self, now_ns: int, ended: int, steps: int) -> tuple[float | None, float | None]:
        """Return episodes/s and steps/s over the last minute, or over all if it saw few."""
        samples = self._samples
        if now_ns - samples[-1][0] >= _SAMPLE_NS:
            samples.append((now_ns, ended, steps))
        while len(samples) > 2 and now_ns - samples[1][0] > _RECENT_NS:  # noqa: PLR2004
            samples.popleft()
        since_ns, before, steps_before = samples[0]
        if ended - before < _ENOUGH:
            since_ns, before, steps_before = self._rates_ns, 0, 0
        seconds = (now_ns - since_ns) / 1e9
        if seconds <= 0 or ended == before:
            return None, None
        return (ended - before) / seconds, (steps - steps_before) / seconds


class _Counts:
    """Running numbers over episodes."""

    def __init__(self) -> None:
        self.done = 0
        self.errored = 0
        self.retries = 0
        self.steps = 0
        self.successes = 0
        self.judged = 0
        self.last_errors: deque[EpisodeErrorLine] = deque(maxlen=_LAST_ERRORS)
        self._total = 0.0
        self._tasks: dict[str, list[int]] = {}

    @property
    def mean_return(self) -> float | None:
        """Mean of the returns of finished episodes."""
        finished = self.done - self.errored
        return self._total / finished if finished else None

    def add(self, episode: EpisodeResult) -> None:
        """Count one episode."""
        self.done += 1
        self.retries += max(0, episode.attempts - 1)
        self.steps += episode.steps
        task = self._tasks.setdefault(episode.task, [0, 0, 0, 0])
        task[0] += 1
        if episode.error is not None:
            self.errored += 1
            task[3] += 1
            line = EpisodeErrorLine(index=episode.index, error=first_line(episode.error))
            self.last_errors.append(line)
            return
        self._total += episode.total_reward
        if episode.success is not None:
            self.judged += 1
            self.successes += episode.success
            task[2] += 1
            task[1] += episode.success

    def task_rows(self) -> tuple[TaskProgress, ...]:
        """Return the tasks as they came; none where the plan names none."""
        if not any(self._tasks):
            return ()
        return tuple(
            TaskProgress(task=name, done=done, successes=good, judged=judged, errored=errored)
            for name, (done, good, judged, errored) in self._tasks.items()
        )


def _result_of(event: events.EpisodeCompleted | events.EpisodeErrored) -> EpisodeResult:
    ended = event if isinstance(event, events.EpisodeCompleted) else None
    return EpisodeResult(
        index=event.episode_index,
        seed=event.seed,
        env_index=event.env_index,
        episode_id=event.episode_id,
        steps=event.steps,
        total_reward=event.total_reward,
        terminated=ended is not None and ended.terminated,
        truncated=ended is not None and ended.truncated,
        success=None if ended is None else ended.success,
        duration_s=event.duration_s,
        error=event.error if isinstance(event, events.EpisodeErrored) else None,
        attempts=event.attempts,
        task=event.task,
        odd_observations=event.odd_observations,
    )
