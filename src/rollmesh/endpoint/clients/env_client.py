"""A served env as an env port: what the runtime drives in place of a local one (layer 6).

`connect_env` gives one of two ports. `RemoteEnvPort` sends and receives on the calling thread, with
the lowest latency, for an env that is one group. `RemoteLanesPort` (`lane_client.py`) has a thread
that receives, for an env whose lanes go their own ways.
"""

from __future__ import annotations

import time
from typing import Any

import msgspec

from rollmesh.endpoint.clients.client_dialing import Dialer
from rollmesh.endpoint.clients.client_options import ClientOptions, client_options
from rollmesh.endpoint.clients.client_session import MARGIN_S, ClientSession, deadline_s
from rollmesh.endpoint.clients.foreign_values import ForeignValues
from rollmesh.endpoint.clients.shared_session import SharedSession
from rollmesh.endpoint.envs.contracts import contract_difference
from rollmesh.errors import EndpointFault, WireError
from rollmesh.limits import Limits, timeout_ms
from rollmesh.ports import (
    PARTIAL_RESET,
    REBUILD,
    SUBSET_STEP,
    EnvContract,
    ResetReply,
    ResetRequest,
    StepReply,
    StepRequest,
)
from rollmesh.runtime.cancel import CancelToken
from rollmesh.spaces.conformance import Checker
from rollmesh.transport.address import Address, parse_address
from rollmesh.transport.connection import Connection
from rollmesh.wire.contract import decode_contract
from rollmesh.wire.messages import Kind, Rebuild, Render, RenderReply, Welcome

_RESET, _STEP = Kind.RESET, Kind.STEP
_KNOWN = frozenset({SUBSET_STEP, PARTIAL_RESET, REBUILD})


class EnvBinding:
    """What both kinds of port share: the session, and what the server said of its env.

    Args:
        address: Where the env is served.
        limits: `env_connect_s` bounds connecting, now and again.
        checker: Looks at the observations of a foreign server, whom nobody else watches.
    """

    def __init__(self, address: Address, limits: Limits, checker: Checker | None = None) -> None:
        self.address = address
        self.limits = limits
        self.contract: EnvContract | None = None
        self.granted: frozenset[str] = frozenset()
        self.values: ForeignValues | None = None
        self.is_foreign = False
        self._checker = checker

    def bind(self, connection: Connection, welcome: Welcome) -> None:
        """Read the contract, compare it with an earlier one, and tell the connection.

        Raises:
            EndpointFault: The server said nothing usable, or its env is another one now.
        """
        try:
            contract = decode_contract(welcome.contract)
        except WireError as error:
            raise EndpointFault(
                f"the env at {self.address} sent a contract that cannot be read: {error}",
                outcome="not_done",
            ) from error
        if self.contract is not None and (other := contract_difference(self.contract, contract)):
            raise EndpointFault(
                f"another env is served at {self.address} now: {other}", outcome="not_done"
            )
        granted = [name for name, value in welcome.capabilities.items() if value == "true"]
        self.granted = _KNOWN.intersection(granted)
        self.contract = contract
        self.is_foreign = connection.is_foreign
        self.values = self._values()
        connection.framing.bind(
            contract.observation_space.codec, contract.action_space.codec, contract.num_envs
        )

    def watched(self, checker: Checker) -> EnvBinding:
        """Return the same with another checker."""
        other = EnvBinding(self.address, self.limits, checker)
        other.contract, other.granted = self.contract, self.granted
        other.is_foreign = self.is_foreign
        other.values = other._values()
        return other

    def _values(self) -> ForeignValues | None:
        """Return what looks at observations, if somebody has to."""
        checker, contract = self._checker, self.contract
        if not self.is_foreign or contract is None or checker is None or not checker.looks:
            return None
        return ForeignValues(contract.observation_space.codec, checker)


