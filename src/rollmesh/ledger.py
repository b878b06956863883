"""The ledger of a run: what ended, now and in earlier starts, and whether it is enough (layer 8).

It is told of every episode on the engine's thread, has it recorded, and says when the failure
budget is spent or the question of the run is answered. It opens and drives nothing.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import msgspec

from rollmesh import events
from rollmesh.errors import JournalError, WorkerLost
from rollmesh.opening import Endpoints, name_of
from rollmesh.results.conditions import written
from rollmesh.results.packed import PackedEpisodes
from rollmesh.results.result import EpisodeResult, EvalResult
from rollmesh.runtime.background_hooks import BackgroundHooks
from rollmesh.runtime.cancel import DRAINED, CancelToken
from rollmesh.runtime.hooks import Dispatcher, Hooks
from rollmesh.runtime.report import EpisodeSummary, LostAttempt, RouteReport

if TYPE_CHECKING:
    from rollmesh.events import TelemetrySnapshot
    from rollmesh.results.stopping import PlanPrefix
    from rollmesh.running import PlannedRun
    from rollmesh.runs.journal import Journal
    from rollmesh.runs.rows import FailedAttempt

_logger = logging.getLogger(__name__)

TOLD_S = 30.0
"""How long the end of a run waits for hooks that are told of stored episodes."""
LOOK_S = 5.0
"""How long one that was interrupted waits for the look at what playing has moved."""


@dataclass(eq=False)
class Ledger:
    """What has ended, and whether that is enough.

    Attributes:
        run: Whose it is.
        journal: Where episodes are recorded, or None.
        cancel: Stops this run, and no other one of the caller's token.
        episodes: Every ended one, by plan index.
        stopped: Why no further one is started, or None.
        elapsed_s: How long the driver ran.
        endpoints: Their names, once they are open.
    """

    run: PlannedRun
    journal: Journal | None
    cancel: CancelToken
    episodes: PackedEpisodes = field(default_factory=PackedEpisodes)
    stopped: str | None = None
    elapsed_s: float = 0.0
    endpoints: Endpoints | None = None
    _errors: int = 0
    _prefix: PlanPrefix | None = None
    _told: _Stored | None = None
    _telling: BackgroundHooks | None = None

    def __post_init__(self) -> None:
        if (emit := Dispatcher(self.run.hooks).on_episodes_stored) is not None:
            self._told = _Stored(emit)
            self._telling = BackgroundHooks(self._told)
        if self.run.stop_when is not None:
            from rollmesh.results.stopping import PlanPrefix

            self._prefix = PlanPrefix(self.run.stop_when)
        if self.journal is None:
            return
        self.journal.subscribe(
            self._stored, failed=lambda failure: self.cancel.cancel(str(failure))
        )
        if (emit := Dispatcher(self.run.hooks).on_episodes_stored) is not None:
            emit(self._event(tuple(self.journal.finished.values()), is_resumed=True))
        self.episodes = PackedEpisodes(self.journal.finished)
        for index in sorted(self.journal.finished):
            self._count(self.journal.finished[index])

    def note_opened(self, endpoints: Endpoints) -> None:
        """Write down what the env turned out to be, once it is open."""
        from rollmesh.runs.schema import ENV_FACT, WIDTH_FACT

        self.endpoints = endpoints
        if self.journal is not None:
            with contextlib.suppress(JournalError):  # the run is being cancelled for it
                self.journal.note_facts(
                    {ENV_FACT: endpoints.env_component, WIDTH_FACT: endpoints.width}
                )

    def take(self, summary: EpisodeSummary) -> None:
        """Record an episode that ended, and see whether the run is over; on the engine's thread."""
        episode = EpisodeResult.from_summary(summary)
        if self.journal is not None:
            with contextlib.suppress(JournalError):  # the run is being cancelled for it
                self.journal.record(episode, ended_ns=summary.ended_ns)
        self.episodes[episode.index] = episode
        self._count(episode)
        if self.stopped is not None:
            self.cancel.drain(self.stopped)

    def note_lost(self, lost: LostAttempt) -> None:
        """Write down an attempt that came to nothing; on the engine's thread."""
        if self.journal is not None:
            with contextlib.suppress(JournalError):  # the run is being cancelled for it
                self.journal.record_failed_attempt(_failed_attempt(lost))

    def note_moved(self, *, is_sound: bool) -> None:
        """Write down what playing has changed in model and env: the same ones may go on then.

        Args:
            is_sound: Whether all calls have come back. Else one that is under way may hold what is
                looked at here, and the look is given up after `LOOK_S`.
        """
        if self.journal is None:
            return
        if is_sound:
            self._look_what_moved(self.journal)
            return
        look = threading.Thread(
            target=self._look_what_moved, args=(self.journal,), name="rollmesh-marks", daemon=True
        )
        look.start()
        look.join(LOOK_S)

    def _look_what_moved(self, journal: Journal) -> None:
        from rollmesh.runs.marks import marks_of, moved_since, remember
        from rollmesh.runs.schema import MOVED_FACT

        model, env = self.run.model, self.run.env
        moved = moved_since(journal.marks, marks_of(model, env))
        if moved:
            remember(model, env, before=journal.marks, moved=moved)
            with contextlib.suppress(JournalError, ValueError):  # said elsewhere, or it is closed
                journal.note_facts({MOVED_FACT: moved})

    def noted(self, result: EvalResult) -> EvalResult:
        """Write down what this start came to, wait until all of it is on disk, and return it.

        Raises:
            JournalError: Something could not be written; `result` holds all that ended.
        """
        if self.journal is None:
            return result
        from rollmesh.runs.schema import DECISION_FACT

        try:
            if result.decision is not None:
                self.journal.note_facts({DECISION_FACT: asdict(result.decision)})
            self.journal.note_outcome(
                stopped=result.stopped, elapsed_s=self.elapsed_s, telemetry=result.telemetry
            )
            self.journal.flush()
        except JournalError as error:
            error.result = replace(result, stopped=str(error))
            raise
        return result

    def result(self, report: RouteReport | None, *, stopped: str | None = None) -> EvalResult:
        """Return the result of all episodes that ended, in this start and before."""
        run = self.run
        earlier_s = 0.0 if self.journal is None else self.journal.elapsed_before_s
        env, width = self._opened()
        telemetry: TelemetrySnapshot | None = None if report is None else report.telemetry
        why = stopped or self.stopped
        if why is None and len(self.episodes) < len(run.plan.episodes):
            why = self.cancel.drain_reason or DRAINED
        return EvalResult(
            episodes=tuple(self.episodes[index] for index in sorted(self.episodes)),
            telemetry=telemetry,
            plan_seed=run.plan_seed,
            env=env,
            model=name_of(run.model),
            num_envs=width,
            planned=len(run.plan.episodes),
            elapsed_s=self.elapsed_s + earlier_s,
            stopped=why,
            plan_hash=run.plan.hash,
            run_dir=None if run.folder is None else str(run.folder.path),
            resumed=0 if self.journal is None else len(self.journal.finished),
            decision=None if self._prefix is None else self._prefix.decision,
            conditions=run.conditions,
            model_kwargs=written(run.opening.model_kwargs),
            num_unwatched=0 if self.journal is None else self.journal.num_unwatched,
        )

    def _opened(self) -> tuple[str, int]:
        """Return the env's name and the number of lanes: now, or as an earlier start noted them."""
        if self.endpoints is not None:
            return self.endpoints.env_component, self.endpoints.width
        from rollmesh.runs.schema import ENV_FACT, WIDTH_FACT

        before: Mapping[str, Any] = {} if self.journal is None else self.journal.env_facts
        return before.get(ENV_FACT) or self.run.env_name, before.get(WIDTH_FACT) or 1

    def close(self) -> None:
        """Wait, `TOLD_S` at most, for hooks that are still being told of stored episodes."""
        if self._telling is not None and not self._telling.close(TOLD_S):
            _logger.warning(
                "hook_hangs event=on_episodes_stored timeout_s=%g (the run is not affected; what "
                "is left is told while the process lives)",
                TOLD_S,
            )

    def _stored(self, episodes: Sequence[EpisodeResult]) -> None:
        """Have hooks told what is on disk; on the writer's thread, which waits for none of them."""
        if self._telling is not None and self._told is not None:
            self._told.waiting.append(tuple(episodes))
            self._telling.on_episodes_stored(self._event(()))

    def _event(
        self, episodes: tuple[EpisodeResult, ...], *, is_resumed: bool = False
    ) -> events.EpisodesStored:
        run = self.run
        return events.EpisodesStored(
            session_id=run.template.session_id,
            route=run.route,
            planned=len(run.plan.episodes),
            episodes=episodes,
            is_resumed=is_resumed,
        )

    def _count(self, episode: EpisodeResult) -> None:
        """Count an ended episode; end the run where the budget is spent or the question answered.

        A rule is asked about the longest beginning of the plan that has ended: short episodes end
        first, and whether an episode is short has to do with whether it succeeds.
        """
        self._errors += episode.error is not None
        decision = None
        if self._prefix is not None:
            success = episode.success if episode.error is None else None
            decision = self._prefix.record(episode.index, success)
        if self.stopped is not None:
            return
        most, planned = self.run.max_errors, len(self.run.plan.episodes)
        if most is not None and self._errors > most:
            self.stopped = (
                f"failure budget spent: {self._errors} of {len(self.episodes)} ended episodes "
                f"errored, {most} of {planned} planned ones may"
            )
        elif decision is not None:
            self.stopped = decision.reason


