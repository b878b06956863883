"""Dynamic batching: requests of many routes, answered by one call of the model (layer 6).

    model = BatchingModel(port, 64, observation_space=…, action_space=…)
    model.submit("predict", request, callback, ())

When the model is free, what waits for it goes together: at once where the batch is full or no
further row is worth a wait, else as soon as it is. How long that is, is learned (`batch_wait.py`),
or fixed. The next batch is collected while the model is busy with this one. Routes take turns, so
that one with many lanes does not crowd out the others. A lone client never waits.

To the port all of this is one route. Routes that must not see each other are safe here: one can
only end its own episodes.
"""

from __future__ import annotations

import bisect
import copy
import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec

from rollmesh.endpoint.models.batch_wait import FixedWait, LearnedWait, WaitPolicy
from rollmesh.endpoint.models.private_rows import Slab, SlabMaker, gather_private
from rollmesh.endpoint.models.submitting import SubmittingModel
from rollmesh.endpoint.own_thread import OwnThread
from rollmesh.errors import EndpointFault, InvalidSpec, PortTimeout, SessionLost
from rollmesh.ports import (
    AdapterContext,
    Callback,
    ModelPort,
    PredictReply,
    PredictRequest,
    ReleaseAdapterRequest,
    ResetAdapterRequest,
)
from rollmesh.spaces.space import Space

_logger = logging.getLogger(__name__)
_now_ns = time.perf_counter_ns

_BATCH = "batch"
_GONE = (PortTimeout, SessionLost)
"""Failures that asking once more would only repeat."""

_Route: TypeAlias = tuple[str, str]


class _Waiting(msgspec.Struct, gc=False):
    """A request that waits for its batch."""

    request: PredictRequest
    callback: Callback
    arrived_ns: int
    slab: Slab | None = None
    place: int = 0


