"""Looks at a served endpoint: who it is, what it serves, and how fast the way there is (layer 6).

    report = probe("rollmesh+unix:///run/env.sock")
    print(report.service, report.path, report.round_trips[0].p50_us)

A probe says hello, measures the way with messages as large as the endpoint's own actions and
observations, and leaves. No model is asked, and no env reset or stepped unless `steps` says so. It
takes a place for that long; where none is free it does not wait, and tells what the hello told.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from rollmesh.endpoint.clients.client_options import (
    ClientOptions,
    client_options,
    refusal_hint,
    silence_hint,
)
from rollmesh.endpoint.error_bodies import Refused
from rollmesh.endpoint.identity import SERVER_FACT
from rollmesh.errors import (
    ConnectFailed,
    EndpointFault,
    RollmeshError,
    TransportError,
    TransportTimeout,
    WireError,
)
from rollmesh.ports import AutoresetMode, EnvContract, ResetRequest, StepRequest
from rollmesh.transport.address import Address, parse_address
from rollmesh.transport.connect_errors import HandshakeRefused
from rollmesh.transport.connection import Connection
from rollmesh.transport.security import check_dial
from rollmesh.transport.upgrade import ELSEWHERE, Path, choose_path
from rollmesh.wire.contract import decode_contract
from rollmesh.wire.handshake import EDITION, EDITIONS
from rollmesh.wire.messages import (
    GENERATION,
    Close,
    ErrorBody,
    Hello,
    Kind,
    Message,
    Probe,
    Welcome,
)

Service = Literal["env", "model"]
Health = Literal["serving", "full", "refused", "unreachable"]

SMALL_BYTES = 64
LARGE_BYTES = 2**20
_MOST_PAYLOAD = 2**26
_LEAST_TRIPS = 20
_MOST_TRIPS = 20_000
_WARM_UP = 3
_PAUSE_S = 0.1
_CALL_S = 10.0
_STEP_MS = 30_000
_KNOCK_S = 1.0
_NATIVE_S = 3.0
"""How long a welcome is waited for at a native address that may lead elsewhere."""
_GRPC_UNHEARD = "does it speak gRPC"
"""In the words of a dial that was no answer in gRPC."""
_OUR_CERTIFICATE = "a certificate of ours (--tls-client-cert) from a CA that it believes"


@dataclass(frozen=True, kw_only=True)
class RoundTrips:
    """How long messages of one size took there and back.

    Attributes:
        what: What is as large.
        payload_bytes: Their size, one way.
        count: How many there were.
        p50_us: Median, in microseconds.
        p99_us: 99th percentile, in microseconds.
        mb_per_s: Bytes moved there and back, in 10**6 bytes a second.
    """

    what: str
    payload_bytes: int
    count: int
    p50_us: float
    p99_us: float
    mb_per_s: float


@dataclass(frozen=True, kw_only=True)
class Steps:
    """How an env was stepped with random actions.

    Attributes:
        count: Steps, all lanes at once.
        steps_per_s: How many in a second.
        env_us: Median of the time at the server, in microseconds.
        way_p50_us: Median of the rest: there, back and waiting, in microseconds.
        way_p99_us: 99th percentile of that.
        mb_per_s: Bytes of actions and observations, in 10**6 bytes a second of that rest.
    """

    count: int
    steps_per_s: float
    env_us: float
    way_p50_us: float
    way_p99_us: float
    mb_per_s: float


@dataclass(frozen=True, kw_only=True)
class ProbeReport:
    """What a probe found.

    Attributes:
        address: What was probed.
        health: `serving`; `full`, where it serves but has no free place; `refused`, where it does
            not want us; `unreachable`.
        detail: What is wrong, in a sentence, or `""`.
        service: `env` or `model`; None where it did not say.
        taken: The address that it was reached at in the end.
        path: Which way messages take.
        why: Why that way.
        peer: Who serves, in its own words.
        capabilities: What it can do.
        editions: Workflow editions that it can follow.
        position: Our place in its queue.
        connect_ms: How long it took from dialing to the welcome, in milliseconds.
        contract: What is served; None for a model.
        round_trips: Measurements, smallest messages first.
        steps: How its env was stepped, where that was asked for.
    """

    address: str
    health: Health
    detail: str = ""
    service: Service | None = None
    taken: str = ""
    path: str = ""
    why: str = ""
    peer: dict[str, str] = field(default_factory=dict)
    capabilities: tuple[str, ...] = ()
    editions: tuple[str, ...] = ()
    position: int = 0
    connect_ms: float | None = None
    contract: EnvContract | None = None
    round_trips: tuple[RoundTrips, ...] = ()
    steps: Steps | None = None


def probe(
    address: str | Address,
    options: ClientOptions | None = None,
    *,
    service: Service | None = None,
    wait_s: float = 0.0,
    timeout_s: float = 10.0,
    measure_s: float = 1.0,
    steps: int = 0,
) -> ProbeReport:
    """Look at what is served at an address.

    Args:
        address: Where it is served.
        options: How to connect; the environment's if left out.
        service: What is expected there; found out if left out.
        wait_s: How long to try again where nobody answers: a server may be about to start.
        timeout_s: How long one try may take to connect and to say hello.
        measure_s: How long to measure, in all.
        steps: How often to step an env with random actions, after a reset.

    Raises:
        EndpointFault: The env failed in such a step.
        InvalidSpec: That is no address, or the options do not go with it.
    """
    where = address if isinstance(address, Address) else parse_address(address)
    options = options or client_options()
    check_dial(
        where,
        token=options.token,
        tls=options.tls,
        insecure_plaintext=options.insecure_plaintext,
    )
    plan = _Plan(timeout_s=timeout_s, measure_s=measure_s, steps=steps)
    give_up = time.monotonic() + wait_s
    while True:
        report = _try(where, options, service, plan)
        if report.health != "unreachable" or time.monotonic() >= give_up:
            return report
        time.sleep(_PAUSE_S)


@dataclass(frozen=True, kw_only=True)
class _Plan:
    """What to do, and how long it may take; see `probe`."""

    timeout_s: float
    measure_s: float
    steps: int


def _try(
    address: Address, options: ClientOptions, service: Service | None, plan: _Plan
) -> ProbeReport:
    wanted: tuple[Service, ...] = ("env", "model") if service is None else (service,)
    detail = ""
    for one in wanted:
        try:
            return _look(address, options, one, plan)
        except _Unwelcome as unwelcome:
            detail = f"{unwelcome.body.code}: {unwelcome.body.message}"
            if unwelcome.body.code == "unauthenticated":
                detail = f"{detail}; {refusal_hint(options.token)}"
            if unwelcome.body.code != "incompatible":
                break
        except (TransportError, TransportTimeout, WireError) as error:
            health: Health = "unreachable" if isinstance(error, ConnectFailed) else "refused"
            detail = _hint(address, error, options)
            return ProbeReport(address=str(address), health=health, detail=detail)
    return ProbeReport(address=str(address), health="refused", detail=detail)


class _Unwelcome(Exception):  # noqa: N818 - never leaves this module
    """The server does not want us."""

    def __init__(self, body: ErrorBody) -> None:
        super().__init__(body.message)
        self.body = body


def _look(address: Address, options: ClientOptions, service: Service, plan: _Plan) -> ProbeReport:
    begun = time.monotonic()
    way, welcome = _open(address, service, options, begun + plan.timeout_s)
    with way.connection as connection:
        report = ProbeReport(
            address=str(address),
            health="full" if welcome.position and not welcome.detail else "serving",
            service=service,
            path=connection.path,
            taken=way.address,
            why=way.reason,
            peer=dict(welcome.peer),
            capabilities=tuple(
                sorted(key for key, value in welcome.capabilities.items() if value == "true")
            ),
            editions=welcome.editions,
            position=welcome.position,
            connect_ms=(time.monotonic() - begun) * 1000.0,
            contract=decode_contract(welcome.contract) if welcome.contract else None,
        )
        if welcome.position:
            queued = f"all places are taken; we would be number {welcome.position} in the queue"
            return replace(report, detail=welcome.detail or queued)
        report = _measure_all(report, connection, plan)
        with contextlib.suppress(RollmeshError):
            close = Close(reason="probed", timeout_ms=1000)
            connection.call(Message(Kind.CLOSE, connection.next_id(), close), 1.0)
        return report


def _open(
    address: Address, service: Service, options: ClientOptions, expiry: float
) -> tuple[Path, Welcome]:
    """Connect and be welcomed, past native addresses that lead elsewhere from here."""
    avoid: dict[str, str] = {}
    while True:
        try:
            way = choose_path(
                address,
                service,
                transport=options.transport,
                options=options.connection,
                token=options.token,
                tls=options.tls,
                timeout_s=_left(expiry),
                avoid=avoid,
            )
        except HandshakeRefused as refused:
            raise _Unwelcome(refused.refusal) from refused
        goes_on = bool(way.server) and options.transport == "auto"
        try:
            return way, _greet(way, service, options, expiry)
        except BaseException as error:
            way.connection.close()
            is_other = isinstance(error, _Unwelcome) and error.body.code in ELSEWHERE
            is_none = isinstance(error, (TransportError, TransportTimeout, WireError))
            if not goes_on or not (is_other or is_none):
                raise
            avoid[way.address] = "another server is there" if is_other else "no welcome there"


def _greet(way: Path, service: Service, options: ClientOptions, expiry: float) -> Welcome:
    connection, hello_s = way.connection, _left(expiry)
    peer = {"component": "rollmesh-probe", "process": str(os.getpid())}
    if way.server:
        peer[SERVER_FACT] = way.server
        hello_s = min(hello_s, _NATIVE_S)
    hello = Hello(
        generation=GENERATION,
        service=service,
        token="" if options.token is None else options.token.secret,
        peer=peer,
        editions=EDITIONS,
        preferred_edition=EDITION,
    )
    reply = connection.call(Message(Kind.HELLO, connection.next_id(), hello), hello_s)
    body = reply.body
    with contextlib.suppress(TransportTimeout):
        while isinstance(body, Welcome) and body.position and body.detail:  # its env is being built
            body = connection.receive(_left(expiry)).body
    if isinstance(body, ErrorBody):
        raise _Unwelcome(body)
    if not isinstance(body, Welcome):
        raise WireError(f"a {reply.kind.name} message in answer to HELLO")
    if not body.is_compatible:
        raise _Unwelcome(Refused("incompatible", body.detail).body)
    return body


def _left(expiry: float) -> float:
    return max(0.001, expiry - time.monotonic())


# --------------------------------------------------------------------------------- measuring


def _measure_all(report: ProbeReport, connection: Connection, plan: _Plan) -> ProbeReport:
    contract = report.contract
    sizes = [("small messages", SMALL_BYTES), ("large messages", LARGE_BYTES)]
    if contract is not None:
        connection.framing.bind(
            contract.observation_space.codec, contract.action_space.codec, contract.num_envs
        )
        action, observation = (
            _batch_bytes(contract, space.codec)
            for space in (contract.action_space, contract.observation_space)
        )
        sizes = [("actions", action), ("observations", observation)]
    try:
        trips = [
            _measure(connection, what, min(size, _MOST_PAYLOAD), plan.measure_s / len(sizes))
            for what, size in sizes
        ]
    except WireError:
        detail = "none of ours, so that only steps can be measured"
        report = replace(report, detail=detail)
    else:
        report = replace(report, round_trips=tuple(trips), path=connection.path)
    if contract is None or plan.steps <= 0:
        return report
    return replace(report, steps=_step(connection, contract, plan.steps))


def _batch_bytes(contract: EnvContract, codec: Any) -> int:
    """Return the bytes of a batch; of parts that vary in size only the fixed ones count."""
    row_bytes = sum([spec.row_bytes or 0 for spec in codec.leaf_specs])
    return max(1, row_bytes * contract.num_envs)


def _measure(connection: Connection, what: str, size: int, measure_s: float) -> RoundTrips:
    """Send a message of this size there and back, again and again."""
    body = Probe(os.urandom(size))
    times: list[int] = []
    next_id, call, clock = connection.next_id, connection.call, time.perf_counter_ns
    stop = clock() + int(measure_s * 1e9)
    for _ in range(_WARM_UP):
        call(Message(Kind.PROBE, next_id(), body), _CALL_S)
    while len(times) < _MOST_TRIPS and (len(times) < _LEAST_TRIPS or clock() < stop):
        begun = clock()
        call(Message(Kind.PROBE, next_id(), body), _CALL_S)
        times.append(clock() - begun)
    times.sort()
    return RoundTrips(
        what=what,
        payload_bytes=size,
        count=len(times),
        p50_us=_percentile(times, 50),
        p99_us=_percentile(times, 99),
        mb_per_s=2e3 * size * len(times) / sum(times),
    )


def _step(connection: Connection, contract: EnvContract, count: int) -> Steps:
    """Step the env with random actions; it is reset at the start and where an episode ends."""
    from rollmesh.spaces.gymnasium import to_gymnasium

    space = to_gymnasium(contract.action_space)
    codec, rows = contract.action_space.codec, contract.num_envs
    ids = tuple([f"probe-{lane}" for lane in range(rows)])
    samples = [codec.encode_many([space.sample() for _ in range(rows)]) for _ in range(16)]
    reset = ResetRequest(episode_ids=ids, seeds=tuple(range(rows)), timeout_ms=_STEP_MS)
    spent: list[int] = []
    at_env: list[int] = []
    moved = 0
    _operate(connection, Kind.RESET, reset)
    begun = time.perf_counter()
    for number in range(count):
        request = StepRequest(
            action=samples[number % len(samples)],
            episode_ids=ids,
            next_episode_ids=ids if contract.autoreset_mode is AutoresetMode.SAME_STEP else (),
            timeout_ms=_STEP_MS,
        )
        sent_ns = time.perf_counter_ns()
        reply = _operate(connection, Kind.STEP, request)
        spent.append(time.perf_counter_ns() - sent_ns)
        at_env.append(reply.body.endpoint_total_ns or 0)
        moved += reply.nbytes + codec.nbytes(request.action, rows)
        if reply.body.completions and contract.autoreset_mode is AutoresetMode.DISABLED:
            _operate(connection, Kind.RESET, reset)
    took_s = time.perf_counter() - begun
    ways = sorted([whole - env for whole, env in zip(spent, at_env, strict=True)])
    return Steps(
        count=count,
        steps_per_s=count / took_s,
        env_us=sorted(at_env)[count // 2] / 1e3,
        way_p50_us=_percentile(ways, 50),
        way_p99_us=_percentile(ways, 99),
        mb_per_s=1e3 * moved / max(1, sum(ways)),
    )


def _operate(connection: Connection, kind: Kind, request: Any) -> Message:
    message = Message(kind, connection.next_id(), request)
    reply = connection.call(message, _STEP_MS / 1000.0 + 1.0)
    body = reply.body
    if isinstance(body, ErrorBody):
        raise EndpointFault(
            f"env.{kind.name.lower()}: {body.message}",
            error_class=body.error_class,
            traceback_text=body.traceback_text,
        )
    return reply


def _percentile(sorted_ns: list[int], percent: int) -> float:
    """Return a percentile in microseconds."""
    return sorted_ns[min(len(sorted_ns) - 1, len(sorted_ns) * percent // 100)] / 1e3


# ---------------------------------------------------------------------------------- in words


def _hint(address: Address, error: Exception, options: ClientOptions) -> str:
    text = str(error).removeprefix(f"{address}: ")
    other = str(address).replace("rollmesh+", "") if address.protocol == "native" else ""
    if address.protocol == "grpc":
        other = f"rollmesh+{address}"
    wanted = "TLS (--tls-ca)" if options.tls is None else _OUR_CERTIFICATE
    if isinstance(error, ConnectFailed):
        is_unheard = address.protocol == "grpc" and _GRPC_UNHEARD in text
        if is_unheard and _is_somebody_there(address):
            return (
                f"somebody listens there, but wants {wanted}, or does not speak gRPC; try {other}"
            )
        return text
    return (
        f"somebody accepts connections but gives no welcome ({text}); is it a rollmesh server, "
        f"does it want {wanted}, and is the scheme right (the other one is {other})? "
        f"{silence_hint(options.token)}"
    )


def _is_somebody_there(address: Address) -> bool:
    is_unix = address.family == "unix"
    family = (
        socket.AF_UNIX if is_unix else socket.AF_INET6 if ":" in address.host else socket.AF_INET
    )
    with socket.socket(family) as sock:
        sock.settimeout(_KNOCK_S)
        try:
            sock.connect(address.path if is_unix else (address.host, address.port))
        except OSError:
            return False
        return True
