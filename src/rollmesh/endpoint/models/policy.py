"""The model port over a policy in this process (layer 6, rules R10, R12, R17, R24, R49, R50).

`LocalModel` decodes observation rows, asks the corner of the policy that fits, and encodes what it
returned as frames. It tells the policy of the episodes that it sees begin and end. It knows no
thread: `ThreadedModel` runs one on a thread of its own.

Policies get copies and may write into them; frames are copies too. Where the chunks of several
rows differ in length (a chunk corner served row by row), all are cut to the shortest: what was cut
is planned again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rollmesh.endpoint.faults import fault_from
from rollmesh.endpoint.models.chunk_shapes import ActionReader, Frames
from rollmesh.endpoint.models.corners import Corner, Corners, EpisodeHook
from rollmesh.endpoint.models.model import EpisodeContext
from rollmesh.endpoint.own_thread import OwnThread
from rollmesh.errors import EndpointFault, InvalidValue
from rollmesh.ports import (
    AdapterContext,
    Callback,
    EpisodeInfo,
    ModelPort,
    PredictReply,
    PredictRequest,
    ReleaseAdapterRequest,
    ResetAdapterRequest,
)
from rollmesh.runtime.seeds import policy_seed
from rollmesh.spaces.codec import Leaves
from rollmesh.spaces.conformance import Checker
from rollmesh.spaces.space import Space


def derived_policy_seed(seed: int | None) -> int | None:
    """Return the policy seed of an episode whose env was seeded with `seed`, in [0, 2**31).

    It depends on that seed alone, so that an episode is the same on any lane and in any order;
    None without a seed.
    """
    return None if seed is None else policy_seed(seed, "", 0)


class LocalModel:
    """A policy as the runtime sees it; called on one thread at a time.

    Episodes are known by their ids: the first predict of an id starts it, an eviction or the
    release of its route ends it, each told to the policy once. An episode whose
    `on_episode_start` raised has not started, and its end is not told.

    Args:
        corners: What the policy can be asked for.
        observation_space: Space of one row's observation.
        checker: What to do with actions outside the action space.
        action_space: Space of one row's action.
        closes: Whether the release of the last route closes the policy.
        policy_seed_of: Gives the policy seed for the seed of an episode.
        observes: False for a policy that ignores what it is given: nothing is decoded for it.

    Every method raises `EndpointFault` for whatever the policy raised or returned wrong.
    """

    def __init__(
        self,
        corners: Corners,
        *,
        observation_space: Space,
        action_space: Space,
        checker: Checker,
        closes: bool = False,
        policy_seed_of: Callable[[int | None], int | None] = derived_policy_seed,
        observes: bool = True,
    ) -> None:
        self._corners = corners
        self._observations = observation_space.codec
        self._actions = action_space.codec
        self._decode: Callable[[Leaves, int], Any] = (
            _copying(observation_space) if observes else _nothing
        )
        self._reader = ActionReader(action_space, checker)
        self._closes = closes
        self._policy_seed_of = policy_seed_of
        self._episodes: dict[str, tuple[EpisodeContext, str]] = {}
        self._routes: set[str] = set()
        self._is_closed = False
        self._plan_row = self._choose_for_row()
        self._plan_rows = self._choose_for_rows()
        self._observation_row_bytes = self._observations.row_bytes
        self._action_row_bytes = self._actions.row_bytes

    @property
    def is_closed(self) -> bool:
        """Whether the policy was closed; it takes no further predict."""
        return self._is_closed

    @property
    def can_batch(self) -> bool:
        """Whether the policy takes several rows in one call."""
        corners = self._corners
        return corners.predict_batch is not None or corners.predict_chunk_batch is not None

    @property
    def episodes(self) -> tuple[str, ...]:
        """Ids of the episodes that have started and not ended."""
        return tuple(self._episodes)

    def load(self) -> None:
        """Load the policy, if it has a `load`."""
        if self._corners.load is not None:
            try:
                self._corners.load()
            except BaseException as exc:
                raise fault_from(exc, where="model.load", outcome="not_done") from exc

    def predict(self, request: PredictRequest) -> PredictReply:
        """Return the policy's frames, a row per row asked.

        Raises:
            EndpointFault: The policy raised, or returned no action of the space.
        """
        infos, observation, horizon = (
            request.episode_info,
            request.observation,
            request.execution_horizon,
        )
        try:
            if len(infos) == 1:
                info = infos[0]
                known = self._episodes.get(info.episode_id)
                context = known[0] if known else self._begin(info, request.context)
                frames = self._plan_row(observation, context, horizon)
            else:
                contexts = tuple([self._context(info, request.context) for info in infos])
                frames = self._plan_rows(observation, contexts, horizon)
        except InvalidValue as exc:
            raise fault_from(exc, where="model.predict", outcome="done") from exc
        except BaseException as exc:
            raise fault_from(exc, where="model.predict") from exc
        return self._reply(request, frames, len(infos))

    def reset_adapter(self, request: ResetAdapterRequest) -> None:
        """End these episodes; ids that never started are skipped.

        Raises:
            EndpointFault: `on_episode_end` raised; the other episodes have been ended all the same.
        """
        self._end(request.episode_ids)

    def release_adapter(self, request: ReleaseAdapterRequest) -> None:
        """End the episodes of this route; close the policy where that is ours and no route is left.

        Raises:
            EndpointFault: `on_episode_end` or `close` raised; all of them were called.
        """
        route = request.context.env_id
        self._routes.discard(route)
        held = tuple(key for key, (_, owner) in self._episodes.items() if owner == route)
        try:
            self._end(held)
        finally:
            if self._closes and not self._routes:
                self.close()

    def close(self) -> None:
        """End what is left, and close the policy where that is ours; later calls do nothing.

        A release does it; this is for a model that no route has used.

        Raises:
            EndpointFault: `on_episode_end` or `close` raised; all of them were called.
        """
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self._end(tuple(self._episodes))
        finally:
            if self._closes and self._corners.close is not None:
                try:
                    self._corners.close()
                except BaseException as exc:
                    raise fault_from(exc, where="model.close") from exc

    # ---------------------------------------------------------------------------- episodes

    def _context(self, info: EpisodeInfo, context: AdapterContext) -> EpisodeContext:
        known = self._episodes.get(info.episode_id)
        return known[0] if known else self._begin(info, context)

    def _begin(self, info: EpisodeInfo, context: AdapterContext) -> EpisodeContext:
        if self._is_closed:
            raise EndpointFault(
                f"model {self._corners.name} is closed; open it again", outcome="not_done"
            )
        episode = EpisodeContext(
            episode_id=info.episode_id, seed=info.seed, policy_seed=self._policy_seed_of(info.seed)
        )
        self._routes.add(context.env_id)
        if self._corners.on_episode_start is not None:
            try:
                self._corners.on_episode_start(episode)
            except BaseException as exc:
                raise fault_from(exc, where="model.on_episode_start") from exc
        self._episodes[info.episode_id] = (episode, context.env_id)
        return episode

    def _end(self, episode_ids: tuple[str, ...]) -> None:
        """Forget these episodes, tell the policy of each, then raise the first failure."""
        hook: EpisodeHook | None = self._corners.on_episode_end
        failure: BaseException | None = None
        for episode_id in episode_ids:
            known = self._episodes.pop(episode_id, None)
            if known is None or hook is None:
                continue
            try:
                hook(known[0])
            except BaseException as exc:  # noqa: BLE001 - raised once all have been told
                failure = failure or exc
        if failure is not None:
            raise fault_from(failure, where="model.on_episode_end") from failure

    # ----------------------------------------------------------------------------- corners

    def _choose_for_row(self) -> Callable[[Leaves, EpisodeContext, int | None], Frames]:
        """Return what plans a single row."""
        c = self._corners
        if c.policy is not None:
            return self._row_either(c.policy)
        if c.predict_chunk is not None:
            return self._row_chunk(c.predict_chunk)
        if c.predict_chunk_batch is None and c.predict is not None:
            return self._row_single(c.predict)
        plan_rows = self._choose_for_rows()
        return lambda observation, context, horizon: plan_rows(observation, (context,), horizon)

    def _choose_for_rows(
        self,
    ) -> Callable[[Leaves, tuple[EpisodeContext, ...], int | None], Frames]:
        """Return what plans any number of rows."""
        c = self._corners
        if c.policy is not None:
            return self._loop(self._row_either(c.policy))
        if c.predict_chunk_batch is not None:
            return self._rows_chunk(c.predict_chunk_batch)
        if c.predict_chunk is not None:
            return self._loop(self._row_chunk(c.predict_chunk))
        if c.predict_batch is not None:
            return self._rows_single(c.predict_batch)
        assert c.predict is not None  # noqa: S101 - `find_corners` returns at least one
        return self._loop(self._row_single(c.predict))

    def _row_single(self, corner: Corner) -> Callable[..., Frames]:
        decode, read = self._decode, self._reader.one

        def plan(
            observation: Leaves, context: EpisodeContext, horizon: int | None, row: int = 0
        ) -> Frames:
            return (read(corner(decode(observation, row), context, horizon), "predict"),)

        return plan

    def _row_chunk(self, corner: Corner) -> Callable[..., Frames]:
        decode, read = self._decode, self._reader.chunk

        def plan(
            observation: Leaves, context: EpisodeContext, horizon: int | None, row: int = 0
        ) -> Frames:
            return read(corner(decode(observation, row), context, horizon), "predict_chunk")

        return plan

    def _row_either(self, corner: Corner) -> Callable[..., Frames]:
        decode, read, name = self._decode, self._reader.either, self._corners.name

        def plan(
            observation: Leaves, context: EpisodeContext, horizon: int | None, row: int = 0
        ) -> Frames:
            return read(corner(decode(observation, row), context, horizon), name)

        return plan

    def _rows_single(self, corner: Corner) -> Callable[..., Frames]:
        decode, read = self._observations.decode_stacked, self._reader.batch

        def plan(
            observation: Leaves, contexts: tuple[EpisodeContext, ...], horizon: int | None
        ) -> Frames:
            rows = len(contexts)
            values = decode(observation, rows, copy=True)
            return (read(corner(values, contexts, horizon), rows, "predict_batch"),)

        return plan

    def _rows_chunk(self, corner: Corner) -> Callable[..., Frames]:
        decode, read = self._observations.decode_stacked, self._reader.chunk_batch

        def plan(
            observation: Leaves, contexts: tuple[EpisodeContext, ...], horizon: int | None
        ) -> Frames:
            rows = len(contexts)
            values = decode(observation, rows, copy=True)
            return read(corner(values, contexts, horizon), rows, "predict_chunk_batch")

        return plan

    def _loop(self, plan_row: Callable[..., Frames]) -> Callable[..., Frames]:
        gather = self._actions.gather

        def plan(
            observation: Leaves, contexts: tuple[EpisodeContext, ...], horizon: int | None
        ) -> Frames:
            chunks = [
                plan_row(observation, context, horizon, row) for row, context in enumerate(contexts)
            ]
            return tuple(
                gather([(leaves, 0) for leaves in frames])
                for frames in zip(*chunks, strict=False)  # the shortest chunk decides
            )

        return plan

    def _reply(self, request: PredictRequest, frames: Frames, rows: int) -> PredictReply:
        row_bytes = self._observation_row_bytes
        asked = (
            self._observations.nbytes(request.observation, rows)
            if row_bytes is None
            else row_bytes * rows
        )
        row_bytes = self._action_row_bytes
        answered = (
            sum(self._actions.nbytes(frame, rows) for frame in frames)
            if row_bytes is None
            else row_bytes * rows * len(frames)
        )
        return PredictReply(
            context=request.context, frames=frames, request_bytes=asked, response_bytes=answered
        )


class ThreadedModel:
    """A model port that lives on a thread of its own (`SubmitsOperations`).

    Called directly, its methods wait for that thread; only a release has a limit then.

    Args:
        model: What was built on that thread.
        thread: The thread.
        owns_thread: Whether the thread ends with the model's release.
    """

    def __init__(self, model: LocalModel, thread: OwnThread, *, owns_thread: bool) -> None:
        self._model = model
        self._thread = thread
        self._owns_thread = owns_thread

    @property
    def thread(self) -> OwnThread:
        """The thread that the model lives on."""
        return self._thread

    @property
    def model(self) -> LocalModel:
        """The model, to be called on its thread only."""
        return self._model

    def predict(self, request: PredictRequest) -> PredictReply:
        return self._thread.call(lambda: self._model.predict(request), None, "predict")

    def reset_adapter(self, request: ResetAdapterRequest) -> None:
        self._thread.call(lambda: self._model.reset_adapter(request), None, "reset_adapter")

    def release_adapter(self, request: ReleaseAdapterRequest) -> None:
        """Release the model, for at most the request's `timeout_s`.

        Raises:
            EndpointFault: `on_episode_end` or `close` raised.
            TimeoutError: The time is up; the model is left behind.
        """
        try:
            self._thread.call(
                lambda: self._release(request), request.timeout_s, "releasing the model"
            )
        except TimeoutError:
            self._thread.abandon()
            raise

    def submit(
        self, method: str, request: Any, callback: Callback, env_indices: tuple[int, ...]
    ) -> None:
        """Start `method(request)` on the model's thread and return at once.

        After `abandon` or the release nothing can be started: the callback gets an
        `EndpointFault` at once.
        """
        del env_indices  # a model has no lanes
        call = self._release if method == "release_adapter" else getattr(self._model, method)
        try:
            self._thread.submit(call, callback, request)
        except RuntimeError as exc:
            callback(fault_from(exc, where=f"model.{method}", outcome="not_done"))

    def abandon(self, env_indices: tuple[int, ...]) -> None:
        """Leave the call under way behind: the model gets no further call, close included."""
        del env_indices
        self._thread.abandon()

    def _release(self, request: ReleaseAdapterRequest) -> None:
        try:
            self._model.release_adapter(request)
        finally:
            if self._owns_thread and self._model.is_closed:
                self._thread.stop()


def _copying(space: Space) -> Callable[[Leaves, int], Any]:
    decode = space.codec.decode
    return lambda leaves, row: decode(leaves, row, copy=True)


def _nothing(leaves: Leaves, row: int) -> None:
    del leaves, row


_: type[ModelPort] = LocalModel
_: type[ModelPort] = ThreadedModel
