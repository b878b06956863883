"""A worker process: holds lanes of a fleet and does what its driver asks (layer 7).

Run as `python -m rollmesh.fleet.worker`, by a pool and by nobody else. It reads its `WorkerSpec`
from standard input, dials the driver, says who it is, and from then on answers requests: CONFIGURE
builds the env of a lane (or only looks for what would build one), RESET and STEP are those of
`ports`, CLOSE closes all envs and ends it.

A single lane lives on the main thread, and is answered there. Several have a thread each (built,
used and closed on it) and are answered as they come back. There are no deadlines here: a driver
that has waited too long kills the process.
"""

from __future__ import annotations

import base64
import contextlib
import logging
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from rollmesh.endpoint.child_process import begin, load_main
from rollmesh.endpoint.envs.env_factory import EnvSource, find_source
from rollmesh.endpoint.envs.env_loading import build_lane
from rollmesh.endpoint.error_bodies import error, error_body
from rollmesh.endpoint.own_thread import OwnThread
from rollmesh.errors import ConnectionLost, InvalidValue, TransportTimeout, WireError
from rollmesh.fleet.door import SERVICE
from rollmesh.fleet.pool import LOG_MARK
from rollmesh.fleet.worker_spec import EnvTarget, WorkerSpec
from rollmesh.ports import EnvContract, EnvPort
from rollmesh.transport.connection import Connection, ConnectionOptions
from rollmesh.transport.dialing import dial
from rollmesh.wire.contract import decode_contract, encode_contract
from rollmesh.wire.messages import GENERATION, Configure, Done, Hello, Kind, Message, Welcome

_logger = logging.getLogger(__name__)
_now_ns = time.perf_counter_ns
_METHODS = {Kind.RESET: "reset", Kind.STEP: "step"}


def main() -> None:
    """Be a worker of the process that started this one."""
    run(WorkerSpec.from_json(begin()["spec"]))


def run(spec: WorkerSpec) -> None:
    """Be a worker, until the driver says that it is over or is gone."""
    if spec.cpus is not None and hasattr(os, "sched_setaffinity"):
        with contextlib.suppress(OSError):  # cores that this machine does not have
            os.sched_setaffinity(0, spec.cpus)
    _log_to_driver()
    connection = dial(spec.address, ConnectionOptions(processes=spec.processes))
    peer = {"worker": spec.name, "pid": str(os.getpid())}
    hello = Hello(generation=GENERATION, service=SERVICE, token=spec.token, peer=peer)
    connection.send(Message(Kind.HELLO, connection.next_id(), hello))
    lanes = WorkerLanes(connection, spec)
    try:
        lanes.serve()
    finally:
        connection.close()


class WorkerLanes:
    """The lanes of a worker.

    Args:
        connection: To the driver.
        spec: Of the worker.
    """

    def __init__(self, connection: Connection, spec: WorkerSpec) -> None:
        self._connection = connection
        self._spec = spec
        self._lanes = {lane: _Lane(lane, own_thread=len(spec.lanes) > 1) for lane in spec.lanes}
        self._only = self._lanes[spec.lanes[0]]
        self._is_over = False
        self._is_bound = False

    def serve(self) -> None:
        """Carry out requests until it is over."""
        receive = self._connection.receive
        with contextlib.suppress(ConnectionLost, TransportTimeout):
            while not self._is_over:
                self._carry_out(receive())

    def _carry_out(self, message: Message) -> None:
        method = _METHODS.get(message.kind)
        if method is not None:
            self._use(message, method)
        elif message.kind is Kind.CONFIGURE:
            self._configure(message)
        elif message.kind is Kind.CLOSE:
            self._is_over = True
            self._close_all(message)

    def _use(self, message: Message, method: str) -> None:
        request = message.body
        indices = request.env_indices
        lane = self._lanes[indices[0]] if indices else self._only
        begun_ns = _now_ns()

        def answer(result: Any) -> None:
            if not isinstance(result, BaseException):
                result.endpoint_total_ns = _now_ns() - begun_ns
            self._answer(message, result, f"env.{method}")

        lane.do(getattr(lane.port, method, _not_built), answer, request)

    def _answer(self, request: Message, result: Any, where: str) -> None:
        """Send what came of a request: a body, or what was raised."""
        request_id = request.request_id
        if isinstance(result, BaseException):
            body = error_body(result, where=where, is_trusted=True)
            reply = error(request_id, body)
        else:
            kind = Kind.WELCOME if type(result) is Welcome else request.kind
            reply = Message(kind, request_id, result)
        try:
            self._send(reply, where)
        except (ConnectionLost, TransportTimeout):  # whoever reads sees it
            return

    def _send(self, reply: Message, where: str) -> None:
        try:
            self._connection.send(reply)
        except (WireError, InvalidValue) as exc:
            body = error_body(exc, where=f"sending what {where} returned", is_trusted=True)
            self._connection.send(error(reply.request_id, body))

    # ------------------------------------------------------------------------ build and close

    def _configure(self, message: Message) -> None:
        configure: Configure = message.body
        settings = configure.settings
        lane = self._lanes[int(settings["lane"])]
        if "look_up" in settings:
            target = EnvTarget.from_json(settings["target"])
            answer = partial(self._answer, message, where="finding the env")
            lane.do(lambda: _look_up(target), answer)
            return
        known = settings.get("contract", "")
        if known and not self._is_bound:
            self._bind(decode_contract(base64.b64decode(known)))

        def build() -> Welcome:
            contract = lane.build(EnvTarget.from_json(settings["target"]), self._spec)
            if not self._is_bound:  # the first env of the fleet says what all are like
                self._bind(contract)
            return Welcome(generation=GENERATION, contract=encode_contract(contract))

        lane.do(build, lambda result: self._answer(message, result, "building the env"))

    def _bind(self, contract: EnvContract) -> None:
        self._is_bound = True
        self._connection.framing.bind(
            contract.observation_space.codec, contract.action_space.codec, len(self._lanes)
        )

    def _close_all(self, message: Message) -> None:
        results: list[Any] = []
        for lane in self._lanes.values():
            lane.do(lane.close, results.append)
        for lane in self._lanes.values():
            lane.finish()
        failures = [one for one in results if isinstance(one, BaseException)]
        self._answer(message, failures[0] if failures else Done(), "env.close")


