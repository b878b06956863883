"""A served env whose lanes go their own ways, as an env port that calls back (layer 6)."""

from __future__ import annotations

from typing import Any

from rollmesh.endpoint.clients.env_client import EnvBinding
from rollmesh.endpoint.clients.shared_session import SharedSession, wait_for
from rollmesh.errors import EndpointFault, PortTimeout, SessionLost
from rollmesh.limits import timeout_ms
from rollmesh.ports import (
    REBUILD,
    Callback,
    EnvContract,
    ResetReply,
    ResetRequest,
    StepReply,
    StepRequest,
)
from rollmesh.wire.messages import Kind, Message, Rebuild

_KINDS = {"reset": Kind.RESET, "step": Kind.STEP}
_REPLIES: dict[Kind, type[Any]] = {Kind.RESET: ResetReply, Kind.STEP: StepReply}


class RemoteLanesPort:
    """Drives a served env lane by lane; replies come back on a thread of the session.

    Attributes:
        contract: What the env is.
        capabilities: What it can do.
        address: Where it is served.
    """

    def __init__(self, session: SharedSession, told: EnvBinding) -> None:
        contract = told.contract
        assert contract is not None  # noqa: S101 - the session is open
        self.contract: EnvContract = contract
        self.capabilities: frozenset[str] = told.granted | {REBUILD}
        self.address = told.address
        self._session = session
        self._told = told
        self._all = tuple(range(contract.num_envs))
        self._under_way: dict[tuple[int, ...], int] = {}
        self._abandoned: set[int] = set()
        # the session in which a lane was last reset: in a later one it must be reset first
        self._reset_in = dict.fromkeys(self._all, session.generation)
        self._actions = contract.action_space.codec

    # ------------------------------------------------------------------- SubmitsOperations

    def submit(
        self, method: str, request: Any, callback: Callback, env_indices: tuple[int, ...]
    ) -> None:
        """Send a request and return at once; `callback` gets the reply or an exception."""
        kind = _KINDS.get(method)
        if kind is not None:
            self._submit(kind, request, callback, env_indices or self._all)
        elif method == "close":
            self._session.start_close("closed by caller", request, callback)
        elif method == "rebuild":
            self._rebuild(callback, env_indices or self._all)
        else:
            raise RuntimeError(f"an env has no operation {method!r}")

    def abandon(self, env_indices: tuple[int, ...] = ()) -> None:
        """Leave these lanes behind (none named: all); their callbacks are not called any more."""
        lanes = env_indices or self._all
        self._abandoned.update(lanes)
        if len(self._abandoned) == len(self._all):
            self._session.drop()
            return
        ids = [i for key, i in list(self._under_way.items()) if self._abandoned.issuperset(key)]
        self._session.forget(ids)

    # ----------------------------------------------------------------------------- EnvPort

    def reset(self, request: ResetRequest) -> ResetReply:
        """Reset lanes and wait for it.

        Raises:
            EndpointFault: A lane's env failed, or cannot be reached.
        """
        return wait_for(self, "reset", request, request.timeout_ms, request.env_indices)

    def step(self, request: StepRequest) -> StepReply:
        """Step lanes and wait for it.

        Raises:
            EndpointFault: As `reset`.
        """
        return wait_for(self, "step", request, request.timeout_ms, request.env_indices)

    def rebuild(self, env_indices: tuple[int, ...]) -> None:
        """Have lanes built anew, and wait for it.

        Raises:
            EndpointFault: It failed, or nobody answers.
        """
        limit_ms = timeout_ms(self._told.limits.env_connect_s)
        wait_for(self, "rebuild", env_indices, limit_ms, env_indices)

    def close(self, timeout_s: float | None) -> None:
        """End the session and wait for it.

        Raises:
            EndpointFault: An env raised while it was closed.
        """
        try:
            wait_for(self, "close", timeout_s, timeout_ms(timeout_s))
        except PortTimeout:
            self._session.drop()
            raise

    # ------------------------------------------------------------------------------- inside

    def _submit(self, kind: Kind, request: Any, callback: Callback, lanes: tuple[int, ...]) -> None:
        session = self._session
        generation = session.generation
        if kind is Kind.STEP and any([self._reset_in[lane] != generation for lane in lanes]):
            callback(self._opened_anew())
            return

        def land(result: Any) -> None:
            self._under_way.pop(lanes, None)
            if isinstance(result, Message):
                result = self._reply(kind, request, lanes, result)
                if kind is Kind.RESET and isinstance(result, ResetReply):
                    self._reset_in.update(dict.fromkeys(lanes, session.generation))
            elif kind is Kind.STEP and _came_too_late(result) and session.generation != generation:
                result = self._opened_anew()
            callback(result)

        request_id = session.submit(kind, request, land)
        if not session.is_lost:
            self._under_way[lanes] = request_id

    def _opened_anew(self) -> SessionLost:
        return SessionLost(f"the session with {self.address} is lost: it was opened anew")

    def _reply(self, kind: Kind, request: Any, lanes: tuple[int, ...], message: Message) -> Any:
        body = message.body
        if type(body) is not _REPLIES[kind]:
            return EndpointFault(
                f"the server at {self.address} answered with a {message.kind.name} message",
                error_class="ProtocolError",
            )
        body.response_bytes = message.nbytes
        if kind is Kind.STEP:
            body.request_bytes = self._actions.nbytes(request.action, len(lanes))
        if self._told.values is not None:
            try:
                self._told.values.look(body, lanes)
            except EndpointFault as fault:
                return fault
        return body

    def _rebuild(self, callback: Callback, lanes: tuple[int, ...]) -> None:
        limit_s = self._told.limits.env_connect_s
        session = self._session

        def reopened(result: Any) -> None:
            if result is None:
                self._abandoned.difference_update(lanes)
            callback(result)

        is_stale = any([self._reset_in[lane] != session.generation for lane in lanes])
        if session.is_lost or is_stale:
            session.start_reopen(limit_s, reopened)
            return
        body = Rebuild(env_indices=lanes, timeout_ms=timeout_ms(limit_s))
        session.submit(
            Kind.REBUILD, body, lambda r: reopened(None if isinstance(r, Message) else r)
        )


def _came_too_late(result: Any) -> bool:
    """Return whether a step reached a session that was opened while it was on its way."""
    return isinstance(result, EndpointFault) and result.error_class == "not_ready"
