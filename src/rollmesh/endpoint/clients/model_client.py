"""A served model as a model port: what the runtime drives in place of a local policy (layer 6).

`connect_model` gives one of two ports. `RemoteModelPort` sends and receives on the calling thread.
`SharedModelPort` (`shared_model.py`) has a thread that receives, for a model that several groups of
lanes share.

A route is made known to the server (`RESOLVE`) before its first predict: when the port is opened
for it, else by its first request, and again in every new session.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rollmesh.endpoint.clients.client_dialing import Dialer
from rollmesh.endpoint.clients.client_options import ClientOptions, client_options, in_turn
from rollmesh.endpoint.clients.client_session import MARGIN_S, ClientSession, deadline_s
from rollmesh.endpoint.clients.model_route import ModelBinding, ModelRoute
from rollmesh.endpoint.clients.shared_model import SharedModelPort
from rollmesh.endpoint.clients.shared_session import SharedSession
from rollmesh.errors import EndpointFault
from rollmesh.limits import Limits, timeout_ms
from rollmesh.ports import (
    AdapterContext,
    PredictReply,
    PredictRequest,
    ReleaseAdapterRequest,
    ResetAdapterRequest,
)
from rollmesh.runtime.cancel import CancelToken
from rollmesh.transport.address import Address, parse_address
from rollmesh.wire.messages import Kind

_PREDICT = Kind.PREDICT


class RemoteModelPort:
    """Drives a served model, on the calling thread.

    Attributes:
        address: Where it is served.
        thread: The thread that its calls may share with an env, or None.
        closes: Whether releasing the adapter ends the session too.
    """

    def __init__(self, session: ClientSession, told: ModelBinding, *, closes: bool) -> None:
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
    told = ModelBinding(where, route, limits)
    options = in_turn(options or client_options(), route.servers)
    session = ClientSession(Dialer(where, "model", options), told.bind)
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
