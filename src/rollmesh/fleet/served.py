"""A served env as a lane of a fleet: a worker that runs elsewhere, behind an address (layer 7).

It holds whatever its server holds, and one session with it. Connecting happens on a thread of its
own; answers come through the hub's post, so that a fleet is touched by one thread only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from rollmesh.endpoint.clients.client_options import client_options
from rollmesh.endpoint.clients.env_client import connect_env
from rollmesh.endpoint.own_thread import OwnThread
from rollmesh.errors import EndpointFault, InvalidSpec, SessionLost
from rollmesh.fleet.hub import Hub
from rollmesh.limits import Limits
from rollmesh.ports import Callback, EnvContract, ResetRequest, StepReply, StepRequest
from rollmesh.runtime.cancel import CancelToken
from rollmesh.spaces.conformance import Checker
from rollmesh.transport.connection import ConnectionOptions

Agree = Callable[[str, EnvContract], "EndpointFault | None"]
"""Takes the contract of an env and what it is called; returns what is wrong with it."""


class ServedLane:
    """One lane behind an address.

    Args:
        address: Where the env is served.
        lane: The lane that it is here.
        number: What it counts as among the workers.
        hub: Makes the callbacks.
        agree: Compares contracts.
        tell: Told of its states.
        limits: `env_connect_s` bounds connecting.
        checker: Looks at the observations of a foreign server.
    """

    def __init__(
        self,
        address: str,
        lane: int,
        *,
        number: int,
        hub: Hub,
        agree: Agree,
        tell: Callable[..., None],
        limits: Limits,
        checker: Checker,
    ) -> None:
        self.address = address
        self.number = number
        self._lane = lane
        self._hub = hub
        self._agree = agree
        self._tell = tell
        self._limits = limits
        self._checker = checker
        self._port: Any = None
        self._wants_new = False
        self._dialling: CancelToken | None = None

    @property
    def is_idle(self) -> bool:
        """Whether there is no session."""
        return self._port is None

    # -------------------------------------------------------------------------------- asked

    def prepare(self, lane: int, setup: Any, callback: Callback) -> None:
        """Have a session with the server; what it holds is its own affair."""
        del lane, setup
        port = self._port
        if port is None:
            self._tell(self.number, "starting", self.address, None)
            self._dial(callback)
        elif self._wants_new:
            self._wants_new = False
            land = self._landing(lambda result: self._rebuilt(result, callback))
            port.submit("rebuild", (0,), land, (0,))
        else:
            callback(None)

    def step(self, lane: int, request: StepRequest, callback: Callback) -> None:
        """Step the env."""
        self._ask("step", lane, request, callback)

    def reset(self, lane: int, request: ResetRequest, callback: Callback) -> None:
        """Reset the env."""
        self._ask("reset", lane, request, callback)

    def forget_env(self, lane: int) -> None:
        """Have the env built anew before its next episode: by the server, or with a new session."""
        del lane
        self._wants_new = True

    def abandon(self, lanes: frozenset[int], reason: str) -> None:
        """Leave the session: nobody knows what its env does."""
        del lanes
        port, self._port = self._port, None
        self._hang_up()
        if port is not None:
            port.abandon(())
            self._tell(self.number, "lost", f"{self.address}: {reason}", None)

    def close(self, callback: Callback) -> None:
        """End the session; `callback` gets None, or what ending it raised."""
        self._hang_up()
        port = self._port
        if port is None:
            callback(None)
            return

        def closed(result: Any) -> None:
            self._port = None
            self._tell(self.number, "stopped", self.address, None)
            callback(result)

        port.submit("close", self._limits.close_s, self._landing(closed), ())

    def kill(self) -> None:
        """Leave the session without waiting."""
        self._hang_up()
        port, self._port = self._port, None
        if port is not None:
            port.abandon(())

    # ------------------------------------------------------------------------------- inside

    def _dial(self, callback: Callback) -> None:
        """Connect, on a thread that ends with that."""
        dialling = self._dialling = CancelToken()
        thread = OwnThread(f"rollmesh {self.address}")
        thread.submit(
            self._connect,
            self._landing(lambda result: self._connected(result, dialling, callback)),
            dialling,
        )
        thread.stop()

    def _hang_up(self) -> None:
        """Connect no longer."""
        dialling, self._dialling = self._dialling, None
        if dialling is not None:
            dialling.cancel("the fleet needs it no longer")

    def _connect(self, dialling: CancelToken) -> Any:
        """Open a session."""
        options = client_options(connection=ConnectionOptions(lent=True))
        port = connect_env(
            self.address,
            options,
            limits=self._limits,
            lanes=True,
            cancel=dialling,
            checker=self._checker,
        )
        if dialling.reason is not None:  # nobody may be left who would let go of it
            port.abandon(())
            raise SessionLost(f"{self.address} was left while it was being connected")
        if port.contract.num_envs != 1:
            port.abandon(())
            raise InvalidSpec(
                "env",
                f"{self.address} serves {port.contract.num_envs} lanes; a lane of a fleet is one "
                "env: serve its factory, or give this address alone, without workers",
            )
        return port

    def _connected(self, result: Any, dialling: CancelToken, callback: Callback) -> None:
        if dialling is not self._dialling:  # it was left behind
            if not isinstance(result, BaseException):
                result.abandon(())
            return
        self._dialling = None
        if not isinstance(result, BaseException):
            fault = self._agree(f"the env served at {self.address}", result.contract)
            if fault is not None:
                result.abandon(())
                result = fault
        if isinstance(result, BaseException):
            self._tell(self.number, "lost", f"{self.address}: {result}", None)
            callback(self._told(result))
            return
        self._port = result
        self._wants_new = False
        self._tell(self.number, "ready", self.address, None)
        callback(None)

    def _rebuilt(self, result: Any, callback: Callback) -> None:
        if isinstance(result, BaseException):
            self.abandon(frozenset([self._lane]), str(result))
            callback(self._told(result))
            return
        callback(None)

    def _ask(self, method: str, lane: int, request: Any, callback: Callback) -> None:
        port = self._port
        if port is None:
            callback(self._told(SessionLost(f"there is no session with {self.address}")))
            return
        land = self._landing(lambda result: self._answer(result, lane, callback))
        port.submit(method, msgspec.structs.replace(request, env_indices=()), land, ())

    def _answer(self, result: Any, lane: int, callback: Callback) -> None:
        if isinstance(result, SessionLost):
            self.abandon(frozenset([lane]), str(result))
        if isinstance(result, BaseException):
            callback(self._told(result))
            return
        if isinstance(result, StepReply) and result.completions:
            result.completions = tuple(
                [msgspec.structs.replace(end, env_index=lane) for end in result.completions]
            )
        callback(result)

    def _told(self, exc: BaseException) -> BaseException:
        if isinstance(exc, EndpointFault):
            exc.env_index = self._lane
        return exc

    def _landing(self, call: Callable[[Any], None]) -> Callback:
        """Return a callback that has the waiting thread make a call."""
        return lambda result: self._hub.post(lambda: call(result))