class _Stored(Hooks):
    """The hooks of a run, as far as they are told of stored episodes: slow ones of many at once."""

    def __init__(self, emit: Callable[[events.EpisodesStored], object]) -> None:
        self._emit = emit
        self.waiting: deque[tuple[EpisodeResult, ...]] = deque()

    def on_episodes_stored(self, event: events.EpisodesStored) -> None:
        """Pass on what has come meanwhile, that of this event or more."""
        episodes: list[EpisodeResult] = []
        while self.waiting:
            episodes += self.waiting.popleft()
        if episodes:
            self._emit(msgspec.structs.replace(event, episodes=tuple(episodes)))


def _failed_attempt(lost: LostAttempt) -> FailedAttempt:
    """Return a lost attempt as the journal keeps it."""
    from rollmesh.runs.rows import FailedAttempt

    fault = lost.error.__cause__
    is_worker = isinstance(fault, WorkerLost)
    cause = fault.cause if is_worker else ""
    ended = signal.Signals.__members__.get(cause)
    code = cause.removeprefix("exit code ")
    return FailedAttempt(
        index=lost.index,
        attempt=lost.attempt,
        cause=str(lost.error).partition("\n")[0],
        worker=fault.worker if is_worker else None,
        signal=None if ended is None else int(ended),
        exit_code=int(code) if code != cause and code.isdecimal() else None,
        stderr="\n".join(fault.last_lines) if is_worker else "",
    )
