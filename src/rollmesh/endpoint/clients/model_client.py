"""A served model as a model port: what the runtime drives in place of a local policy (layer 6).

`connect_model` gives one of two ports. `RemoteModelPort` sends and receives on the calling thread.
`SharedModelPort` has a thread that receives, for a model that several groups of lanes share.

A route is made known to the server (`RESOLVE`) before its first predict: when the port is opened
for it, else by its first request, and again in every new session.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from dataclasses import dataclass, replace
from typing import Any

from rollmesh.endpoint.clients.client_dialing import Door
from rollmesh.endpoint.clients.client_options import ClientOptions, client_options
from rollmesh.endpoint.clients.client_session import MARGIN_S, ClientSession, deadline_s
from rollmesh.endpoint.clients.shared_session import SharedSession, nothing, wait_for
from rollmesh.errors import EndpointFault, PortTimeout
from rollmesh.limits import Limits, timeout_ms
from rollmesh.ports import (
    AdapterContext,
    Callback,
    EnvContract,
    PredictReply,
    PredictRequest,
    ReleaseAdapterRequest,
    ResetAdapterRequest,
)
from rollmesh.runtime.cancel import CancelToken
from rollmesh.transport.address import Address, parse_address
from rollmesh.transport.connection import Connection
from rollmesh.wire.contract import encode_contract
from rollmesh.wire.dialect import MOST_PER_LANE, PREDICT_PER_LANE
from rollmesh.wire.handshake import EDITION
from rollmesh.wire.messages import Kind, Message, Resolve, Welcome

MOST_UNDER_WAY = 8
"""Requests that every server takes from one session at once; see `PREDICT_PER_LANE`."""

_PREDICT = Kind.PREDICT


@dataclass(frozen=True, kw_only=True)
class ModelRoute:
    """The env that a model is asked for.

    Attributes:
        contract: What the env is.
        session_id: The run.
        env_id: The route.
        execution_horizon: How many frames of a chunk are executed, where that is known.
        is_shared: Whether several groups of lanes ask it at the same time.
    """

    contract: EnvContract
    session_id: str = ""
    env_id: str = ""
    execution_horizon: int | None = None
    is_shared: bool = False


class ModelSession:
    """What both kinds of port share: where the model is, and for which env it is asked.

    Args:
        address: Where the model is served.
        route: The env.
        limits: `model_connect_s` bounds connecting and preparing, now and again.

    Attributes:
        most_under_way: Requests that the server takes at once.
    """

    def __init__(self, address: Address, route: ModelRoute, limits: Limits) -> None:
        self.address = address
        self.route = route
        self.limits = limits
        self.most_under_way = MOST_UNDER_WAY
        self._encoded = encode_contract(route.contract)

    def bind(self, connection: Connection, welcome: Welcome) -> None:
        """Tell a connection the spaces, and read what the server takes at once."""
        contract = self.route.contract
        is_wide = welcome.capabilities.get(PREDICT_PER_LANE) == "true"
        lanes = contract.num_envs if is_wide else 0
        self.most_under_way = max(MOST_UNDER_WAY, min(lanes, MOST_PER_LANE))
        connection.framing.bind(contract.observation_space.codec, contract.action_space.codec, None)

    def resolve(self, context: AdapterContext) -> Resolve:
        """Return the request that makes a route known."""
        return Resolve(
            context=AdapterContext(
                context.session_id, context.env_id, f"{context.env_id}:resolve_adapter"
            ),
            contract=self._encoded,
            edition=EDITION,
            execution_horizon=self.route.execution_horizon,
        )

    def reply_of(self, request: PredictRequest, message: Message) -> Any:
        """Return the reply in a message, or the fault where it is none."""
        body = message.body
        if type(body) is not PredictReply:
            return EndpointFault(
                f"the server at {self.address} answered model.predict with a {message.kind.name} "
                "message",
                error_class="ProtocolError",
            )
        body.response_bytes = message.nbytes
        codec = self.route.contract.observation_space.codec
        body.request_bytes = codec.nbytes(request.observation, len(request.episode_info))
        return body


class RemoteModelPort:
    """Drives a served model, on the calling thread.

    Attributes:
        address: Where it is served.
        thread: The thread that its calls may share with an env, or None.
        closes: Whether releasing the adapter ends the session too.
    """

    def __init__(self, session: ClientSession, told: ModelSession, *, closes: bool) -> None:
        self.address = told.address
        self.thread: Any = None
        self.closes = closes
        self._session = session
        self._told = told
        self._call = session.call
        self._resolved: tuple[int, str] = (0, "")
        self._reply_of = told.reply_of
        if told.route.env_id:
            self._prepare(AdapterContext(told.route.session_id, told.route.env_id, ""))

    @property
    def session(self) -> ClientSession:
        """The session under it."""
        return self._session

    def predict(self, request: PredictRequest) -> PredictReply:
        """Ask for actions.

        Raises:
            EndpointFault: The model failed, or cannot be reached (`PortTimeout`, `SessionLost`).
        """
        if self._resolved != (self._session.generation, request.context.env_id) or (
            self._session.is_lost
        ):
            self._prepare(request.context)
        limit_ms = request.timeout_ms
        reply = self._call(_PREDICT, request, limit_ms * 0.001 + MARGIN_S if limit_ms else None)
        body = self._reply_of(request, reply)
        if isinstance(body, EndpointFault):
            raise body
        return body

    def reset_adapter(self, request: ResetAdapterRequest) -> None:
        """Have ended episodes forgotten; in a new session there is nothing to forget.

        Raises:
            EndpointFault: As `predict`.
        """
        if self._is_current(request.context):
            limit_ms = timeout_ms(self._told.limits.close_s)
            self._call(Kind.RESET_ADAPTER, request, deadline_s(limit_ms))

    def release_adapter(self, request: ReleaseAdapterRequest) -> None:
        """Have the route forgotten; ends the session if it was opened for it.

        Raises:
            EndpointFault: As `predict`.
        """
        session = self._session
        try:
            if self._is_current(request.context):
                self._call(Kind.RELEASE_ADAPTER, request, request.timeout_s)
                self._resolved = (0, "")
        finally:
            if self.closes:
                session.close(request.reason, request.timeout_s)

    def close(self, timeout_s: float | None) -> None:
        """End the session.

        Raises:
            EndpointFault: Ending it failed on the other side.
        """
        self._session.close("closed by caller", timeout_s)

    def leave(self) -> None:
        """Let go of the connection, where the thread that calls this was left behind."""
        if self.closes:
            self._session.leave()

    def interrupt(self) -> None:
        """End the call under way at once."""
        self._session.interrupt()

    def forget_interrupt(self) -> None:
        """Forget an interrupt that came too late: before the port is driven again."""
        self._session.forget_interrupt()

    def _is_current(self, context: AdapterContext) -> bool:
        session = self._session
        is_same = self._resolved == (session.generation, context.env_id)
        return is_same and not (session.is_lost or session.is_closed)

    def _prepare(self, context: AdapterContext) -> None:
        session, limit_s = self._session, self._told.limits.model_connect_s
        if session.is_lost:
            session.reopen(limit_s)
        session.call(Kind.RESOLVE, self._told.resolve(context), limit_s)
        self._resolved = (session.generation, context.env_id)


class SharedModelPort:
    """Drives a served model for several groups; replies come back on a thread of the session.

    A server takes only so many requests at once: others wait here.
    """

    def __init__(self, session: SharedSession, told: ModelSession) -> None:
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


class HasModelAddress:
    """Something that stands for a served model (`RemoteModel`).

    Attributes:
        address: Where it is served.
        options: How to connect.
    """

    address: str
    options: ClientOptions


def connect_model(
    address: str | Address,
    route: ModelRoute,
    options: ClientOptions | None = None,
    *,
    limits: Limits | None = None,
    closes: bool = True,
    cancel: CancelToken | None = None,
) -> Any:
    """Connect to a served model and return its port.

    Args:
        address: Where it is served.
        route: The env that it is asked for.
        options: How to connect; the environment's if left out.
        limits: `model_connect_s` bounds connecting and preparing.
        closes: Whether releasing the adapter ends the session.
        cancel: Ends connecting and preparing.

    Raises:
        InvalidSpec: That is no address, or the options do not go with it.
        EndpointFault: Nobody answered in time, the server refused, or it was cancelled.
    """
    where = address if isinstance(address, Address) else parse_address(address)
    limits = limits or Limits()
    told = ModelSession(where, route, limits)
    session = ClientSession(Door(where, "model", options or client_options()), told.bind)
    with session.heeding(cancel):
        session.open(limits.model_connect_s)
        if route.is_shared:
            return SharedModelPort(SharedSession.taking_over(session), told)
        try:
            return RemoteModelPort(session, told, closes=closes)
        except BaseException:
            session.close("preparing failed", limits.close_s)
            raise


def connect_replica(
    address: str,
    route: ModelRoute,
    options: ClientOptions | None,
    *,
    limits: Limits,
    cancel: CancelToken,
) -> SharedModelPort:
    """Connect to one of several that serve the same model; the port knows the route already.

    Raises:
        InvalidSpec: That is no address, or the options do not go with it.
        EndpointFault: As `connect_model`, or the spaces do not fit.
    """
    route = replace(route, is_shared=True)
    port: SharedModelPort = connect_model(address, route, options, limits=limits, cancel=cancel)
    port.prepare(cancel)
    return port