class BatchingModel(SubmittingModel):
    """A model port (`SubmitsOperations`) that puts requests together; see the module.

    Args:
        port: The model; called on one thread.
        max_batch: Rows of one call at most; a request with more goes alone.
        max_wait_s: How long a batch may wait once the model is free, in seconds; None learns it
            from arrivals and from what a call costs.
        observation_space: Space of one row's observation.
        action_space: Space of one row's action.
        thread: The thread to call the model on; its owner stops it. None: one of its own.
        bucket_sizes: The numbers of rows that the model is called with, ascending, as for a
            compiled one: a batch is filled up with its last row, and what comes of that is dropped.
            The largest bounds `max_batch`. None calls it with as many rows as there are.

    Attributes:
        batches: Calls of the model so far.
        rows: Rows of them.

    Raises:
        InvalidSpec: `bucket_sizes` are not ascending whole numbers above zero.
    """

    def __init__(
        self,
        port: ModelPort,
        max_batch: int = 64,
        max_wait_s: float | None = None,
        *,
        observation_space: Space,
        action_space: Space,
        thread: OwnThread | None = None,
        bucket_sizes: Sequence[int] | None = None,
    ) -> None:
        self.batches = 0
        self.rows = 0
        self._port = port
        self._sizes = _checked_sizes(bucket_sizes)
        self._max_batch = min(max_batch, self._sizes[-1]) if self._sizes else max_batch
        self._wait_policy: WaitPolicy = (
            LearnedWait(self._max_batch, self._sizes)
            if max_wait_s is None
            else FixedWait(int(max_wait_s * 1e9))
        )
        self._observations = observation_space.codec
        self._actions = action_space.codec
        self._slabs = SlabMaker(self._observations)
        self._slab: Slab | None = None
        self._owns_thread = thread is None
        self._thread = thread or OwnThread("rollmesh-batching")
        self._lock = threading.Lock()
        self._more = threading.Condition(self._lock)
        self._queues: OrderedDict[_Route, deque[_Waiting]] = OrderedDict()
        self._waiting_rows = 0
        self._is_scheduled = False
        self._is_collecting = False
        self._took: list[tuple[int, int]] = []
        """Rows of the latest calls, and their times, that the wait policy does not know of yet."""
        self._wanted_rows = 0
        self._owners: dict[str, _Route] = {}
        """The route of each episode."""
        self._routes: set[_Route] = set()

    # --------------------------------------------------------------------- SubmitsOperations

    def submit(
        self, method: str, request: Any, callback: Callback, env_indices: tuple[int, ...]
    ) -> None:
        """Start `method(request)` and return at once."""
        del env_indices  # a model has no lanes
        if method == "predict":
            self._enqueue(request, callback)
            return
        route = _route_of(request.context)
        with self._lock:
            if method == "reset_adapter":
                mine = [one for one in request.episode_ids if self._owners.get(one) == route]
                self._wait_policy.ended(route, mine, _now_ns())
            else:
                mine = self._episodes_of(route)
                self._wait_policy.released(route, mine)
            if self._is_collecting:
                self._more.notify()  # there is less to wait for
        end = self._reset if method == "reset_adapter" else self._release
        self._thread.submit(end, callback, request)

    def abandon(self, env_indices: tuple[int, ...] = ()) -> None:
        """Leave the call under way behind; where the thread is shared, its owner decides."""
        del env_indices
        if self._owns_thread:
            self._thread.abandon()

    def close(self) -> None:
        """End the thread, if it is our own."""
        if self._owns_thread:
            self._thread.stop()

    def _enqueue(self, request: PredictRequest, callback: Callback) -> None:
        route = _route_of(request.context)
        for info in request.episode_info:
            owner = self._owners.setdefault(info.episode_id, route)
            if owner != route:
                callback(_not_yours(info.episode_id))
                return
        episode_ids = [info.episode_id for info in request.episode_info]
        at_ns = _now_ns()
        waits = _Waiting(request, callback, at_ns)
        if self._slabs.is_worth_it and len(self._owners) > 1:
            self._copy_early(waits)
        with self._lock:
            self._wait_policy.asked(route, episode_ids, at_ns)
            waiting = self._queues.get(route)
            if waiting is None:
                waiting = self._queues[route] = deque()
            self._routes.add(route)
            waiting.append(waits)
            self._waiting_rows += len(episode_ids)
            if self._is_collecting and self._waiting_rows >= self._wanted_rows:
                self._more.notify()
            if self._is_scheduled:
                return
            self._is_scheduled = True
        self._schedule()

    def _copy_early(self, waits: _Waiting) -> None:
        """Copy a request's large leaves to where the next batch will want them."""
        request, rows = waits.request, len(waits.request.episode_info)
        with self._lock:
            slab = self._slab
            if slab is None:
                # more than have asked so far: some episodes end meanwhile, and others follow
                room = min(2 * len(self._owners), self._max_batch)
                slab = self._slab = self._slabs.make(self._padded(room))
            place = slab.reserve(rows)
        if place is not None:
            slab.copy(request.observation, rows, place)
            waits.slab, waits.place = slab, place

    def _schedule(self) -> None:
        try:
            self._thread.submit(self._turn, _told)
        except RuntimeError as exc:
            self._fail_all(exc)

    # -------------------------------------------------------------------- on the model's thread

    def _turn(self) -> None:
        """Collect one batch and give it to the model."""
        with self._lock:
            for rows, duration_ns in self._took:  # only now: nobody waits for this here
                self._wait_policy.took(rows, duration_ns)
            self._took.clear()
            self._collect()
            batch = self._take()
        try:
            if batch:
                self._forward(batch)
        finally:  # else nothing is ever asked again
            with self._lock:
                self._is_scheduled = bool(self._queues)
                is_more = self._is_scheduled
            if is_more:
                self._schedule()

    def _collect(self) -> None:
        """Wait until the batch should go; under the lock."""
        self._is_collecting = True
        try:
            while self._queues and self._waiting_rows < self._max_batch:
                oldest_ns = min([waiting[0].arrived_ns for waiting in self._queues.values()])
                pause = self._wait_policy.pause(self._waiting_rows, oldest_ns, _now_ns())
                if pause is None:
                    return
                self._wanted_rows = min(pause.rows, self._max_batch)
                self._more.wait(pause.ns * 1e-9)
        finally:
            self._is_collecting = False

    def _take(self) -> list[_Waiting]:
        """Take a batch, a request of each route in turn; under the lock."""
        batch: list[_Waiting] = []
        rows = 0
        horizon: int | None = None
        turns = len(self._queues)
        while self._queues and turns:
            route, waiting = next(iter(self._queues.items()))
            request = waiting[0].request
            more = len(request.episode_info)
            fits = rows + more <= self._max_batch and request.execution_horizon == horizon
            self._queues.move_to_end(route)
            if batch and not fits:
                turns -= 1
                continue
            batch.append(waiting.popleft())
            rows += more
            horizon = request.execution_horizon
            turns = len(self._queues)
            if not waiting:
                del self._queues[route]
        self._waiting_rows -= rows
        self._slab = None  # rows that come from now on are of the next batch
        return batch

    def _forward(self, batch: list[_Waiting]) -> None:
        """Ask the model, once; where that fails, ask it for each request alone."""
        started_ns = _now_ns()
        rows = sum([len(one.request.episode_info) for one in batch])
        try:
            reply: Any = self._port.predict(self._merged(batch, rows))
        except BaseException as exc:  # noqa: BLE001 - given to the caller
            if len(batch) > 1 and not isinstance(exc, _GONE):  # one bad row must not spoil others
                _logger.info("batch_failed rows=%d error=%r detail=each goes alone", rows, exc)
                for one in batch:
                    self._forward([one])
                return
            reply = exc
        self.batches += 1
        self.rows += rows
        try:
            with self._lock:
                self._wait_policy.answered(
                    [one.episode_id for waits in batch for one in waits.request.episode_info],
                    _now_ns(),
                )
            answers = self._answers(reply, batch)
        except Exception as exc:  # noqa: BLE001 - as a reply that is none: given to the callers
            answers = _each(exc, batch)
        _hand_out(answers, batch)
        self._took.append((rows, _now_ns() - started_ns))

    def _answers(self, reply: Any, batch: list[_Waiting]) -> list[Any]:
        """Return what each request of a batch gets: its rows, or what was raised."""
        if isinstance(reply, BaseException):
            return _each(reply, batch)
        parts: list[Any] = []
        start = 0
        for one in batch:
            stop = start + len(one.request.episode_info)
            parts.append(self._part(reply, one.request, range(start, stop)))
            start = stop
        return parts

    def _merged(self, batch: list[_Waiting], rows: int) -> PredictRequest:
        """Return one request for a batch, filled up to one of the sizes if there are any."""
        slab = _slab_of(batch)  # sorts the batch by place
        requests = [one.request for one in batch]
        first = requests[0]
        observation, infos = first.observation, first.episode_info
        missing = self._padded(rows) - rows
        if missing or len(batch) > 1:
            pairs = [
                (request.observation, row)
                for request in requests
                for row in range(len(request.episode_info))
            ]
            merged = [info for request in requests for info in request.episode_info]
            copied = None if slab is None else slab.finish(pairs, missing)
            observation = copied or gather_private(self._observations, pairs + pairs[-1:] * missing)
            infos = tuple(merged + merged[-1:] * missing)
        limits_ms = [request.timeout_ms for request in requests]
        return PredictRequest(
            context=AdapterContext(_BATCH, _BATCH, f"{_BATCH}:{self.batches + 1:06d}"),
            observation=observation,
            episode_info=infos,
            timeout_ms=max(limits_ms) if all(limits_ms) else 0,
            execution_horizon=first.execution_horizon,
        )

    def _padded(self, rows: int) -> int:
        place = bisect.bisect_left(self._sizes, rows)
        return self._sizes[place] if place < len(self._sizes) else rows

    def _part(self, reply: PredictReply, request: PredictRequest, rows: range) -> PredictReply:
        """Return the rows of a reply that belong to a request."""
        take, nbytes = self._actions.take, self._actions.nbytes
        count = len(rows)
        frames = tuple([take(frame, rows) for frame in reply.frames])
        return PredictReply(
            context=request.context,
            frames=frames,
            endpoint_total_ns=reply.endpoint_total_ns,
            request_bytes=self._observations.nbytes(request.observation, count),
            response_bytes=sum([nbytes(frame, count) for frame in frames]),
        )

    # ------------------------------------------------------------------------------ episodes

    def _reset(self, request: ResetAdapterRequest) -> None:
        route = _route_of(request.context)
        self._end([one for one in request.episode_ids if self._owners.get(one) == route])

    def _release(self, request: ReleaseAdapterRequest) -> None:
        route = _route_of(request.context)
        self._drop_waiting(route)
        self._routes.discard(route)
        try:
            self._end(self._episodes_of(route))
        finally:
            if not self._routes:
                context = AdapterContext(_BATCH, _BATCH, f"{_BATCH}:release")
                self._port.release_adapter(
                    ReleaseAdapterRequest(context, request.reason, request.timeout_s)
                )

    def _episodes_of(self, route: _Route) -> list[str]:
        return [one for one, owner in list(self._owners.items()) if owner == route]

    def _end(self, episode_ids: Sequence[str]) -> None:
        """Have the model forget these episodes."""
        for episode_id in episode_ids:
            self._owners.pop(episode_id, None)
        if episode_ids:
            context = AdapterContext(_BATCH, _BATCH, f"{_BATCH}:reset")
            self._port.reset_adapter(ResetAdapterRequest(context, tuple(episode_ids)))

    def _drop_waiting(self, route: _Route) -> None:
        with self._lock:
            dropped = self._queues.pop(route, deque[_Waiting]())
            self._waiting_rows -= sum(len(one.request.episode_info) for one in dropped)
        for one in dropped:
            one.callback(EndpointFault("the route was released", outcome="not_done"))

    def _fail_all(self, exc: BaseException) -> None:
        with self._lock:
            waiting = [one for queued in self._queues.values() for one in queued]
            self._queues.clear()
            self._waiting_rows = 0
            self._is_scheduled = False
        for one in waiting:
            one.callback(EndpointFault(str(exc), outcome="not_done"))


