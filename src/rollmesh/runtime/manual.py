"""The manual driver: the same episode loop, turned by hand, one lane, an episode at a time.

Where the loop would ask the model it pauses instead (`_Pauses`), and whoever turns the crank says
which action is next: the model's, the next one of its chunk, or one of their own. Everything else
is the loop, the route and the engines of `RouteDriver`.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from rollmesh.errors import RouteCancelled, RouteError
from rollmesh.ports import Info, PredictReply, ResetReply, StepReply
from rollmesh.runtime.cancel import CancelToken
from rollmesh.runtime.driver import RouteDriver, make_groups
from rollmesh.runtime.engine.base import Task
from rollmesh.runtime.group import group_loop
from rollmesh.runtime.lanes import Ending, Episode, Group, Lane, QueuedFrame, Roster
from rollmesh.runtime.operations import GroupLoop, Operation
from rollmesh.runtime.plan import EpisodePlan
from rollmesh.runtime.report import EpisodeSummary, RouteReport
from rollmesh.runtime.requests import Requests
from rollmesh.runtime.route import Route
from rollmesh.runtime.telemetry import Telemetry
from rollmesh.runtime.ticker import Ticker
from rollmesh.spaces.codec import Leaves

logger = logging.getLogger(__name__)

INTERRUPTED = "interrupted"
CLOSED = "closed by caller"
_CHOOSE = "choose"


@dataclass(frozen=True, kw_only=True)
class Turned:
    """What a reset or step by hand came to; the observation is an untransformed batch of one."""

    observation: Leaves
    info: Info
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False


class _OneEpisode(EpisodePlan):
    """Hands out the one episode that was asked for, and no other."""

    _asked: tuple[int | None, Info | None] | None = None

    def ask(self, seed: int | None, options: Info | None) -> None:
        """Have an episode with this seed and these options claimed next."""
        self._asked = (seed, options)

    def claim(self, lanes: Sequence[Lane], *, may_idle: bool) -> list[Episode | None]:
        """Return the episode asked for, once; otherwise the lane idles."""
        del may_idle
        asked, self._asked = self._asked, None
        if asked is None:
            return [None]
        index = self.claimed
        self.claimed += 1
        episode_id = lanes[0].spare_id or self._mint.mint()
        return [Episode(id=episode_id, index=index, seed=asked[0], options=asked[1])]


class _Pauses(Requests):
    """Makes a pause where the loop would ask the model; no request is sent or counted."""

    def predict(self, group: Group, ask: Sequence[Lane], roster: Roster, rows: Leaves) -> Operation:
        """Return the pause."""
        return Operation(
            "model", _CHOOSE, (group, ask, roster, rows), "model.predict", ask[0].steps, None
        )

    def predict_at(self, pause: Operation) -> Operation:
        """Return the predict that the loop would have made at this pause."""
        return super().predict(*pause.request)


class _ManualRoute(Route):
    """A route whose loop is given its frames one by one.

    Attributes:
        ending: What ended the last episode, or None.
    """

    ending: Ending | None = None

    def pause_for_choices(self) -> _Pauses:
        """Put pauses in the place of predicts, and return what makes them."""
        pauses = _Pauses(self.spec)
        self.requests = pauses
        self.gives_observations = False  # whoever turns the crank sees them, too
        return pauses

    def take_chunk(self, lane: Lane, predict: Operation, reply: PredictReply) -> list[QueuedFrame]:
        """Check a predict's reply and return its frames, cut to the horizon."""
        super().plan_frames([lane], predict, reply)
        frames = list(lane.frames)
        lane.frames.clear()
        return frames

    def plan_frames(self, ask: Sequence[Lane], operation: Operation, reply: Any) -> None:
        """Queue the chosen frame."""
        del operation
        ask[0].frames.append(reply)

    def may_try_again(self, group: Group, error: RouteError) -> bool:
        """Return False: whoever turns the crank resets, and says with which seed."""
        del group, error
        return False

    def complete(self, group: Group, ending: Ending, reply: StepReply) -> None:
        """Keep what ended the episode for whoever turns the crank."""
        self.ending = ending
        super().complete(group, ending, reply)

    @property
    def summaries(self) -> tuple[EpisodeSummary, ...]:
        """The episodes that ended so far."""
        return tuple(self._summaries)


