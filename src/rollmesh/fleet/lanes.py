"""A fleet as one env port: many lanes, over worker processes and served envs (layer 7).

    fleet = FleetEnvs.open({"": EnvTarget.of("CartPole-v1")}, workers=8)
    try:
        RouteDriver(SessionSpec(env_contract=fleet.contract, …), fleet, model).run()
    finally:
        fleet.close(5.0)

Lane i lives in worker i // lanes_per_worker; lanes behind addresses come after those. The contract
is that of the first env that was built; every other one is compared with it. Workers start when one
of their lanes is first prepared.

Answers are read on the thread that waits for them (`ReadByWaiter`): the engine's. Nothing here may
be used by two threads at once.
"""

from __future__ import annotations

import logging
import queue
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from rollmesh.endpoint.faults import refusal_of
from rollmesh.endpoint.reporting import log_warning
from rollmesh.errors import EndpointFault, InvalidSpec, PortTimeout, WorkerLost
from rollmesh.fleet.hub import Hub
from rollmesh.fleet.pool import LocalPool, Pool
from rollmesh.fleet.supervisor import Setup, Supervisor
from rollmesh.fleet.worker_life import Worker
from rollmesh.fleet.worker_options import Tell, WorkerOptions
from rollmesh.fleet.worker_spec import EnvTarget
from rollmesh.limits import Limits
from rollmesh.ports import (
    PREPARE,
    REBUILD,
    SUBSET_STEP,
    Callback,
    EnvContract,
    PrepareRequest,
    ResetReply,
    ResetRequest,
    StepReply,
    StepRequest,
)
from rollmesh.spaces.conformance import Checker

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["FleetEnvs"]

_logger = logging.getLogger(__name__)

_NO_SETUP = Setup(name="", target=EnvTarget(text="a served env"))
_LOOK_AGAIN_S = 1.0


class _Host(Protocol):
    """What lanes live in: a worker, or a served env."""

    @property
    def is_idle(self) -> bool: ...
    def prepare(self, lane: int, setup: Setup, callback: Callback) -> None: ...
    def step(self, lane: int, request: StepRequest, callback: Callback) -> None: ...
    def reset(self, lane: int, request: ResetRequest, callback: Callback) -> None: ...
    def forget_env(self, lane: int) -> None: ...
    def abandon(self, lanes: frozenset[int], reason: str) -> None: ...
    def close(self, callback: Callback) -> None: ...
    def kill(self) -> None: ...


