"""A route: what all its groups share, and what happens once an answer is there.

Owns the totals and summaries of one session, and the parts that tell, ask and count. Touches no
clock, thread or socket: time comes in replies, ids from the mint, and what must be waited for is
yielded by `group.py` as an `Operation`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rollmesh import events
from rollmesh.errors import (
    EndpointFailed,
    ModelRouteMismatch,
    OperationTimeout,
    ProtocolError,
    RouteCancelled,
    RouteError,
)
from rollmesh.ids import MintsIds
from rollmesh.ports import (
    PREPARE,
    REBUILD,
    AutoresetMode,
    PredictReply,
    PredictRequest,
    ResetReply,
    StepReply,
)
from rollmesh.runtime.announcer import Announcer
from rollmesh.runtime.cancel import CancelToken
from rollmesh.runtime.endings import EndReader
from rollmesh.runtime.hooks import Dispatcher
from rollmesh.runtime.lanes import Ending, Episode, Group, Lane, QueuedFrame, Roster
from rollmesh.runtime.operations import Operation
from rollmesh.runtime.plan import EpisodePlan
from rollmesh.runtime.report import EpisodeSummary, LostAttempt, RouteReport
from rollmesh.runtime.requests import Requests
from rollmesh.runtime.spec import SessionSpec
from rollmesh.runtime.success import read_success
from rollmesh.runtime.telemetry import Telemetry
from rollmesh.spaces.codec import Given, Leaves


class Route:
    """One model endpoint driving one env endpoint, for one session.

    Attributes:
        spec: What was asked.
        mode: The env's autoreset mode.
        capabilities: The env port's.
        owns_resets: Whether the runtime resets ended lanes itself.
        prepares: Whether lanes are prepared before an episode.
        plan: Hands out episodes.
        requests: Makes operations.
        announcer: Tells the hooks.
        telemetry: Takes samples.
        gives_observations: Whether nobody reads an observation any more once the model is asked,
            so that the policy may have its memory.
        total_steps: Moves of the reported episodes.
        total_episodes: Reported episodes.
        groups_left: Groups that have not come to their end.
        resting: Groups that ran out of episodes; their lanes may still be of use.
    """

    def __init__(
        self,
        spec: SessionSpec,
        capabilities: frozenset[str],
        *,
        dispatcher: Dispatcher,
        telemetry: Telemetry,
        cancel: CancelToken,
        mint: MintsIds,
        tell: Callable[[EpisodeSummary], None] | None = None,
        tell_lost: Callable[[LostAttempt], None] | None = None,
    ) -> None:
        self.spec = spec
        self.mode = spec.autoreset_mode
        self.capabilities = capabilities
        self.owns_resets = spec.owns_resets(capabilities)
        self.prepares = PREPARE in capabilities
        self.plan = EpisodePlan(spec, mint, cancel)
        self.requests = Requests(spec)
        self.announcer = Announcer(spec, dispatcher)
        self.telemetry = telemetry
        self.total_steps = 0
        self.groups_left = 1
        self.resting: list[Group] = []
        self._cancel = cancel
        self._mint = mint
        self._tell = tell
        self._tell_lost = tell_lost
        self._ends = EndReader(spec, lambda text: self.announcer.log("warning", text))
        self._observation_codec = spec.env_contract.observation_space.codec
        self._action_codec = spec.env_contract.action_space.codec
        self._needs_fillers = spec.width > 1 or not self.owns_resets
        self.gives_observations = not (
            dispatcher.transform_observation
            or dispatcher.observation_emitted
            or dispatcher.step_completed
            or (spec.width > 1 and dispatcher.episode_completed)
        )
        self._starts = 0
        self.total_episodes = 0
        self._summaries: list[EpisodeSummary] = []
        self._told_success = False

    @property
    def budget_met(self) -> bool:
        """Whether enough episodes ended (`budget="completions"` only: starts bound themselves)."""
        spec = self.spec
        limit = spec.max_episodes
        return spec.budget == "completions" and limit is not None and self.total_episodes >= limit

    def check_cancel(self, group: Group, operation: str = "", step: int | None = None) -> None:
        """Raise when the caller asked to stop: at the top, or before that operation (rule R15)."""
        if self._cancel.reason is not None:
            raise RouteCancelled(
                self._cancel.reason,
                route=self.spec.env_id,
                operation=operation,
                step=group.step if step is None else step,
            )

    # ---------------------------------------------------------------- observe, act

    def rows(self, roster: Roster, observation: Leaves) -> Leaves:
        """Return the roster's rows of a group's observation."""
        if roster.whole:
            return observation
        return self._observation_codec.take(observation, [lane.row for lane in roster.lanes])

    def put(
        self, group: Group, lanes: Sequence[Lane], observation: Leaves | None, part: Leaves
    ) -> Leaves:
        """Return a group's observation with the rows of some lanes replaced (rule R20)."""
        if observation is None or len(lanes) == group.width:
            return part
        return self._observation_codec.put(observation, [lane.row for lane in lanes], part)

    def observe(self, roster: Roster, observation: Leaves) -> Leaves:
        """Transform and emit the current observations; a predict carries rows of the result."""
        rows = self.announcer.observation(roster, self.rows(roster, observation))
        for lane in roster.lanes:
            lane.fresh = False
        return Given(rows) if self.gives_observations and roster.whole else rows

    def plan_frames(self, ask: Sequence[Lane], operation: Operation, reply: PredictReply) -> None:
        """Check the echo, take the samples, and queue the frames (rules R11, R12, R17, R19)."""
        request: PredictRequest = operation.request
        rows = len(ask)
        spec = self.spec
        if reply.context is not request.context and reply.context != request.context:
            raise ModelRouteMismatch(
                f"{spec.model_component} answered {reply.context!r}, but the request was "
                f"{request.context.request_id}; is one model server shared by mistake?",
                request_id=request.context.request_id,
                route=spec.env_id,
                component=spec.model_component,
                step=operation.step,
            )
        self.telemetry.record(
            "model.predict",
            reply.started_ns,
            reply.ended_ns,
            endpoint_ns=reply.endpoint_total_ns,
            request_bytes=reply.request_bytes,
            response_bytes=reply.response_bytes,
            rows=rows,
        )
        self.requests.is_answered = True
        frames = reply.frames
        if not frames:
            raise ProtocolError(
                f"{spec.model_component} returned no action frames for "
                f"{request.context.request_id}; a predict wants at least one",
                route=spec.env_id,
                component=spec.model_component,
                operation="model.predict",
                step=operation.step,
            )
        if spec.execution_horizon is not None:
            frames = frames[: spec.execution_horizon]
        for row, lane in enumerate(ask):
            lane.frames.extend([QueuedFrame(frame, row, rows) for frame in frames])

    def act(self, group: Group, roster: Roster) -> Leaves:
        """Return a row per lane: the next frames, transformed and emitted, and fillers."""
        queued = [lane.frames.popleft() for lane in roster.lanes]
        action = self.announcer.action(roster, self._join(queued))
        if self._needs_fillers:
            for row, lane in enumerate(roster.lanes):
                lane.last_frame = QueuedFrame(action, row, len(queued))
        return action if roster.whole else self.fill(group)

    def fill(self, group: Group) -> Leaves:
        """Give every lane its last frame, or another lane's where it has none (rule R21)."""
        lasts = [lane.last_frame for lane in group.lanes]
        spare = next(frame for frame in lasts if frame is not None)
        frames = [frame or spare for frame in lasts]
        return self._action_codec.gather([(one.frame, one.row) for one in frames])

    def _join(self, queued: Sequence[QueuedFrame]) -> Leaves:
        first = queued[0]
        if first.rows == 1 == len(queued):
            return first.frame
        if first.rows == len(queued) and all(
            [one.frame is first.frame and one.row == row for row, one in enumerate(queued)]
        ):
            return first.frame
        return self._action_codec.gather([(one.frame, one.row) for one in queued])

    # -------------------------------------------------------------- starts and ends

    def started(
        self, group: Group, lanes: Sequence[Lane], episodes: Sequence[Episode], reply: ResetReply
    ) -> None:
        """Take a reset's reply: samples, the log of the first one, and the starts (R8, R37)."""
        self._check_rows(len(lanes), reply, "env.reset", group.step)
        self._sample("env.reset", reply)
        group.last_ns = reply.ended_ns
        for one in reply.odd:
            lanes[one.row].count_odd(one.kind, one.path, is_next=True)
        auto = group.logged_reset
        if not group.logged_reset:
            group.logged_reset = True
            duration_ms = (reply.ended_ns - reply.started_ns) / 1e6
            ready = len([episode for episode in episodes if episode.planned])
            self.announcer.log("info", f"reset took {duration_ms:.1f} ms, {ready} episodes ready")
        for lane, episode in zip(lanes, episodes, strict=True):
            self.start(group, lane, episode, reply.ended_ns, auto=auto)

    def start(
        self, group: Group, lane: Lane, episode: Episode, started_ns: int, *, auto: bool = True
    ) -> None:
        """Begin an episode on a lane and say so."""
        lane.begin(episode, started_ns)
        if self.mode is AutoresetMode.SAME_STEP:
            lane.spare_id = self._mint.mint()
        group.changed()
        if episode.planned:
            self._starts += 1
            episode.record_id = f"ep-{self._starts:06d}"
            self.announcer.episode_started(lane, episode, auto=auto)

    def stepped(self, group: Group, roster: Roster, reply: StepReply) -> list[Ending]:
        """Take a step's reply: samples, counters, ends, `step_completed` (rule R14)."""
        self._check_rows(group.width, reply, "env.step", group.step + 1)
        self._sample("env.step", reply)
        group.last_ns = reply.ended_ns
        rewards = reply.rewards
        for lane in roster.lanes:
            lane.steps += 1
            lane.total_reward += rewards[lane.row]
        endings: dict[int, Ending] = {}
        if reply.completions or self._ends.caps:
            endings = self._ends.read(group, roster, reply)
        if reply.odd:
            self._count_odd(group, reply, endings)
        if self.announcer.hooks.step_completed is not None and roster.lanes:
            self.announcer.step(roster, reply, self.rows(roster, reply.observation), endings)
        return [endings[row] for row in sorted(endings)] if endings else []

    def _count_odd(self, group: Group, reply: StepReply, endings: Mapping[int, Ending]) -> None:
        """Count odd observations for the episodes that they belong to.

        That is the next one where the env reset the lane itself: within the step that ended the
        last one (SAME_STEP), or with this step (NEXT_STEP).
        """
        is_same_step = self.mode is AutoresetMode.SAME_STEP
        for one in reply.odd:
            lane = group.lanes[one.row]
            is_next = is_same_step and one.row in endings and not one.is_final
            lane.count_odd(one.kind, one.path, is_next=is_next or lane.next is not None)

    def complete(self, group: Group, ending: Ending, reply: StepReply) -> None:
        """Report the end of a planned episode; an unscored one passes unseen."""
        lane = ending.lane
        episode = lane.episode
        if episode is None or not episode.planned:
            return
        success, complaint = read_success(ending.final_info)
        if complaint is not None and not self._told_success:
            self._told_success = True
            self.announcer.log("warning", complaint)
        summary = EpisodeSummary(
            index=episode.index,
            env_index=lane.env_index,
            episode_id=episode.id,
            seed=episode.seed,
            steps=lane.steps,
            total_reward=lane.total_reward,
            terminated=ending.terminated,
            truncated=ending.truncated,
            success=success,
            duration_s=(reply.ended_ns - lane.started_ns) / 1e9,
            ended_ns=reply.ended_ns,
            attempts=episode.attempt,
            causes=episode.causes,
            task=episode.task,
            odd_observations=lane.odd_observations(),
        )
        self._report(summary)
        if self.announcer.hooks.episode_completed is None:
            return
        last = ending.final_observation
        if last is None:
            last = reply.observation
            if group.width > 1:
                last = self._observation_codec.take(last, [lane.row])
        self.announcer.episode_completed(summary, episode.record_id, ending, last)

    def spoil(self, group: Group, error: RouteError | str, *, goes_on: bool) -> list[str]:
        """Mark the group's episodes errored, and return the ids that the model may hold (R29).

        Where the route ends with the error they did not come to their end. Nobody who keeps what
        ended (`tell`) is told of them then, for a later start of the same plan plays them; and of a
        fault of the model, which is none of the episodes', the report does not tell either.
        """
        is_of_model = isinstance(error, RouteError) and error.operation.startswith("model.")
        counts = goes_on or (self._tell is None and not is_of_model)
        ids: list[str] = []
        for lane in group.lanes:
            if lane.episode is not None:
                ids.append(lane.episode.id)
            if lane.owes:
                episode = lane.next or lane.episode
                if counts and episode is not None:
                    self._spoil(group, lane, episode, _error_of(lane, error))
            lane.clear()
        group.changed()
        return ids

    def may_try_again(self, group: Group, error: RouteError) -> bool:
        """Whether a lost endpoint can be made up for: the group's episodes have attempts left."""
        if not self._is_lost(error):
            return False
        if error.operation == "env.rebuild":
            return False
        if error.operation.startswith("env.") and REBUILD not in self.capabilities:
            return False
        episodes = [lane.next or lane.episode for lane in group.lanes if lane.owes]
        most = self.spec.max_attempts
        return all([one is not None and one.attempt < most for one in episodes])

    def may_do_without(self, group: Group, error: RouteError) -> bool:
        """Whether a lane was given up and there are others; its episode is theirs then."""
        if not (isinstance(error, EndpointFailed) and error.is_lane_lost):
            return False
        if self.groups_left <= 1 and not self.resting:
            return False
        self.announcer.log("warning", f"goes on without lane {group.lanes[0].env_index}: {error}")
        for lane in group.lanes:
            episode = lane.next or lane.episode
            if lane.owes and episode is not None:
                self.plan.leave(episode)
            lane.clear()
        group.changed()
        return True

    def _is_lost(self, error: RouteError) -> bool:
        if isinstance(error, OperationTimeout):
            return self.spec.retry_late and error.operation.startswith("env.")
        return isinstance(error, EndpointFailed) and error.is_session_lost

    def take_back(self, group: Group, error: RouteError) -> list[str]:
        """Give the group's episodes back to the plan; return the ids that the model may hold."""
        ids: list[str] = []
        for lane in group.lanes:
            if lane.episode is not None:
                ids.append(lane.episode.id)
            episode = lane.next or lane.episode
            if lane.owes and episode is not None:
                cause = str(error).partition("\n")[0]
                self.plan.give_back(episode, cause)
                if self._tell_lost is not None:
                    self._tell_lost(
                        LostAttempt(index=episode.index, attempt=episode.attempt, error=error)
                    )
                self.announcer.log(
                    "warning",
                    f"episode {episode.index} is started again, as attempt {episode.attempt + 1}: "
                    f"{cause}",
                )
            lane.clear()
        group.changed()
        return ids

    def _spoil(self, group: Group, lane: Lane, episode: Episode, error: str) -> None:
        began = lane.next is None
        summary = EpisodeSummary(
            index=episode.index,
            env_index=lane.env_index,
            episode_id=episode.id,
            seed=episode.seed,
            steps=lane.steps if began else 0,
            total_reward=lane.total_reward if began else 0.0,
            terminated=False,
            truncated=False,
            success=None,
            duration_s=(group.last_ns - lane.started_ns) / 1e9 if began else 0.0,
            ended_ns=group.last_ns if began else 0,
            error=error,
            attempts=episode.attempt,
            causes=episode.causes,
            task=episode.task,
            odd_observations=lane.odd_observations() if began else (),
        )
        self._report(summary)
        self.announcer.episode_errored(summary, episode.record_id)

    def _report(self, summary: EpisodeSummary) -> None:
        """Take an episode into the report, or tell of it."""
        if self._tell is None:
            self._summaries.append(summary)
        else:
            self._tell(summary)
        self.total_episodes += 1
        self.total_steps += summary.steps

    def report(self, snapshot: events.TelemetrySnapshot) -> RouteReport:
        """Return what came of the route so far."""
        episodes = self._summaries
        if self.spec.budget == "starts":
            episodes = sorted(episodes, key=lambda one: one.index)
        return RouteReport(
            session_id=self.spec.session_id,
            env_id=self.spec.env_id,
            total_steps=self.total_steps,
            total_episodes=self.total_episodes,
            episodes=tuple(episodes),
            telemetry=snapshot,
        )

    # --------------------------------------------------------------------- helpers

    def _sample(self, operation: str, reply: ResetReply | StepReply) -> None:
        self.telemetry.record(
            operation,
            reply.started_ns,
            reply.ended_ns,
            endpoint_ns=reply.endpoint_total_ns,
            request_bytes=reply.request_bytes,
            response_bytes=reply.response_bytes,
        )

    def _check_rows(
        self, wanted: int, reply: ResetReply | StepReply, operation: str, step: int
    ) -> None:
        got = len(reply.infos)
        if got == wanted and isinstance(reply, StepReply):
            got = len(reply.rewards)
        if got != wanted:
            component = self.spec.env_component
            raise ProtocolError(
                f"{component} answered {operation} with {got} rows, wanted {wanted}",
                route=self.spec.env_id,
                component=component,
                operation=operation,
                step=step,
            )


def _error_of(lane: Lane, error: RouteError | str) -> str:
    """Return what is said of a lane's episode when its group fails."""
    failed = error.env_index if isinstance(error, EndpointFailed) else None
    if failed is None or failed == lane.env_index:
        return str(error)
    return f"lane {lane.env_index} shares an env with lane {failed}, which failed: {error}"
