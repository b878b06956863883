"""Builds the envs of a server, each on the thread that is going to use it (layer 6).

An env instance is used where it is; what a factory builds is called right on the thread that built
it, without a handover. Lanes (a list, or a scalar factory with `num_envs`) have threads of their
own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from rollmesh.endpoint.envs.contracts import contract_difference
from rollmesh.endpoint.envs.env_factory import find_source
from rollmesh.endpoint.envs.env_loading import open_env
from rollmesh.endpoint.faults import construction_fault
from rollmesh.endpoint.servers.server_options import ServerOptions
from rollmesh.errors import EndpointFault, InvalidSpec
from rollmesh.limits import Limits
from rollmesh.ports import EnvContract, EnvPort

_logger = logging.getLogger(__name__)


class EnvSupply:
    """Where the envs of a server come from.

    Args:
        env: An instance, a factory, what names one, a list of these, or an env port.
        options: Of the server.

    Attributes:
        can_build: Whether there may be several, and new ones; False for what was given.
        is_own: Whether what is opened here is closed here.

    Raises:
        InvalidSpec: It names no env.
    """

    def __init__(self, env: Any, options: ServerOptions) -> None:
        self._env = env
        self._options = options
        self._is_port = hasattr(env, "contract") and hasattr(env, "capabilities")
        self._is_list = isinstance(env, (list, tuple))
        self._make: Callable[[int], Any] | None = None
        self.can_build = False
        if options.isolate is not None:
            self._refuse_isolated()
            self.can_build = True
        elif not self._is_port and not self._is_list:
            self._make = find_source(env, options.env_kwargs).make
            self.can_build = self._make is not None
        self.is_own = self.can_build or self._is_list
        self._contract: EnvContract | None = None

    @property
    def closes(self) -> bool:
        """Whether to close envs at the end."""
        closes = self._options.closes_env
        return self.is_own if closes is None else closes

    def open(self, index: int) -> EnvPort:
        """Return the port of an env; a factory is called here and now.

        Args:
            index: Of the place it is for; given to a factory that wants its lane.

        Raises:
            EndpointFault: Building raised or exited.
            InvalidSpec: It is no env, or differs from the ones before.
        """
        try:
            port = self._open(index)
        except (EndpointFault, InvalidSpec):
            raise
        except BaseException as exc:
            raise construction_fault(exc, where="building the env") from exc
        if self._contract is None:
            self._contract = port.contract
        elif other := contract_difference(self._contract, port.contract):
            self.close(port, None)
            raise InvalidSpec("env", f"built anew it differs from before: {other}")
        lend = getattr(port, "lend_observations", None)
        if lend is not None and not self._is_port:
            lend()  # a reply is sent, and forgotten, before the env is called again
        return port

    def close(self, port: EnvPort, timeout_s: float | None) -> None:
        """Close an env that was opened here, if it is ours to close; never raises."""
        if not self.closes:
            return
        try:
            port.close(timeout_s)
        except BaseException as exc:  # noqa: BLE001 - told here, as nobody waits for it
            _logger.warning("close_failed env=%s error=%r", port.contract.id, exc)

    def _open(self, index: int) -> EnvPort:
        options = self._options
        if options.isolate is not None:
            from rollmesh.endpoint.servers.isolation import IsolatedEnv

            return IsolatedEnv(self._env, options)
        if self._make is None or (options.num_envs or 1) > 1:
            return open_env(
                self._env,
                num_envs=options.num_envs,
                env_kwargs=options.env_kwargs,
                conformance=options.conformance,
                limits=Limits(env_connect_s=options.build_timeout_s),
            )
        built = self._make(index)
        return open_env(built, num_envs=options.num_envs, conformance=options.conformance)

    def _refuse_isolated(self) -> None:
        is_factory = isinstance(self._env, str) or callable(self._env)
        if self._is_port or self._is_list or not is_factory:
            raise InvalidSpec(
                "isolate",
                "an env in a process of its own is built there: give its id, module:callable, or a "
                "factory that a module holds",
            )