class FleetEnvs:
    """Drives many lanes over workers; see the module. Made by `open`.

    Attributes:
        contract: What the lanes are, and how many.
        capabilities: Lanes go their own ways, can be built anew, and want to be prepared.
    """

    capabilities: frozenset[str] = frozenset({SUBSET_STEP, REBUILD, PREPARE})

    def __init__(
        self,
        setups: Mapping[str, Setup],
        *,
        hub: Hub,
        shared: Supervisor,
        hosts: Sequence[_Host],
    ) -> None:
        """Take over what `open` has made; use `open`."""
        self._setups = dict(setups)
        self._hub = hub
        self._shared = shared
        self._hosts = tuple(hosts)
        self._all_hosts = tuple(dict.fromkeys(hosts))
        self._is_closed = False
        contract = shared.contract
        assert contract is not None  # noqa: S101 - the first env has been built
        self.contract: EnvContract = replace(contract, num_envs=len(hosts))

    @classmethod
    def open(
        cls,
        setups: Mapping[str, EnvTarget],
        *,
        workers: int = 0,
        lanes_per_worker: int = 1,
        addresses: Sequence[str] = (),
        options: WorkerOptions | None = None,
        pool: Pool | None = None,
        tell: Tell | None = None,
    ) -> Self:
        """Build the first env, and return the fleet once its contract is known.

        What builds the others is looked for as well, so that a mistyped name is refused at once.

        Args:
            setups: What a lane may be asked to hold, by name; the first one is built first. May be
                empty where all lanes are addresses.
            workers: Worker processes.
            lanes_per_worker: Lanes of each; several have a thread each there.
            addresses: Served envs, a lane each; the same one twice is two sessions.
            options: Limits, threads, cores.
            pool: Where workers come from; processes of this machine by default. The fleet owns it.
            tell: Told of every worker's states, on the thread that waits; served envs are numbered
                after the workers.

        Raises:
            InvalidSpec: The arguments contradict each other, or the env of a later setup is not
                there.
            EndpointFault: The first env could not be built.
        """
        _check(setups, workers, lanes_per_worker, addresses)
        options = options or WorkerOptions()
        named = {name: Setup(name=name, target=target) for name, target in setups.items()}
        processes = workers * lanes_per_worker + 1
        hub = Hub(processes)
        shared = Supervisor(
            hub, pool or LocalPool(), options=options, processes=processes, tell=tell
        )
        hosts = _working(workers, lanes_per_worker, shared)
        hosts += _served(addresses, len(hosts), workers, shared)
        setup = next(iter(named.values()), _NO_SETUP)
        try:
            _wait_for(hub, lambda land: hosts[0].prepare(0, setup, land), None)
            if isinstance(first_host := hosts[0], Worker):
                _look_up(hub, first_host, list(named.values())[1:])
            return cls(named, hub=hub, shared=shared, hosts=hosts)
        except BaseException:
            for host in dict.fromkeys(hosts):
                host.kill()
            shared.close()
            hub.close()
            raise

    @property
    def starts(self) -> int:
        """How many workers have been started so far."""
        return self._shared.starts

    @property
    def deaths(self) -> int:
        """How many workers have been lost so far: died, or killed because they hung."""
        return self._shared.deaths

    # ------------------------------------------------------------------- SubmitsOperations

    def submit(
        self, method: str, request: Any, callback: Callback, env_indices: tuple[int, ...]
    ) -> None:
        """Start an operation of one lane (or `close`, of all) and return at once.

        What is to be asked of several lanes is asked of each; `reset` and `step` here do that.
        """
        if method == "close":
            self._close(callback)
            return
        lane = env_indices[0] if env_indices else 0
        if len(env_indices) > 1 or (not env_indices and len(self._hosts) > 1):
            callback(_one_lane(method))
            return
        host = self._hosts[lane]
        if method == "step":
            host.step(lane, request, callback)
        elif method == "reset":
            host.reset(lane, request, callback)
        elif method == "prepare":
            self._prepare(host, lane, request, callback)
        elif method == "rebuild":
            host.forget_env(lane)  # `prepare` does it, and is tried again where a worker is lost
            callback(None)
        else:
            callback(RuntimeError(f"a fleet has no operation {method!r}"))

    def abandon(self, env_indices: tuple[int, ...] = ()) -> None:
        """Leave what these lanes do behind (none named: all): their workers are killed."""
        lanes = frozenset(env_indices or range(len(self._hosts)))
        for host in dict.fromkeys(self._hosts[lane] for lane in sorted(lanes)):
            host.abandon(lanes, "it did not come back in time")

    # ------------------------------------------------------------------------ ReadByWaiter

    def wait(self, timeout_s: float) -> None:
        """Hand over the answers that have come; where there is none, wait for one so long."""
        self._hub.wait(timeout_s)

    def wake(self) -> None:
        """End a wait. Any thread may, and signal handlers."""
        self._hub.wake()

    # ----------------------------------------------------------------------------- EnvPort

    def prepare(self, request: PrepareRequest) -> None:
        """Have lanes hold the env of a setup, and wait for it.

        Raises:
            EndpointFault: It could not be built, or a worker was lost (`WorkerLost`).
        """
        for lane in request.env_indices or range(len(self._hosts)):
            one = PrepareRequest((lane,), request.setup)
            self._wait("prepare", one, lane, 0)

    def reset(self, request: ResetRequest) -> ResetReply:
        """Reset one lane and wait for it.

        Raises:
            EndpointFault: Its env failed, or its worker was lost (`WorkerLost`).
        """
        return self._wait("reset", request, _only(request.env_indices), request.timeout_ms)

    def step(self, request: StepRequest) -> StepReply:
        """Step one lane and wait for it.

        Raises:
            EndpointFault: As `reset`.
        """
        return self._wait("step", request, _only(request.env_indices), request.timeout_ms)

    def rebuild(self, env_indices: tuple[int, ...]) -> None:
        """Have these lanes (none named: all) built anew before their next episode."""
        for lane in env_indices or range(len(self._hosts)):
            self._hosts[lane].forget_env(lane)

    def close(self, timeout_s: float | None = None) -> None:
        """Close all envs, end all workers, and let go of everything. Any number of times.

        Raises:
            TimeoutError: Some did not end in time; they were killed.
            EndpointFault: Closing an env raised this; all workers have ended all the same.
        """
        if self._is_closed:
            return
        self._is_closed = True
        try:
            _wait_for(self._hub, self._close, timeout_s)
        except PortTimeout:
            for host in self._all_hosts:
                host.kill()
            raise TimeoutError(
                f"the workers did not close their envs within {timeout_s:g} s; killed"
            ) from None
        finally:
            self._shared.close()
            self._hub.close()

    def leave(self) -> None:
        """Let go of everything once a route has closed the envs; kill what is left.

        Any number of times.
        """
        if self._is_closed:
            return
        self._is_closed = True
        for host in self._all_hosts:
            host.kill()
        self._shared.close()
        self._hub.close()

    # ------------------------------------------------------------------------------- inside

    def _prepare(self, host: _Host, lane: int, request: PrepareRequest, callback: Callback) -> None:
        setup = self._setups.get(request.setup) if self._setups else _NO_SETUP
        if setup is None:
            known = ", ".join(repr(name) for name in self._setups)
            callback(InvalidSpec("setup", f"there is no {request.setup!r}; known ones: {known}"))
            return
        host.prepare(lane, setup, callback)

    def _wait(self, method: str, request: Any, lane: int, limit_ms: int) -> Any:
        def begin(land: Callback) -> None:
            self.submit(method, request, land, (lane,))

        try:
            return _wait_for(self._hub, begin, limit_ms / 1000.0 if limit_ms else None)
        except PortTimeout:
            self.abandon((lane,))
            raise

    def _close(self, callback: Callback) -> None:
        """Close all envs and end all workers; `callback` gets None, or the first failure.

        That there were further ones is logged.
        """
        hosts = self._all_hosts
        results: list[Any] = []

        def closed(result: Any) -> None:
            results.append(result)
            if len(results) == len(hosts):
                failures = [one for one in results if isinstance(one, BaseException)]
                if more := failures[1:]:
                    _logger.warning("close_failed more=%d error=%s", len(more), more[0])
                callback(failures[0] if failures else None)

        for host in hosts:
            host.close(closed)


