"""What the faces of a served env share, the scalar one and the vector one (layer 6).

A face is what a user holds: `RemoteEnv` is a `gymnasium.Env`, `RemoteVectorEnv` a
`gymnasium.vector.VectorEnv`. Here is what is the same whatever the number of lanes. It does not
know Gymnasium.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rollmesh.endpoint.clients.client_options import (
    ClientOptions,
    Connecting,
    WrongArgument,
    client_options,
    connect_again,
    given_options,
    portable,
)
from rollmesh.endpoint.clients.env_client import HasEnvPort, RemoteEnvPort, connect_env
from rollmesh.endpoint.clients.remote_calls import Calls, is_closed
from rollmesh.errors import InvalidSpec
from rollmesh.limits import Limits, timeout_ms
from rollmesh.ports import EnvContract
from rollmesh.spaces.conformance import Checker

if TYPE_CHECKING:
    from typing_extensions import Self

_SEEDS = 2**63


class EnvFace(HasEnvPort):
    """A served env, as its user holds it.

    Attributes:
        address: Where it is served.
    """

    address: str
    _is_open = False
    _spec: Any = None

    def _connect(
        self,
        address: str,
        options: ClientOptions | None,
        given: Connecting,
        *,
        limits: Limits | None,
        port: RemoteEnvPort | None,
    ) -> None:
        """Connect, or take over a connection to that address.

        Raises:
            InvalidSpec: That is no address, or the options are wrong.
            EndpointFault: Nobody answered in time, or the server refused.
        """
        self.address = address
        self._options = given_options(options, given)
        self._limits = limits or Limits()
        self.port = port or connect_env(
            address, self._options or client_options(), limits=self._limits, lanes=False
        )
        contract = self.contract
        self._is_open = True
        self._calls = Calls(contract.id or address, "env")
        self._checker = Checker("action", "warn", "refuse")
        self._observations = contract.observation_space.codec
        self._actions = contract.action_space.codec
        self._reset_ms = timeout_ms(self._limits.env_reset_s)
        self._step_ms = timeout_ms(self._limits.env_step_s)

    @property
    def contract(self) -> EnvContract:
        """The env's spaces and what else is known of it."""
        return self.port.contract

    @property
    def spec(self) -> Any:
        """How Gymnasium made it, without the token: specs are printed, and kept in files."""
        return self._spec

    @spec.setter
    def spec(self, spec: Any) -> None:
        self._spec = _without_token(spec)

    def render(self) -> Any:
        """Return what the served env renders.

        Raises:
            InvalidSpec: The env is closed.
            EnvFailed: The env failed.
        """
        self._check_open("render")
        limit_s = self._limits.env_step_s
        return self._calls.do("render", self.port.render, (), limit_s, limit_s=limit_s)

    def __enter__(self) -> Self:
        """Return the env itself."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return connect_again, (type(self), self.address, portable(self._options), self._limits)

    def __del__(self) -> None:
        if self._is_open:
            self._is_open = False
            self.port.session.drop()

    def _check_open(self, call: str) -> None:
        if not self._is_open:
            raise is_closed(call, "env")

    def _end(self) -> None:
        """End the session, unless it has ended."""
        if self._is_open:
            self._is_open = False
            self.port.forget_interrupt()
            self.port.close(self._limits.close_s)


class OtherRenderMode(WrongArgument):
    """The served env renders in another mode than the caller asked for.

    Code that asks every env for a mode (`make_vec_env` of Stable-Baselines3) takes a `TypeError`
    for "without, then", and tries again.
    """


def check_render_mode(render_mode: str | None, contract: EnvContract) -> None:
    """Refuse a render mode that the served env does not have.

    Raises:
        OtherRenderMode: It has another one.
    """
    if render_mode is not None and render_mode != contract.render_mode:
        raise OtherRenderMode(
            f"render_mode: wants {render_mode!r}, but the served env was built with "
            f"{contract.render_mode!r}; give it to the server (env_kwargs)"
        )


def check_options(options: object) -> None:
    """Refuse what are no reset options.

    Raises:
        InvalidSpec: They are neither a mapping nor None.
    """
    if options is not None and not isinstance(options, Mapping):
        raise InvalidSpec("options", f"wants a mapping or None, got {options!r}")


def check_seed(field: str, seed: Any) -> None:
    """Refuse what is no seed that can be sent.

    Raises:
        InvalidSpec: It is no int from 0 to 2**63 - 1.
    """
    if seed is None:
        return
    is_int = not isinstance(seed, bool) and hasattr(seed, "__index__")
    if not is_int or not 0 <= int(seed) < _SEEDS:
        raise InvalidSpec(field, f"wants an int from 0 to 2**63 - 1, or None, got {seed!r}")


def _without_token(spec: Any) -> Any:
    """Return a spec of Gymnasium's with the arguments that may lie in a file."""
    kwargs: Mapping[str, Any] = getattr(spec, "kwargs", {})
    kept = {name: value for name, value in kwargs.items() if name != "token"}
    if isinstance(kept.get("options"), ClientOptions):
        kept["options"] = portable(kept["options"])
    if kept == kwargs:
        return spec
    cleaned = copy.copy(spec)
    cleaned.kwargs = kept
    return cleaned
