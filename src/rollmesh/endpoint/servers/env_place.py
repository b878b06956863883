"""Places of an env server: one env, one thread, one session at a time (layer 6).

The thread of a place builds its env, reads the connection of its session, calls the env, answers,
and closes the env at the end: there is no handover between a request and the env. The first place
of a blocking server is the thread that called `serve()`.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from typing import Any

from rollmesh.endpoint.envs.hosted_env import HostedEnv
from rollmesh.endpoint.envs.lane_envs import LaneEnvs
from rollmesh.endpoint.servers.env_session import EnvSession
from rollmesh.endpoint.servers.env_supply import EnvSupply
from rollmesh.errors import EndpointFault, InvalidSpec, RollmeshError
from rollmesh.ports import REBUILD, Callback, EnvPort
from rollmesh.wire.messages import Rebuild, Render

_logger = logging.getLogger(__name__)


class EnvPlace:
    """One env and the thread that it lives on.

    Args:
        index: Number of the place.
        supply: Builds the env.
        freed: Called on the thread of the place when it is free again.
        announce: Tells a session that its env has yet to be built; raises where its client is gone.
        welcome: Welcomes a session that gets this place; raises where its client is gone.
        refuse: Tells a session why it does not get the place after all.
        close_timeout_s: How long closing the env may take.

    Attributes:
        index: Number of the place.
        session: The session that has the place, or None.
        is_hung: Whether the env did not come back before a deadline, and still has not.
        wants_new: Whether the env is to be built anew before the next session.
        closed: Set once the place is stopped and its env closed.
    """

    def __init__(
        self,
        index: int,
        supply: EnvSupply,
        *,
        freed: Callable[[EnvPlace], None],
        announce: Callable[[EnvSession], None],
        welcome: Callable[[EnvSession, EnvPlace], None],
        refuse: Callable[[EnvSession, BaseException], None],
        close_timeout_s: float | None,
    ) -> None:
        self.index = index
        self.session: EnvSession | None = None
        self.is_hung = False
        self.wants_new = False
        self.closed = threading.Event()
        self._supply = supply
        self._freed = freed
        self._announce = announce
        self._welcome = welcome
        self._refuse = refuse
        self._close_timeout_s = close_timeout_s
        self._inbox: queue.SimpleQueue[EnvSession | None] = queue.SimpleQueue()
        self._port: EnvPort | None = None

    @property
    def port(self) -> EnvPort:
        """The env; built before the first session."""
        assert self._port is not None  # noqa: S101 - see above
        return self._port

    @property
    def capabilities(self) -> frozenset[str]:
        """What the env can, as clients are told."""
        can = self.port.capabilities
        return can | {REBUILD} if self._supply.can_build else can

    # --------------------------------------------------------------------- other threads

    def give(self, session: EnvSession) -> None:
        """Give the place, which is free, to a session. Any thread may."""
        self.session = session
        self._inbox.put(session)

    def stop(self) -> None:
        """Let the thread end once its session is over. Any thread may."""
        self._inbox.put(None)

    def hang(self, session: EnvSession) -> None:
        """Take note that the env did not come back in time; on the watchdog's thread."""
        if self.session is session:
            self.is_hung = True

    def abandon(self, lanes: tuple[int, ...]) -> None:
        """Leave lanes behind that have threads of their own."""
        self.wants_new = self._supply.can_build
        abandon = getattr(self.port, "abandon", None)
        if abandon is not None:
            abandon(lanes)

    @property
    def can_kill(self) -> bool:
        """Whether the env lives in a process that can be killed."""
        return hasattr(self._port, "kill")

    def kill(self) -> None:
        """End an env that lives in a process of its own; others cannot be. Any thread may."""
        kill = getattr(self._port, "kill", None)
        if kill is not None:
            kill()

    # ---------------------------------------------------------------------- its own thread

    def build(self) -> None:
        """Build the env, if there is none yet.

        Raises:
            EndpointFault: Building raised or exited.
            InvalidSpec: It is no env, or differs from the ones before.
        """
        if self._port is None:
            self._port = self._supply.open(self.index)
            self.wants_new = False

    def work(self) -> None:
        """Serve sessions until the place is stopped, then close the env."""
        try:
            while (session := self._inbox.get()) is not None:
                self._serve(session)
                del session  # hold no connection while idle
        finally:
            self.end()

    def end(self) -> None:
        """Close the env, if there is one."""
        port, self._port = self._port, None
        if port is not None:
            self._supply.close(port, self._close_timeout_s)
        self.closed.set()

    def _serve(self, session: EnvSession) -> None:
        try:
            if self._port is None or self.wants_new:
                self._announce(session)
            self._renew()
            self._welcome(session, self)
        except RollmeshError as exc:
            self._refuse(session, exc)
        else:
            session.serve(self)
        self.wants_new |= session.is_broken
        self.is_hung = False
        self._freed(self)

    def _renew(self) -> None:
        """Have an env that is fit for another session."""
        if self.wants_new and self._supply.can_build and self._port is not None:
            port, self._port = self._port, None
            self._supply.close(port, self._close_timeout_s)
        self.wants_new = False
        self.build()

    def rebuild(self, lanes: tuple[int, ...]) -> None:
        """Build the env anew, or just some lanes where it can.

        Raises:
            EndpointFault: It cannot be built again, or building failed.
        """
        own = getattr(self.port, "rebuild", None)
        if own is not None:
            own(lanes)
            return
        if not self._supply.can_build:
            raise EndpointFault(
                "the server was given an env instance, which cannot be built anew",
                outcome="not_done",
                is_recoverable=True,
            )
        port, self._port = self.port, None
        self._supply.close(port, self._close_timeout_s)
        try:
            self.build()
        except InvalidSpec as exc:
            raise EndpointFault(str(exc), error_class="InvalidSpec") from exc
        finally:
            if self._port is None:
                self._port = _Gone(port)

    # ------------------------------------------------------------------------------ calls

    def call_of(self, method: str, request: Any) -> tuple[Callable[[Any], Any], Any]:
        """Return what carries out an operation, and what to give it."""
        if method == "render":
            render: Render = request
            return self.render, render.env_indices
        if method == "rebuild":
            rebuild: Rebuild = request
            return self.rebuild, rebuild.env_indices
        return getattr(self.port, method), request

    def submit(
        self, method: str, argument: Any, callback: Callback, lanes: tuple[int, ...]
    ) -> None:
        """Start an operation of a port that works elsewhere."""
        port: Any = self.port
        if method != "render":
            port.submit(method, argument, callback, lanes)
            return
        host = _lane_of(port, lanes)
        host.thread.submit(lambda: render_of(host.port), callback)

    def render(self, lanes: tuple[int, ...]) -> Any:
        """Return what the env renders."""
        own = getattr(self.port, "render", None)
        return render_of(self.port) if own is None else own(lanes)


class _Gone:
    """Stands for an env that could not be built anew."""

    def __init__(self, port: EnvPort) -> None:
        self.contract = port.contract
        self.capabilities = port.capabilities

    def _raise(self, request: object) -> Any:
        del request
        raise EndpointFault("the env could not be built anew; rebuild it again", outcome="not_done")

    reset = step = _raise

    def close(self, timeout_s: float | None) -> None:
        """Do nothing: there is no env."""


def render_of(port: Any) -> Any:
    """Return what the env behind a local port renders.

    Raises:
        EndpointFault: It cannot render.
    """
    env = getattr(port, "env", None)
    render = getattr(env, "render", None)
    if render is None:
        raise EndpointFault(
            "this env cannot render", error_class="Unsupported", is_recoverable=True
        )
    return render()


def _lane_of(port: Any, lanes: tuple[int, ...]) -> HostedEnv:
    """Return the host of one lane."""
    if isinstance(port, HostedEnv):
        return port
    if isinstance(port, LaneEnvs) and (len(lanes) == 1 or port.contract.num_envs == 1):
        return port.lane(lanes[0] if lanes else 0)
    raise EndpointFault(
        "rendering wants one lane",
        error_class="Unsupported",
        outcome="not_done",
        is_recoverable=True,
    )