class _Lane:
    """One env and where it lives.

    Attributes:
        port: The env, or None.
    """

    def __init__(self, index: int, *, own_thread: bool) -> None:
        self.port: EnvPort | None = None
        self._index = index
        self._thread = OwnThread(f"rollmesh-lane-{index}") if own_thread else None

    def do(self, call: Callable[..., Any], answer: Callable[[Any], None], *args: Any) -> None:
        """Call something where the env lives; `answer` gets the result, or what was raised."""
        if self._thread is not None:
            self._thread.submit(call, answer, *args)
            return
        try:
            result = call(*args)
        except BaseException as exc:  # noqa: BLE001 - told to the driver
            result = exc
        answer(result)

    def build(self, target: EnvTarget, spec: WorkerSpec) -> EnvContract:
        """Close the env that is there and build another one."""
        try:
            self.close()
        except BaseException as exc:  # noqa: BLE001 - the next one matters more
            _logger.warning("close_failed env=%s error=%r", target.text, exc)
        source = _find(target)
        port = self.port = build_lane(source, self._index, conformance=spec.conformance)
        lend = getattr(port, "lend_observations", None)
        if lend is not None:
            lend()  # an answer is sent before the env is called again
        torch = sys.modules.get("torch")
        if torch is not None and spec.threads is not None:
            torch.set_num_threads(spec.threads)
        return port.contract

    def close(self) -> None:
        """Close the env, if there is one."""
        port, self.port = self.port, None
        if port is not None:
            port.close(None)

    def finish(self) -> None:
        """Wait until all calls have been made."""
        if self._thread is not None:
            self._thread.stop()
            self._thread.join(None)


def _find(target: EnvTarget) -> EnvSource:
    """Return what builds an env; it is not built."""
    if target.main_file is not None:
        load_main(target.main_file)
    return find_source(target.text, target.env_kwargs)


def _look_up(target: EnvTarget) -> Done:
    """Find what builds an env, or raise what is wrong with it."""
    _find(target)
    return Done()


def _not_built(request: Any) -> Any:
    del request
    raise RuntimeError("this lane holds no env; it is prepared first")


class _DriverLog(logging.Handler):
    """Writes log records as lines that the driver knows, so that it logs them again."""

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage().replace("\n", " ").replace("\r", " ")
        line = f"{LOG_MARK}\t{record.levelname}\t{record.name}\t{text}\n"
        with contextlib.suppress(OSError):
            os.write(2, line.encode("utf-8", "replace"))


def _log_to_driver() -> None:
    logger = logging.getLogger("rollmesh")
    logger.addHandler(_DriverLog(logging.INFO))
    logger.setLevel(logging.INFO)
    logger.propagate = False


if __name__ == "__main__":
    main()
