"""Supervision: what all workers of a fleet share (layer 7).

Who may start now, where workers dial, which contract all envs have. The life of each of them is
`worker_life.py`. Everything here runs on the thread that waits on the hub; what other threads
notice comes through its post.
"""

from __future__ import annotations

import base64
import logging
import socket
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollmesh.endpoint.envs.contracts import contract_difference
from rollmesh.errors import EndpointFault
from rollmesh.fleet.door import WorkerDoor
from rollmesh.fleet.exits import WorkerExit
from rollmesh.fleet.hub import Hub
from rollmesh.fleet.pool import Pool, WorkerProcess
from rollmesh.fleet.worker_options import Tell, WorkerOptions, WorkerState
from rollmesh.fleet.worker_spec import (
    EnvTarget,
    WorkerSpec,
    sets_threads,
    worker_environment,
    working_directory,
)
from rollmesh.ports import EnvContract
from rollmesh.transport.connection import ConnectionOptions
from rollmesh.transport.native import NativeConnection
from rollmesh.transport.spin import usable_cores
from rollmesh.wire.contract import encode_contract

if TYPE_CHECKING:
    from rollmesh.fleet.worker_life import Worker

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What a lane may be asked to hold.

    Attributes:
        name: Its name, `""` where there is only one.
        target: What builds the env.
    """

    name: str
    target: EnvTarget

    @property
    def title(self) -> str:
        """What errors call it."""
        return f"the env of task {self.name!r}" if self.name else f"the env {self.target.text}"


class Supervisor:
    """What the workers of a fleet share.

    Attributes:
        contract: What one lane is; None until the first env has been built.
        starts: Workers started so far.
        deaths: Workers lost so far.
    """

    def __init__(
        self, hub: Hub, pool: Pool, *, options: WorkerOptions, processes: int, tell: Tell | None
    ) -> None:
        self.hub = hub
        self.pool = pool
        self.options = options
        self.contract: EnvContract | None = None
        self.contract_of = ""
        self.starts = 0
        self.deaths = 0
        self._processes = processes
        self._tell = tell
        self._door: WorkerDoor | None = None
        self._queue: deque[Worker] = deque()
        self._starting: set[Worker] = set()
        self._environment = worker_environment(options.threads)
        self._threads = None if sets_threads() else options.threads
        self._cwd = working_directory()

    def tell(self, worker: int, state: WorkerState, detail: str, pid: int | None) -> None:
        """Tell of a worker's new state."""
        _logger.info("worker_%s worker=%d pid=%s detail=%s", state, worker, pid, detail)
        if self._tell is not None:
            try:
                self._tell(worker, state, detail, pid)
            except Exception:
                _logger.exception("callback_failed worker=%d", worker)

    def queue(self, worker: Worker) -> None:
        """Start a worker as soon as there is room for it."""
        self._queue.append(worker)
        self._start_next()

    def settled(self, worker: Worker) -> None:
        """Take note that a worker is not starting any more."""
        self._starting.discard(worker)
        if worker in self._queue:
            self._queue.remove(worker)
        self._start_next()

    def _start_next(self) -> None:
        while self._queue and len(self._starting) < self.options.most_starting:
            worker = self._queue.popleft()
            self._starting.add(worker)
            self.starts += 1
            worker.start()

    def launch(self, worker: Worker, start: int) -> WorkerProcess:
        """Have the pool start a worker, and expect it at the door."""
        if self._door is None:
            # what came stays where its worker put it: a batch copies it once, to where it is used
            options = ConnectionOptions(processes=self._processes, lent=True)
            self._door = WorkerDoor(self.options.address, options)
        name = f"{worker.number}.{start}"

        def arrived(connection: NativeConnection, sock: socket.socket) -> None:
            self.hub.post(lambda: worker.arrived(start, connection, sock))

        def ended(how: WorkerExit) -> None:
            self.hub.post(lambda: worker.ended(start, how))

        token = self._door.expect(name, arrived)
        spec = WorkerSpec(
            worker=worker.number,
            start=start,
            address=self._door.address,
            token=token,
            lanes=worker.lanes,
            conformance=self.options.conformance,
            cwd=self._cwd,
            environment=self._environment,
            threads=self._threads,
            cpus=self._cpus(worker.number),
            processes=self._processes,
        )
        return self.pool.start(spec, ended)

    def not_expected(self, worker: int, start: int) -> None:
        """Expect a worker no longer."""
        if self._door is not None:
            self._door.forget(f"{worker}.{start}")

    def close(self) -> None:
        """End what is left of the workers, and let go of pool and door."""
        self.pool.close()
        door, self._door = self._door, None
        if door is not None:
            door.close()

    def _cpus(self, number: int) -> tuple[int, ...] | None:
        if not self.options.pin:
            return None
        import os

        if not hasattr(os, "sched_getaffinity"):
            return None
        cores = sorted(os.sched_getaffinity(0))
        return (cores[number % usable_cores()],)

    # ----------------------------------------------------------------------------- contract

    def agree(self, title: str, contract: EnvContract) -> EndpointFault | None:
        """Take the first env's contract as everybody's; return what is wrong with another one."""
        if self.contract is None:
            self.contract, self.contract_of = contract, title
            return None
        other = contract_difference(self.contract, contract)
        if not other:
            return None
        return EndpointFault(
            f"{title} differs from {self.contract_of}, and one model cannot play both: "
            f"{other}; give them the same spaces, or run them apart",
            error_class="InvalidSpec",
            outcome="not_done",
        )

    @property
    def known_contract(self) -> str:
        """The contract as a worker is told it; "" where it is not known yet."""
        if self.contract is None:
            return ""
        return base64.b64encode(encode_contract(self.contract)).decode()
