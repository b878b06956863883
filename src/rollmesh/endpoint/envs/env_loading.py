"""Opens an env: from whatever a user names it by to an env port (layer 6).

- An env instance is called on the thread that runs the route.
- Anything built here (ids, factories) is built, used and closed on a thread of its own.
- A list, or a scalar factory with `num_envs` K, gives independent lanes with a thread each.
- A vector env, built or given, is one group whose lanes step together.
- An address is a served env: one session with it, or `num_envs` of them as independent lanes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from rollmesh.endpoint.clients.client_dialing import NoPlace
from rollmesh.endpoint.clients.client_options import ClientOptions, client_options, in_turn
from rollmesh.endpoint.clients.env_client import HasEnvPort, OneOfLanes, RemoteEnvPort, connect_env
from rollmesh.endpoint.envs.contracts import check_no_vec_env, is_env, is_vector_env
from rollmesh.endpoint.envs.dm_env import adapt_dm_env, is_dm_env
from rollmesh.endpoint.envs.env_factory import EnvSource, find_source
from rollmesh.endpoint.envs.gym_env import GymEnvPort
from rollmesh.endpoint.envs.hosted_env import HostedEnv, discard
from rollmesh.endpoint.envs.lane_envs import LaneEnvs
from rollmesh.endpoint.envs.vector_env import VectorEnvPort
from rollmesh.endpoint.faults import construction_fault
from rollmesh.endpoint.own_thread import OwnThread
from rollmesh.endpoint.reporting import OnceReporter, Report, log_warning
from rollmesh.errors import InvalidSpec
from rollmesh.limits import Limits
from rollmesh.ports import EnvPort
from rollmesh.runtime.cancel import CancelToken
from rollmesh.spaces.conformance import POLICIES, Checker, Policy
from rollmesh.transport.connection import ConnectionOptions


def open_env(
    env: Any,
    *,
    num_envs: int | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    conformance: Policy = "warn",
    report: Report | None = None,
    limits: Limits | None = None,
    thread: OwnThread | None = None,
    cancel: CancelToken | None = None,
    servers: int = 1,
) -> EnvPort:
    """Return the port of an env.

    Args:
        env: An env instance (scalar or vector), a Gymnasium id, `module:Name-v0`,
            `module:callable`, a factory, an address, a list of these, a `RemoteEnv`, or an env
            port, which is returned.
        num_envs: Number of lanes; None: one for a scalar env, all of a vector env or list.
        env_kwargs: Keyword arguments of the factory.
        conformance: What happens to observations that do not fit their space.
        report: Takes a path and what is odd there, once per path; a logged warning by default.
        limits: `env_connect_s` bounds building and connecting.
        thread: Where to build an env that is one group; its owner stops it.
        cancel: Ends connecting to a served env.
        servers: Servers that the loop asks in turn, those of env and model.

    Raises:
        InvalidSpec: It names no env, or the arguments contradict each other or the env.
        EndpointFault: Building raised, exited, or did not come back in time.
    """
    if num_envs is not None:
        _check_count(num_envs)
    limits = limits or Limits()
    opener = _Opener(conformance, report, limits, thread, cancel=cancel, servers=servers)
    if isinstance(env, HasEnvPort):
        env = opener.watch(env.port)
        env.forget_interrupt()
    if hasattr(env, "contract") and hasattr(env, "capabilities"):
        _check_width(env.contract.num_envs, num_envs, env.contract.id)
        return env
    if isinstance(env, (list, tuple)):
        return opener.open_list(cast("Sequence[Any]", env), num_envs, env_kwargs)
    return opener.open_one(find_source(env, env_kwargs), num_envs)


def _check_count(num_envs: object) -> None:
    if isinstance(num_envs, bool) or not isinstance(num_envs, int) or num_envs < 1:
        raise InvalidSpec("num_envs", f"wants an int of 1 or more, got {num_envs!r}")


def build_lane(source: EnvSource, lane: int, *, conformance: Policy = "warn") -> EnvPort:
    """Build one scalar env on the calling thread, for whoever hosts lanes of his own.

    Args:
        source: A factory.
        lane: The lane that it is, in errors and completions.
        conformance: What happens to observations that do not fit their space.

    Raises:
        InvalidSpec: It builds no scalar env.
        EndpointFault: Building raised or exited.
    """
    return _Opener(conformance, None, Limits(), None).build_lane(source, lane)


class _Opener:
    """Builds ports that share one checker and one reporter, so that N lanes warn once."""

    def __init__(
        self,
        conformance: Policy,
        report: Report | None,
        limits: Limits,
        thread: OwnThread | None,
        *,
        cancel: CancelToken | None = None,
        servers: int = 1,
    ) -> None:
        report = report or log_warning
        self._reporter = OnceReporter(report)
        if conformance not in POLICIES:
            raise InvalidSpec(
                "conformance", f"wants one of {', '.join(POLICIES)}, got {conformance!r}"
            )
        self._checker = Checker("observation", conformance, report=report)
        self._limits = limits
        self._thread = thread
        self._cancel = cancel
        self._servers = servers

    def watch(self, port: RemoteEnvPort) -> RemoteEnvPort:
        """Return the port of a served env that its user has connected, for this run."""
        return port.watched(self._checker)

    def open_one(self, source: EnvSource, num_envs: int | None) -> EnvPort:
        """Open an instance, or what one factory builds."""
        if source.instance is not None:
            return self._open_instance(source, num_envs)
        if source.address is not None:
            return self._open_address(source.address, source, num_envs)
        count = num_envs or 1
        if count > 1 and source.always_scalar:
            return self._open_lanes([source] * count)
        first = self._host(source, lane=0, thread=self._thread if count == 1 else None)
        first.build(self._limits.env_connect_s)
        if isinstance(first.port, VectorEnvPort):
            try:
                _check_width(first.contract.num_envs, num_envs, first.contract.id)
            except InvalidSpec:
                discard(first)
                raise
            return first
        if count == 1:
            return first
        others = [self._host(source, lane=lane) for lane in range(1, count)]
        return LaneEnvs.build([first, *others], self._limits.env_connect_s)

    def build_lane(self, source: EnvSource, lane: int) -> EnvPort:
        """Build a lane here and now."""
        if source.make is None:
            raise InvalidSpec("env", f"{source.name} is not built from a factory")
        try:
            return self._port(source.make(lane), lane=lane, in_lanes=True)
        except InvalidSpec:
            raise
        except BaseException as exc:
            where = f"building {source.name}"
            raise construction_fault(exc, where=where, env_index=lane) from exc

    def open_list(
        self, envs: Sequence[Any], num_envs: int | None, env_kwargs: Mapping[str, Any] | None
    ) -> EnvPort:
        """Open independent lanes, one per entry."""
        if not envs:
            raise InvalidSpec("env", "is an empty list; give one env or factory per lane")
        if num_envs is not None and num_envs != len(envs):
            raise InvalidSpec(
                "num_envs", f"is {num_envs}, but the list has {len(envs)} envs; leave it out"
            )
        sources = [
            find_source(env, env_kwargs, field=f"env[{lane}]") for lane, env in enumerate(envs)
        ]
        seen: dict[int, int] = {}
        for lane, source in enumerate(sources):
            if source.instance is None:
                continue
            if is_vector_env(source.instance):
                raise _vector_in_lanes(lane)
            if (other := seen.setdefault(id(source.instance), lane)) != lane:
                raise InvalidSpec(
                    f"env[{lane}]", f"is the same instance as env[{other}]; give each lane its own"
                )
        return self._open_lanes(sources)

    def _open_lanes(self, sources: Sequence[EnvSource]) -> EnvPort:
        hosts = [
            self._host(source, lane=lane, in_lanes=True) for lane, source in enumerate(sources)
        ]
        return LaneEnvs.build(hosts, self._limits.env_connect_s)

    def _open_address(self, address: str, source: EnvSource, num_envs: int | None) -> EnvPort:
        port = self._connect(address)
        width = port.contract.num_envs
        if num_envs in (None, width):
            if isinstance(port, RemoteEnvPort):
                port.thread = self._thread
            return port
        if width != 1:
            port.close(self._limits.close_s)
            _check_width(width, num_envs, address)
        first = [port]

        def build() -> EnvPort:
            return OneOfLanes(first.pop(), 0) if first else self._connect_lane(address, 0)

        lane_0 = HostedEnv(build, name=f"{source.name}[0]", env_index=0)
        others = [self._host(source, lane=lane, in_lanes=True) for lane in range(1, num_envs)]
        return LaneEnvs.build([lane_0, *others], self._limits.env_connect_s)

    def _connect(self, address: str) -> Any:
        return connect_env(
            address,
            in_turn(_driven(), self._servers),
            limits=self._limits,
            cancel=self._cancel,
            checker=self._checker,
        )

    def _connect_lane(self, address: str, lane: int) -> EnvPort:
        try:
            port = self._connect(address)
        except NoPlace as fault:
            raise NoPlace(
                f"{fault.detail}. Each lane takes a place, and this run may hold them all: give "
                "the server --max-sessions of num_envs or more",
                error_class=fault.error_class,
                outcome=fault.outcome,
            ) from fault
        if port.contract.num_envs != 1:
            port.close(self._limits.close_s)
            raise _vector_in_lanes(lane)
        return OneOfLanes(port, lane)

    def _open_instance(self, source: EnvSource, num_envs: int | None) -> EnvPort:
        env = source.instance
        width = int(env.num_envs) if is_vector_env(env) else 1
        if width != (num_envs or width):
            if is_vector_env(env):
                _check_width(width, num_envs, source.name)
            raise InvalidSpec(
                "num_envs",
                f"is {num_envs}, but one instance of {source.name} is one lane; give its factory, "
                f"or a list of {num_envs} instances",
            )
        return self._port(env, lane=0, in_lanes=False)

    def _host(
        self,
        source: EnvSource,
        *,
        lane: int,
        in_lanes: bool = False,
        thread: OwnThread | None = None,
    ) -> HostedEnv:
        """Prepare the host of a lane; nothing is built yet."""

        def build() -> EnvPort:
            if source.address is not None:
                return self._connect_lane(source.address, lane)
            env = source.instance if source.make is None else source.make(lane)
            return self._port(env, lane=lane, in_lanes=in_lanes or lane > 0)

        return HostedEnv(
            build,
            name=f"{source.name}[{lane}]" if in_lanes or lane else source.name,
            can_rebuild=source.instance is None,
            thread=thread,
            env_index=lane,
        )

    def _port(self, env: Any, *, lane: int, in_lanes: bool) -> EnvPort:
        """Return the port of an env instance."""
        if is_dm_env(env):
            env = adapt_dm_env(env, self._reporter)
        check_no_vec_env(env, "env", "the factory returned")
        if not is_env(env):
            raise InvalidSpec(
                "env", f"the factory returned {type(env).__name__}, which has no reset and step"
            )
        if not is_vector_env(env):
            return GymEnvPort(env, env_index=lane, checker=self._checker, reporter=self._reporter)
        if in_lanes:
            raise _vector_in_lanes(lane)
        return VectorEnvPort(env, checker=self._checker, reporter=self._reporter)


def _driven() -> ClientOptions:
    """Return how to connect to an env that is driven here.

    Its observations stay where the server put them until nobody holds them: what a policy is given
    is a copy anyway, which it may write into.
    """
    return client_options(connection=ConnectionOptions(lent=True))


def _check_width(width: int, num_envs: int | None, name: str) -> None:
    if num_envs is not None and num_envs != width:
        raise InvalidSpec(
            "num_envs",
            f"is {num_envs}, but {name} has {width} lanes; leave num_envs out, or build it with "
            f"{num_envs} lanes",
        )


def _vector_in_lanes(lane: int) -> InvalidSpec:
    return InvalidSpec(
        f"env[{lane}]", "is a vector env; lanes are scalar envs: give the vector env alone"
    )