def _wait_for(hub: Hub, begin: Callable[[Callback], object], timeout_s: float | None) -> Any:
    """Begin something that calls back, and wait for it here.

    Raises:
        PortTimeout: It did not come back in time.
        BaseException: What it came to.
    """
    arrived: queue.SimpleQueue[Any] = queue.SimpleQueue()
    begin(arrived.put)
    expiry = None if timeout_s is None else time.monotonic() + timeout_s
    while arrived.empty():
        left_s = _LOOK_AGAIN_S if expiry is None else expiry - time.monotonic()
        if left_s <= 0:
            raise PortTimeout(f"no answer came within {timeout_s:g} s")
        hub.wait(min(left_s, _LOOK_AGAIN_S))
    result = arrived.get()
    if isinstance(result, BaseException):
        raise result
    return result


def _look_up(hub: Hub, worker: Worker, setups: Sequence[Setup]) -> None:
    """Have a worker look for what builds the envs of these setups.

    A worker that is lost over it, or takes too long, says nothing about a name: the rest is left
    to building them.

    Raises:
        InvalidSpec: One names nothing that builds an env.
    """
    for setup in setups:
        try:
            _wait_for(hub, lambda land, setup=setup: worker.look_up(0, setup, land), None)
        except WorkerLost:
            return
        except EndpointFault as fault:
            if (refusal := refusal_of(fault, "env")) is not None:
                reason = str(refusal).removeprefix(f"{refusal.field}: ")
                where = f"of task {setup.name!r}: " if setup.name else ""
                raise InvalidSpec(refusal.field, f"{where}{reason}") from fault


def _working(workers: int, lanes_per_worker: int, shared: Supervisor) -> list[_Host]:
    """Return who holds each lane of the workers; none is started yet."""
    hosts: list[_Host] = []
    for number in range(workers):
        first = number * lanes_per_worker
        worker = Worker(number, tuple(range(first, first + lanes_per_worker)), shared)
        hosts += [worker] * lanes_per_worker
    return hosts


def _served(
    addresses: Sequence[str], first_lane: int, first_number: int, shared: Supervisor
) -> list[_Host]:
    if not addresses:
        return []
    from rollmesh.fleet.served import ServedLane

    limits = Limits(env_connect_s=shared.options.load_s, close_s=shared.options.close_s)
    checker = Checker("observation", shared.options.conformance, report=log_warning)
    return [
        ServedLane(
            address,
            first_lane + place,
            number=first_number + place,
            hub=shared.hub,
            agree=shared.agree,
            tell=shared.tell,
            limits=limits,
            checker=checker,
        )
        for place, address in enumerate(addresses)
    ]


def _check_count(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidSpec(name, f"wants a whole number of {least} or more, got {value!r}")


def _check(
    setups: Mapping[str, EnvTarget], workers: int, lanes_per_worker: int, addresses: Sequence[str]
) -> None:
    for name, value, least in (("workers", workers, 0), ("lanes_per_worker", lanes_per_worker, 1)):
        _check_count(name, value, least)
    if not workers and not addresses:
        raise InvalidSpec("workers", "a fleet wants one worker or address at least")
    if workers and not setups:
        raise InvalidSpec("env", "workers want to know what env to build")
    if addresses and len({one.to_json() for one in setups.values()}) > 1:
        raise InvalidSpec(
            "env",
            "a served env is what its server holds, and cannot change with the task: run tasks of "
            "different envs on workers only",
        )


def _only(env_indices: tuple[int, ...]) -> int:
    if len(env_indices) > 1:
        raise _one_lane("a request")
    return env_indices[0] if env_indices else 0


def _one_lane(what: str) -> EndpointFault:
    return EndpointFault(
        f"{what} names several lanes, and the lanes of a fleet go their own ways: one at a time",
        error_class="Unsupported",
        outcome="not_done",
    )