class ManualDriver(RouteDriver):
    """Drives one lane by hand: `begin`, then `reset`, `predict`, `step` …, then `finish`.

    A failure ends the session as it ends a route: `session_failed`, and the error with the report.
    Calls out of order are the caller's to prevent (`is_running`).
    """

    def begin(
        self, cancel: CancelToken, *, is_forgotten: Callable[[], bool] = lambda: False
    ) -> None:
        """Start the session.

        Args:
            cancel: Stops it.
            is_forgotten: Whether nobody is left who could turn or finish it, asked from the
                ticker's thread: the ticker then stops, and no more.

        Raises:
            InvalidSpec: The endpoint cannot do what the spec asks; nothing was touched.
            RouteCancelled: A Ctrl-C came meanwhile; all is shut down.
        """
        self._ran = True
        spec = self._spec
        capabilities = frozenset(self._env.capabilities)
        spec.check_capabilities(capabilities)
        self._route = _ManualRoute(
            spec,
            capabilities,
            dispatcher=self._dispatcher,
            telemetry=Telemetry(spec.env_component, spec.model_component, self._clock),
            cancel=cancel,
            mint=self._mint,
        )
        self._pauses = self._route.pause_for_choices()
        self._plan = self._route.plan = _OneEpisode(spec, self._mint, cancel)
        (self._group,) = make_groups(1, capabilities)
        self._loop: GroupLoop | None = None
        self._pause: Operation | None = None
        self._last: ResetReply | StepReply | None = None
        self._queue: deque[QueuedFrame] = deque()
        self._hand_engine = self._engine(cancel, 1)
        self._ticker = Ticker(
            spec.limits.telemetry_window_s,
            lambda: self._push_window(self._route),
            self._look,
            self._clock,
        )
        self._is_forgotten = is_forgotten
        self.is_over = False
        try:
            self._ticker.start()
            self._route.announcer.session_started()
        except KeyboardInterrupt:
            self._give_up(self._interrupted())
        except BaseException as error:  # noqa: BLE001 - raised again once all is shut down
            self._give_up(error)

    @property
    def is_running(self) -> bool:
        """Whether an episode is under way."""
        return self._pause is not None

    @property
    def summaries(self) -> tuple[EpisodeSummary, ...]:
        """The episodes that ended so far, an interrupted one with that word as its error."""
        return self._route.summaries

    def reset(self, *, seed: int | None, options: Info | None) -> Turned:
        """Begin an episode; one under way is marked interrupted and evicted."""
        self._interrupt()
        self._queue.clear()
        self._plan.ask(seed, options)
        self._loop = group_loop(self._route, self._group)
        self._turn(None)
        return Turned(observation=self._reply.observation, info=self._reply.infos[0])

    def predict(self) -> QueuedFrame:
        """Return the action to come: the next of the queue, else the first of a new chunk."""
        pause = self._pause
        assert pause is not None  # noqa: S101 - `is_running`
        if not self._queue:
            operation = self._pauses.predict_at(pause)
            try:
                reply = self._perform(operation)
                lane = self._group.lanes[0]
                self._queue.extend(self._route.take_chunk(lane, operation, reply))
            except RouteError as error:
                self._throw(error)
            except KeyboardInterrupt:
                self._throw(self._interrupted())
        return self._queue[0]

    def step(self, action: Leaves | None) -> Turned:
        """Apply an action of one row, which drops the queue, or with None the one to come."""
        if action is None:
            self.predict()
            frame = self._queue.popleft()
        else:
            self._queue.clear()
            frame = QueuedFrame(action, 0, 1)
        self._route.ending = None
        self._turn(frame)
        reply, ending = self._reply, self._route.ending
        assert isinstance(reply, StepReply)  # noqa: S101 - a step was the last to be performed
        if ending is None:
            return Turned(
                observation=reply.observation, info=reply.infos[0], reward=reply.rewards[0]
            )
        last = ending.final_observation
        return Turned(
            observation=reply.observation if last is None else last,
            info=ending.final_info,
            reward=reply.rewards[0],
            terminated=ending.terminated,
            truncated=ending.truncated,
        )

    def finish(self) -> RouteReport:
        """End the session: shut down, `session_ended`, final telemetry, report."""
        self._dispatcher.is_over = True
        self._interrupt()
        self.is_over = True
        self._shut_down(self._route, self._hand_engine, CLOSED)
        return self._succeed(self._route, self._ticker, CLOSED)

    # ------------------------------------------------------------------------------ inside

    @property
    def _reply(self) -> ResetReply | StepReply:
        assert self._last is not None  # noqa: S101 - a reset came first
        return self._last

    def _turn(self, sent: Any) -> None:
        """Let the loop run to its next pause or its end."""
        loop = self._loop
        assert loop is not None  # noqa: S101 - made by `reset`
        self._pause = None
        try:
            if sent is None:  # the first turn: nothing is sent after a cancel
                self._route.check_cancel(self._group)
            operation = loop.send(sent)
            while operation.method != _CHOOSE:
                try:
                    reply = self._perform(operation)
                except RouteError as error:
                    operation = loop.throw(error)
                else:
                    if isinstance(reply, (ResetReply, StepReply)):
                        self._last = reply
                    operation = loop.send(reply)
        except StopIteration:
            return
        except KeyboardInterrupt:
            self._give_up(self._interrupted())
        except BaseException as error:  # noqa: BLE001 - told to the hooks and raised again
            self._give_up(error)
        self._pause = operation

    def _perform(self, operation: Operation) -> Any:
        replies: list[Any] = []
        task = Task(
            _once(operation, replies),
            lambda op, exc: self._task(self._route, self._group).explain(op, exc),
        )
        self._hand_engine.run([task])
        return replies[0] if replies else None

    def _look(self) -> None:
        """Name what is overdue, until the session is forgotten; called from the ticker."""
        if not self.is_over and self._is_forgotten():
            self.is_over = True
            self._ticker.stop(0.0)
        else:
            self._hand_engine.overdue()

    def _interrupted(self) -> RouteCancelled:
        """Return what a Ctrl-C outside of user code comes to."""
        cancelled = RouteCancelled(INTERRUPTED, route=self._spec.env_id, step=self._group.step)
        cancelled.__suppress_context__ = True  # a Ctrl-C prints one traceback, not two
        return cancelled

    def _throw(self, error: RouteError) -> NoReturn:
        """Have the loop spoil its episode, and end the session."""
        loop, self._pause = self._loop, None
        assert loop is not None  # noqa: S101 - made by `reset`
        try:
            loop.throw(error)
        except BaseException as raised:  # noqa: BLE001 - told to the hooks and raised again
            self._give_up(raised)
        self._give_up(error)

    def _give_up(self, error: BaseException) -> NoReturn:
        self.is_over = True
        self._pause = None
        self._fail(self._route, self._hand_engine, self._ticker, error)

    def _interrupt(self) -> None:
        """End an episode under way without counting it."""
        if self._pause is None:
            return
        self._pause = None
        if self._loop is not None:
            self._loop.close()
        evict = self._pauses.evict(self._route.spoil(self._group, INTERRUPTED, goes_on=True))
        if evict is not None:
            self._perform(evict)


def _once(operation: Operation, replies: list[Any]) -> GroupLoop:
    replies.append((yield operation))
