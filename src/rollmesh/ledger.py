"""The ledger of a run: what ended, now and in earlier starts, and whether it is enough (layer 8).

It is told of every episode on the engine's thread, has it recorded, and says when the failure
budget is spent or the question of the run is answered. It opens and drives nothing.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from rollmesh import events
from rollmesh.errors import JournalError, WorkerLost
from rollmesh.opening import Endpoints, name_of
from rollmesh.results.packed import PackedEpisodes
from rollmesh.results.result import EpisodeResult, EvalResult
from rollmesh.runtime.cancel import CancelToken
from rollmesh.runtime.hooks import Dispatcher
from rollmesh.runtime.report import EpisodeSummary, LostAttempt, RouteReport

if TYPE_CHECKING:
    from rollmesh.events import TelemetrySnapshot
    from rollmesh.results.stopping import PlanPrefix
    from rollmesh.running import PlannedRun
    from rollmesh.runs.journal import Journal
    from rollmesh.runs.rows import FailedAttempt


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

    def __post_init__(self) -> None:
        if self.run.stop_when is not None:
            from rollmesh.results.stopping import PlanPrefix

            self._prefix = PlanPrefix(self.run.stop_when)
        if self.journal is None:
            return
        self.journal.subscribe(
            self._stored, failed=lambda failure: self.cancel.cancel(str(failure))
        )
        self._stored(tuple(self.journal.finished.values()), is_resumed=True)
        self.episodes = PackedEpisodes(self.journal.finished)
        for index in sorted(self.journal.finished):
            self._count(self.journal.finished[index])

    def take(self, summary: EpisodeSummary) -> None:
        """Record an episode that ended, and see whether the run is over; on the engine's thread."""
        episode = EpisodeResult.from_summary(summary)
        if self.journal is not None:
            with contextlib.suppress(JournalError):  # the run is being cancelled for it
                self.journal.record(episode)
        self.episodes[episode.index] = episode
        self._count(episode)
        if self.stopped is not None:
            self.cancel.drain()

    def note_lost(self, lost: LostAttempt) -> None:
        """Write down an attempt that came to nothing; on the engine's thread."""
        if self.journal is not None:
            with contextlib.suppress(JournalError):  # the run is being cancelled for it
                self.journal.record_failed_attempt(_failed_attempt(lost))

    def noted(self, result: EvalResult) -> EvalResult:
        """Write down what this start came to, wait until all of it is on disk, and return it.

        Raises:
            JournalError: Something could not be written; `result` holds all that ended.
        """
        if self.journal is None:
            return result
        try:
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
        run, endpoints = self.run, self.endpoints
        width = 1
        earlier_s = 0.0 if self.journal is None else self.journal.elapsed_before_s
        env, model = run.env_name, name_of(run.model)
        if endpoints is not None:
            env, model, width = endpoints.env_component, endpoints.model_component, endpoints.width
        telemetry: TelemetrySnapshot | None = None if report is None else report.telemetry
        why = stopped or self.stopped
        if why is None and len(self.episodes) < len(run.plan.episodes):
            why = "asked to start no new episode"
        return EvalResult(
            episodes=tuple(self.episodes[index] for index in sorted(self.episodes)),
            telemetry=telemetry,
            plan_seed=run.plan_seed,
            env=env,
            model=model,
            num_envs=width,
            planned=len(run.plan.episodes),
            elapsed_s=self.elapsed_s + earlier_s,
            stopped=why,
            plan_hash=run.plan.hash,
            run_dir=None if run.folder is None else str(run.folder.path),
            resumed=0 if self.journal is None else len(self.journal.finished),
        )

    def _stored(self, episodes: Sequence[EpisodeResult], *, is_resumed: bool = False) -> None:
        run = self.run
        if emit := Dispatcher(run.hooks).on_episodes_stored:
            emit(
                events.EpisodesStored(
                    session_id=run.template.session_id,
                    route=run.route,
                    planned=len(run.plan.episodes),
                    episodes=tuple(episodes),
                    is_resumed=is_resumed,
                )
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
