"""What the faces of a served env share, the scalar one and the vector one (layer 6).

A face is what a user holds: `RemoteEnv` is a `gymnasium.Env`, `RemoteVectorEnv` a
`gymnasium.vector.VectorEnv`. Here is what is the same whatever the number of lanes. It does not
know Gymnasium.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rollmesh.endpoint.clients.client_options import (
    ClientOptions,
    client_options,
    connect_again,
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

    def _connect(
        self,
        address: str,
        options: ClientOptions | None,
        limits: Limits | None,
        port: RemoteEnvPort | None,
    ) -> None:
        """Connect, or take over a connection to that address.

        Raises:
            InvalidSpec: That is no address.
            EndpointFault: Nobody answered in time, or the server refused.
        """
        self.address = address
        self._options = options
        self._limits = limits or Limits()
        self.port = port or connect_env(
            address, options or client_options(), limits=self._limits, lanes=False
        )
        self._is_open = True
        contract = self.contract
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


class OtherRenderMode(InvalidSpec, TypeError):  # noqa: N818 - as its family
    """The served env renders in another mode than the caller asked for.

    A `TypeError` too, and made from its text alone: `gymnasium.make` adds to it, and code that asks
    every env for a mode (`make_vec_env` of Stable-Baselines3) then tries without.
    """

    def __init__(self, text: str) -> None:
        field, _, detail = text.partition(": ")
        super().__init__(field, detail)


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