def _each(exc: BaseException, batch: list[_Waiting]) -> list[Any]:
    """Return an exception for each request: a copy, for each is raised and told of on its own."""
    return [exc if one is batch[-1] else _copy_of(exc) for one in batch]


def _copy_of(exc: BaseException) -> BaseException:
    try:
        return copy.copy(exc)
    except Exception:  # noqa: BLE001 - one whose constructor takes other arguments
        return exc


def _hand_out(answers: list[Any], batch: list[_Waiting]) -> None:
    """Call all back in one go: the first wakes another thread, which then finds all of them."""
    for one, answer in zip(batch, answers, strict=True):
        try:
            one.callback(answer)
        except Exception:  # the others are called back all the same
            _logger.exception("callback_failed")


def _slab_of(batch: list[_Waiting]) -> Slab | None:
    """Return the slab that holds this batch and nothing before it, and bring it into that order."""
    slab = batch[0].slab
    if slab is None or any([one.slab is not slab for one in batch]):
        return None
    ordered = sorted(batch, key=_place)
    place = 0
    for one in ordered:
        if one.place != place:
            return None
        place += len(one.request.episode_info)
    batch[:] = ordered
    return slab


def _checked_sizes(sizes: Sequence[int] | None) -> tuple[int, ...]:
    sizes = tuple(sizes or ())
    if list(sizes) != sorted(set(sizes)) or (sizes and sizes[0] < 1):
        raise InvalidSpec("bucket_sizes", f"wants ascending whole numbers from 1, got {sizes}")
    return sizes


def _route_of(context: AdapterContext) -> _Route:
    return context.session_id, context.env_id


def _not_yours(episode_id: str) -> EndpointFault:
    return EndpointFault(
        f"episode {episode_id[:80]!r} belongs to another route", outcome="not_done"
    )


def _place(waits: _Waiting) -> int:
    return waits.place


def _told(result: Any) -> None:
    if isinstance(result, BaseException):
        _logger.error("batching_failed error=%r", result)


_: type[ModelPort] = BatchingModel
