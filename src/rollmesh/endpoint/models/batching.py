"""Dynamic batching: requests of many routes, answered by one call of the model (layer 6).

    model = BatchingModel(port, 64, 0.005, observation_space=…, action_space=…)
    model.submit("predict", request, callback, ())

Requests wait until the batch is full, every live episode waits, or the oldest of them has waited
for `max_wait_s`; then they go to the model together. The next batch is collected while the model is
busy with this one. Routes take turns, so that one with many lanes does not crowd out the others.

Live are the episodes that asked for something within the last second and are not over: a lone
client never waits.

A port whose routes must not see each other is safe here: a route can only end its own episodes.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import OrderedDict, deque
from typing import Any, TypeAlias

import msgspec

from rollmesh.endpoint.own_thread import OwnThread
from rollmesh.endpoint.servers.watchdog import now_ns
from rollmesh.errors import EndpointFault
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

LIVE_NS = 1_000_000_000
_BATCH = AdapterContext("batch", "batch", "batch")

_Route: TypeAlias = tuple[str, str]


class _Waiting(msgspec.Struct, gc=False):
    """A request that waits for its batch."""

    request: PredictRequest
    callback: Callback
    arrived_ns: int


class BatchingModel:
    """A model port (`SubmitsOperations`) that puts requests together; see the module.

    Args:
        port: The model; called on one thread.
        max_batch: Rows of one call at most; a request with more goes alone.
        max_wait_s: How long the first request of a batch may wait, in seconds.
        observation_space: Space of one row's observation.
        action_space: Space of one row's action.
        thread: The thread to call the model on; its owner stops it. None: one of its own.

    Attributes:
        batches: Calls of the model so far.
        rows: Rows of them.
    """

    def __init__(
        self,
        port: ModelPort,
        max_batch: int,
        max_wait_s: float,
        *,
        observation_space: Space,
        action_space: Space,
        thread: OwnThread | None = None,
    ) -> None:
        self.batches = 0
        self.rows = 0
        self._port = port
        self._max_batch = max_batch
        self._max_wait_ns = int(max_wait_s * 1e9)
        self._observations = observation_space.codec
        self._actions = action_space.codec
        self._owns_thread = thread is None
        self._thread = thread or OwnThread("rollmesh-batching")
        self._lock = threading.Lock()
        self._more = threading.Condition(self._lock)
        self._queues: OrderedDict[_Route, deque[_Waiting]] = OrderedDict()
        self._waiting_rows = 0
        self._is_scheduled = False
        self._is_collecting = False
        # episodes by id: the route each belongs to, and when it last asked
        self._owners: dict[str, _Route] = {}
        self._asked_ns: dict[str, int] = {}
        self._routes: set[_Route] = set()

    # ----------------------------------------------------------------------------- ModelPort

    def predict(self, request: PredictRequest) -> PredictReply:
        """Wait for the answer to a request, which may share its batch."""
        return self._wait("predict", request)

    def reset_adapter(self, request: ResetAdapterRequest) -> None:
        """End episodes of this route; those of others are left alone."""
        self._wait("reset_adapter", request)

    def release_adapter(self, request: ReleaseAdapterRequest) -> None:
        """End the episodes of this route, and the model's own adapter with the last route."""
        self._wait("release_adapter", request)

    def _wait(self, method: str, request: Any) -> Any:
        arrived: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.submit(method, request, arrived.put, ())
        result = arrived.get()
        if isinstance(result, BaseException):
            raise result
        return result

    # --------------------------------------------------------------------- SubmitsOperations

    def submit(
        self, method: str, request: Any, callback: Callback, env_indices: tuple[int, ...]
    ) -> None:
        """Start `method(request)` and return at once."""
        del env_indices  # a model has no lanes
        if method == "predict":
            self._enqueue(request, callback)
        elif method == "reset_adapter":
            self._thread.submit(self._reset, callback, request)
        else:
            self._thread.submit(self._release, callback, request)

    def abandon(self, env_indices: tuple[int, ...]) -> None:
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
        with self._lock:
            waiting = self._queues.get(route)
            if waiting is None:
                waiting = self._queues[route] = deque()
            self._routes.add(route)
            waiting.append(_Waiting(request, callback, now_ns()))
            self._waiting_rows += len(request.episode_info)
            if self._is_collecting:
                self._more.notify()
            if self._is_scheduled:
                return
            self._is_scheduled = True
        self._schedule()

    def _schedule(self) -> None:
        try:
            self._thread.submit(self._turn, _told)
        except RuntimeError as exc:
            self._fail_all(exc)

    # -------------------------------------------------------------------- on the model's thread

    def _turn(self) -> None:
        """Collect one batch and give it to the model."""
        with self._lock:
            self._collect()
            batch = self._take()
        if batch:
            self._forward(batch)
        with self._lock:
            self._is_scheduled = bool(self._queues)
            is_more = self._is_scheduled
        if is_more:
            self._schedule()

    def _collect(self) -> None:
        """Wait until the batch should go; under the lock."""
        live = self._live()
        self._is_collecting = True
        try:
            while self._queues and self._waiting_rows < min(self._max_batch, live):
                oldest_ns = min(waiting[0].arrived_ns for waiting in self._queues.values())
                left_ns = oldest_ns + self._max_wait_ns - now_ns()
                if left_ns <= 0:
                    return
                self._more.wait(left_ns / 1e9)
        finally:
            self._is_collecting = False

    def _live(self) -> int:
        """Return the rows that may come: of episodes that asked lately."""
        since_ns = now_ns() - LIVE_NS
        return sum([at_ns >= since_ns for at_ns in self._asked_ns.values()])

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
        return batch

    def _forward(self, batch: list[_Waiting]) -> None:
        at_ns = now_ns()
        for one in batch:
            for info in one.request.episode_info:
                if info.episode_id in self._owners:
                    self._asked_ns[info.episode_id] = at_ns
        if len(batch) == 1:
            self._forward_one(batch[0])
            return
        try:
            reply = self._port.predict(self._merged(batch))
        except BaseException as exc:  # noqa: BLE001 - one bad row must not spoil the others
            _logger.info("batch_failed rows=%d error=%r detail=each goes alone", len(batch), exc)
            for one in batch:
                self._forward_one(one)
            return
        self._count(sum(len(one.request.episode_info) for one in batch))
        start = 0
        for one in batch:
            rows = len(one.request.episode_info)
            one.callback(self._part(reply, one.request, range(start, start + rows)))
            start += rows

    def _forward_one(self, one: _Waiting) -> None:
        try:
            result: Any = self._port.predict(one.request)
        except BaseException as exc:  # noqa: BLE001 - given to the caller
            result = exc
        self._count(len(one.request.episode_info))
        one.callback(result)

    def _count(self, rows: int) -> None:
        self.batches += 1
        self.rows += rows

    def _merged(self, batch: list[_Waiting]) -> PredictRequest:
        requests = [one.request for one in batch]
        pairs = [
            (request.observation, row)
            for request in requests
            for row in range(len(request.episode_info))
        ]
        return PredictRequest(
            context=_BATCH,
            observation=self._observations.gather(pairs),
            episode_info=tuple([info for request in requests for info in request.episode_info]),
            execution_horizon=requests[0].execution_horizon,
        )

    def _part(self, reply: PredictReply, request: PredictRequest, rows: range) -> PredictReply:
        """Return the rows of a reply that belong to a request."""
        take, nbytes = self._actions.take, self._actions.nbytes
        count = len(rows)
        frames = tuple([take(frame, rows) for frame in reply.frames])
        return PredictReply(
            context=request.context,
            frames=frames,
            request_bytes=self._observations.nbytes(request.observation, count),
            response_bytes=sum([nbytes(frame, count) for frame in frames]),
        )

    # ------------------------------------------------------------------------------ episodes

    def _reset(self, request: ResetAdapterRequest) -> None:
        route = _route_of(request.context)
        ended = tuple([one for one in request.episode_ids if self._owners.get(one) == route])
        self._forget(ended)
        if ended:
            self._port.reset_adapter(ResetAdapterRequest(request.context, ended))

    def _release(self, request: ReleaseAdapterRequest) -> None:
        route = _route_of(request.context)
        self._drop_waiting(route)
        held = tuple([one for one, owner in self._owners.items() if owner == route])
        self._forget(held)
        self._routes.discard(route)
        try:
            if held:
                self._port.reset_adapter(ResetAdapterRequest(request.context, held))
        finally:
            if not self._routes:
                self._port.release_adapter(
                    ReleaseAdapterRequest(_BATCH, request.reason, request.timeout_s)
                )
            self._port.release_adapter(request)

    def _forget(self, episode_ids: tuple[str, ...]) -> None:
        for episode_id in episode_ids:
            self._owners.pop(episode_id, None)
            self._asked_ns.pop(episode_id, None)

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


def _route_of(context: AdapterContext) -> _Route:
    return context.session_id, context.env_id


def _not_yours(episode_id: str) -> EndpointFault:
    return EndpointFault(
        f"episode {episode_id[:80]!r} belongs to another route", outcome="not_done"
    )


def _told(result: Any) -> None:
    if isinstance(result, BaseException):
        _logger.error("batching_failed error=%r", result)


_: type[ModelPort] = BatchingModel