class RemoteEnvPort:
    """Drives a served env, on the calling thread.

    Attributes:
        contract: What the env is.
        capabilities: What it can do; it can always be built anew, by a new session.
        address: Where it is served.
        thread: The thread that its calls may share with a model, or None.
    """

    def __init__(self, session: ClientSession, told: EnvBinding) -> None:
        contract = told.contract
        assert contract is not None  # noqa: S101 - the session is open
        self.contract: EnvContract = contract
        self.capabilities: frozenset[str] = told.granted | {REBUILD}
        self.address = told.address
        self.thread: Any = None
        self._session = session
        self._told = told
        self._call = session.call
        self._action_bytes = contract.action_space.codec.row_bytes
        self._nbytes = contract.action_space.codec.nbytes

    @property
    def session(self) -> ClientSession:
        """The session under it."""
        return self._session

    @property
    def is_foreign(self) -> bool:
        """Whether the server is no rollmesh."""
        return self._told.is_foreign

    def watched(self, checker: Checker) -> RemoteEnvPort:
        """Return a port of this session whose observations are looked at, for one run.

        A rollmesh server looks at them itself, and this port is returned.
        """
        if not self.is_foreign:
            return self
        return RemoteEnvPort(self._session, self._told.watched(checker))

    def reset(self, request: ResetRequest) -> ResetReply:
        """Reset lanes.

        Raises:
            EndpointFault: The env failed, or cannot be reached (`PortTimeout`, `SessionLost`).
        """
        reply = self._call(_RESET, request, deadline_s(request.timeout_ms))
        body = reply.body
        if type(body) is not ResetReply:
            raise self._nonsense("env.reset", reply.kind)
        body.response_bytes = reply.nbytes
        if self._told.values is not None:
            self._told.values.look(body, request.env_indices)
        return body

    def step(self, request: StepRequest) -> StepReply:
        """Step lanes.

        Raises:
            EndpointFault: As `reset`.
        """
        limit_ms = request.timeout_ms
        reply = self._call(_STEP, request, limit_ms * 0.001 + MARGIN_S if limit_ms else None)
        body = reply.body
        if type(body) is not StepReply:
            raise self._nonsense("env.step", reply.kind)
        size, rows = self._action_bytes, len(request.episode_ids)
        body.request_bytes = self._nbytes(request.action, rows) if size is None else size * rows
        if self._told.values is not None:
            self._told.values.look(body, request.env_indices)
        return body

    def render(self, env_indices: tuple[int, ...] = (), timeout_s: float | None = None) -> Any:
        """Return what the env's `render` returned, for these lanes (empty: all).

        Raises:
            EndpointFault: As `reset`.
        """
        limit_ms = timeout_ms(timeout_s)
        body = Render(env_indices=env_indices, timeout_ms=limit_ms)
        reply = self._call(Kind.RENDER, body, deadline_s(limit_ms))
        if not isinstance(reply.body, RenderReply):
            raise self._nonsense("env.render", reply.kind)
        return reply.body.frame

    def rebuild(self, env_indices: tuple[int, ...]) -> None:
        """Have the env built anew: by the server where it can, else by a new session.

        Raises:
            EndpointFault: It failed, or nobody answers.
        """
        session, limit_s = self._session, self._told.limits.env_connect_s
        if session.is_lost:
            session.reopen(limit_s)
            return
        expiry = None if limit_s is None else time.monotonic() + limit_s
        if REBUILD in self._told.granted:
            limit_ms = timeout_ms(limit_s)
            body = Rebuild(env_indices=env_indices, timeout_ms=limit_ms)
            session.call(Kind.REBUILD, body, deadline_s(limit_ms))
            return
        session.close("built anew", None if limit_s is None else min(limit_s, 5.0))
        session.reopen(None if expiry is None else max(0.0, expiry - time.monotonic()))

    def close(self, timeout_s: float | None) -> None:
        """End the session; the server's env is closed with it if it was made for it.

        Raises:
            EndpointFault: The env raised while it was closed.
        """
        self._session.close("closed by caller", timeout_s)

    def leave(self) -> None:
        """Let go of the connection, where the thread that calls this was left behind."""
        self._session.leave()

    def interrupt(self) -> None:
        """End the call under way at once."""
        self._session.interrupt()

    def forget_interrupt(self) -> None:
        """Forget an interrupt that came too late: before the port is driven again."""
        self._session.forget_interrupt()

    def _nonsense(self, operation: str, kind: Kind) -> EndpointFault:
        return EndpointFault(
            f"the server at {self.address} answered {operation} with a {kind.name} message",
            error_class="ProtocolError",
        )


class OneOfLanes:
    """A served scalar env that is one lane of several here, each with its own session.

    Args:
        port: The env.
        env_index: The lane.

    Attributes:
        address: Where it is served.
    """

    def __init__(self, port: RemoteEnvPort, env_index: int) -> None:
        self.address = port.address
        self.contract = port.contract
        self.capabilities = port.capabilities
        self._port = port
        self._env_index = env_index

    def reset(self, request: ResetRequest) -> ResetReply:
        """Reset it; see `RemoteEnvPort`."""
        try:
            return self._port.reset(_of_all(request))
        except EndpointFault as fault:
            fault.env_index = self._env_index
            raise

    def step(self, request: StepRequest) -> StepReply:
        """Step it; see `RemoteEnvPort`."""
        try:
            reply = self._port.step(_of_all(request))
        except EndpointFault as fault:
            fault.env_index = self._env_index
            raise
        if reply.completions:
            lane = self._env_index
            reply.completions = tuple(
                [msgspec.structs.replace(end, env_index=lane) for end in reply.completions]
            )
        return reply

    def close(self, timeout_s: float | None) -> None:
        """Close it; see `RemoteEnvPort`."""
        self._port.close(timeout_s)

    def leave(self) -> None:
        """Let go of its connection; see `RemoteEnvPort`."""
        self._port.leave()


def _of_all(request: Any) -> Any:
    return msgspec.structs.replace(request, env_indices=())


class HasEnvPort:
    """Something that stands for an env which already has a port (`RemoteEnv`).

    Attributes:
        port: The port.
    """

    port: RemoteEnvPort


def connect_env(
    address: str | Address,
    options: ClientOptions | None = None,
    *,
    limits: Limits | None = None,
    lanes: bool | None = None,
    cancel: CancelToken | None = None,
    checker: Checker | None = None,
) -> Any:
    """Connect to a served env and return its port.

    Args:
        address: Where it is served.
        options: How to connect; the environment's if left out.
        limits: `env_connect_s` bounds connecting.
        lanes: Whether lanes go their own ways; None where the env can and has several.
        cancel: Ends connecting.
        checker: Looks at the observations of a foreign server; others do it themselves.

    Raises:
        InvalidSpec: That is no address, or the options do not go with it.
        EndpointFault: Nobody answered in time, the server refused, or it was cancelled.
    """
    where = address if isinstance(address, Address) else parse_address(address)
    options = options or client_options()
    limits = limits or Limits()
    told = EnvBinding(where, limits, checker)
    dialer = Dialer(where, "env", options)
    session = ClientSession(dialer, told.bind)
    with session.heeding(cancel):
        session.open(limits.env_connect_s)
    contract = told.contract
    assert contract is not None  # noqa: S101 - bound by open
    if lanes is None:
        lanes = contract.num_envs > 1 and SUBSET_STEP in told.granted
    if not lanes:
        return RemoteEnvPort(session, told)
    from rollmesh.endpoint.clients.lane_client import RemoteLanesPort

    return RemoteLanesPort(SharedSession.taking_over(session), told)
