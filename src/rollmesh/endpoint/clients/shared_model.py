"""A served model that several groups of lanes ask at the same time (layer 6).

The port has a thread that receives. It makes the route known to the server before its first
predict, and again in every new session; what is asked meanwhile waits for that.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from typing import Any

from rollmesh.endpoint.clients.model_route import ModelBinding
from rollmesh.endpoint.clients.shared_session import SharedSession, nothing, wait_for
from rollmesh.errors import EndpointFault, PortTimeout
from rollmesh.limits import timeout_ms
from rollmesh.ports import (
    AdapterContext,
    Callback,
    PredictReply,
    PredictRequest,
    ReleaseAdapterRequest,
    ResetAdapterRequest,
)
from rollmesh.runtime.cancel import CancelToken
from rollmesh.wire.messages import Kind, Message

_PREDICT = Kind.PREDICT


class SharedModelPort:
    """Drives a served model for several groups; replies come back on a thread of the session.

    A server takes only so many requests at once: others wait here.
    """

    def __init__(self, session: SharedSession, told: ModelBinding) -> None:
        self.address = told.address
        self._session = session
        self._told = told
        self._lock = threading.Lock()
        self._waiting: deque[tuple[Kind, Any, Callback]] = deque()
        self._under_way = 0
        self._is_sending = False
        self._resolved: tuple[int, str] = (0, "")
        self._resolving: list[tuple[Kind, Any, Callback]] | None = None

    # ------------------------------------------------------------------- SubmitsOperations

    def submit(
        self,
        method: str,
        request: Any,
        callback: Callback,
        env_indices: tuple[int, ...],  # noqa: ARG002 - a model has no lanes
    ) -> None:
        """Send a request and return at once; `callback` gets the reply or an exception."""
        if method == "predict":
            self._predict(request, callback)
        elif not self._is_current(request.context):
            if method == "release_adapter":
                self._session.start_close(request.reason, request.timeout_s, callback)
            else:
                callback(None)  # a new session has nothing to forget
        elif method == "reset_adapter":
            self._send(Kind.RESET_ADAPTER, request, lambda r: callback(nothing(r)))
        elif method == "release_adapter":
            self._release(request, callback)
        else:
            raise RuntimeError(f"a model has no operation {method!r}")

    def abandon(self, env_indices: tuple[int, ...] = ()) -> None:  # noqa: ARG002 - as above
        """Leave the model behind: it gets no further call, and nothing is called back.

        A request that is handed over just then, or later, opens no other session.
        """
        with self._lock:
            self._waiting.clear()
            self._resolving = None
        self._session.drop()

    def prepare(self, cancel: CancelToken | None) -> None:
        """Make the route known now, not with the first request; before anything is asked.

        Raises:
            EndpointFault: The spaces do not fit, it did not come back within `model_connect_s`, or
                it was cancelled. The session is left.
        """
        route, limit_s = self._told.route, self._told.limits.model_connect_s
        context = AdapterContext(route.session_id, route.env_id, "")
        arrived: queue.SimpleQueue[Any] = queue.SimpleQueue()
        ended = EndpointFault("preparing was ended", error_class="Interrupted", outcome="not_done")
        unsubscribe = None if cancel is None else cancel.subscribe(lambda: arrived.put(ended))
        generation = self._session.generation
        self._session.submit(Kind.RESOLVE, self._told.resolve(context), arrived.put)
        try:
            result = arrived.get(timeout=limit_s)
        except queue.Empty:
            result = PortTimeout(
                f"{self.address} did not prepare within {limit_s:g} s; a model that is at work for "
                "another client, or hangs, takes nobody in: raise limits.model_connect_s"
            )
        finally:
            if unsubscribe is not None:
                unsubscribe()
        if isinstance(result, BaseException):
            self.abandon()
            raise result
        self._resolved = (generation, context.env_id)

    # --------------------------------------------------------------------------- ModelPort

    def predict(self, request: PredictRequest) -> PredictReply:
        """Ask for actions and wait.

        Raises:
            EndpointFault: The model failed, or cannot be reached.
        """
        return wait_for(self, "predict", request, request.timeout_ms)

    def reset_adapter(self, request: ResetAdapterRequest) -> None:
        """Have ended episodes forgotten, and wait.

        Raises:
            EndpointFault: As `predict`.
        """
        wait_for(self, "reset_adapter", request, timeout_ms(self._told.limits.close_s))

    def release_adapter(self, request: ReleaseAdapterRequest) -> None:
        """Have the route forgotten, end the session, and wait.

        Raises:
            EndpointFault: As `predict`.
        """
        wait_for(self, "release_adapter", request, timeout_ms(request.timeout_s))

    # ------------------------------------------------------------------------------- inside

    def _is_current(self, context: AdapterContext) -> bool:
        return not self._session.is_lost and self._resolved == (
            self._session.generation,
            context.env_id,
        )

    def _predict(self, request: PredictRequest, callback: Callback) -> None:
        def land(result: Any) -> None:
            if isinstance(result, Message):
                result = self._told.reply_of(request, result)
            callback(result)

        item = (_PREDICT, request, land)
        with self._lock:
            if self._resolving is not None:
                self._resolving.append(item)
                return
            is_known = self._is_current(request.context)
            if not is_known:
                self._resolving = [item]
        if is_known:
            self._send(*item)
        elif self._session.is_lost:
            limit_s = self._told.limits.model_connect_s
            self._session.start_reopen(
                limit_s, lambda r: self._resolve(request.context, r), after_drop=False
            )
        else:
            self._resolve(request.context, None)

    def _resolve(self, context: AdapterContext, failure: Any) -> None:
        """Make the route known, then send what waits for that."""
        if failure is not None:
            self._resolution(context, 0, failure)
            return
        self._session.submit(
            Kind.RESOLVE,
            self._told.resolve(context),
            lambda r: self._resolution(context, self._session.generation, r),
        )

    def _resolution(self, context: AdapterContext, generation: int, result: Any) -> None:
        with self._lock:
            items, self._resolving = self._resolving or [], None
            if isinstance(result, Message):
                self._resolved = (generation, context.env_id)
        for kind, request, land in items:
            if isinstance(result, Message):
                self._send(kind, request, land)
            else:
                land(result)

    def _release(self, request: ReleaseAdapterRequest, callback: Callback) -> None:
        def released(result: Any) -> None:
            failure = nothing(result)
            self._session.start_close(
                request.reason, request.timeout_s, lambda r: callback(failure or r)
            )

        self._send(Kind.RELEASE_ADAPTER, request, released)

    def _send(self, kind: Kind, request: Any, callback: Callback) -> None:
        with self._lock:
            self._waiting.append((kind, request, callback))
        self._send_waiting()

    def _send_waiting(self) -> None:
        """Send what waits, as far as the server takes it; a call within it leaves that to it."""
        while True:
            with self._lock:
                if self._is_sending:
                    return
                if not self._waiting or self._under_way >= self._told.most_under_way:
                    return
                kind, request, callback = self._waiting.popleft()
                self._under_way += 1
                self._is_sending = True
            try:
                self._session.submit(kind, request, self._landing(callback))
            finally:
                self._is_sending = False

    def _landing(self, callback: Callback) -> Callback:
        def landed(result: Any) -> None:
            with self._lock:
                self._under_way -= 1
            self._send_waiting()
            callback(result)

        return landed
