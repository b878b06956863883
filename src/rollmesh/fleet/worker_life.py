"""The life of one worker, as its driver sees it (layer 7).

    idle ─► queued ─► starting ─► up ─► idle …        a worker that is lost is idle again
                                    └─► given up      after some starts in a row that failed
                                                      alike, or twice as many that failed at all

A worker is started when one of its lanes is first prepared. One that is lost leaves its callbacks
behind until its process has ended, so that the fault can tell how; meanwhile another one may start
in its place. Everything here runs on the thread that waits on the hub.
"""

from __future__ import annotations

import logging
import socket
from dataclasses import dataclass, field
from typing import Any

from rollmesh.errors import LaneLost, WorkerLost
from rollmesh.fleet.exits import WorkerExit, worker_lost
from rollmesh.fleet.link import Link
from rollmesh.fleet.pool import WorkerProcess
from rollmesh.fleet.supervisor import Setup, Supervisor
from rollmesh.ports import Callback, ResetRequest, StepRequest
from rollmesh.transport.native import NativeConnection
from rollmesh.wire.contract import decode_contract
from rollmesh.wire.messages import Close, Configure, Kind, Welcome

_logger = logging.getLogger(__name__)

_EXIT_S = 2.0
"""How long a worker whose connection is lost may take to end by itself."""
_GONE_S = 5.0
"""How long a killed worker may take to be gone; then it is taken for gone."""


@dataclass
class _Lane:
    """What the driver knows of one lane of a worker."""

    held: Setup | None = None
    wanted: Setup | None = None
    seed: int | None = None
    steps: int = 0
    doing: str = ""


@dataclass
class _Leaving:
    """A process that is lost and has not ended yet, and whom its end is told to."""

    process: WorkerProcess | None
    killed_for: str = ""
    doing: str = ""
    was_ready: bool = False
    callbacks: list[tuple[int, Callback]] = field(default_factory=list[tuple[int, Callback]])


class Worker:
    """One worker: a place for a few lanes, and the process that holds them now.

    Args:
        number: From 0.
        lanes: The lanes that live there.
        shared: What all workers share.
    """

    def __init__(self, number: int, lanes: tuple[int, ...], shared: Supervisor) -> None:
        self.number = number
        self.lanes = lanes
        self.pid: int | None = None
        self._shared = shared
        self._lanes = {lane: _Lane() for lane in lanes}
        self._start = 0
        self._is_queued = False
        self._process: WorkerProcess | None = None
        self._link: Link | None = None
        self._waiting: list[tuple[int, Setup, Callback]] = []
        self._leaving: dict[int, _Leaving] = {}
        self._failures: list[str] = []
        self._given_up: str = ""
        self._was_ready = False
        self._closing: Callback | None = None
        self._close_failure: BaseException | None = None

    @property
    def is_idle(self) -> bool:
        """Whether nothing of it runs."""
        return self._process is None and not self._leaving

    # -------------------------------------------------------------------------------- asked

    def prepare(self, lane: int, setup: Setup, callback: Callback) -> None:
        """Have a lane hold the env of a setup; `callback` gets None, or a fault."""
        state = self._lanes[lane]
        state.wanted = setup
        if self._given_up:
            callback(LaneLost(self._given_up, env_index=lane, outcome="not_done"))
        elif self._link is not None:
            if state.held is not None and state.held.target == setup.target:
                state.held = setup
                callback(None)
            else:
                self._configure(self._link, lane, setup, callback)
        else:
            self._waiting.append((lane, setup, callback))
            if self._process is None and not self._is_queued:
                self._is_queued = True
                self._shared.queue(self)

    def look_up(self, lane: int, setup: Setup, callback: Callback) -> None:
        """Have a worker that is up look for what builds an env, and not build it.

        `callback` gets None or a fault. An import that takes as long as building may is left
        behind, with the process.
        """
        link, limit_s = self._link, self._shared.options.load_s
        if link is None:
            callback(self._not_there(lane))
            return
        key = (self, "load", lane)
        self._lanes[lane].doing = f"looking for {setup.title}"

        def found(result: Any) -> None:
            self._shared.hub.cancel(key)
            callback(result if isinstance(result, BaseException) else None)

        reason = f"looking for {setup.title} did not come back in time; see what its import does"
        self._shared.hub.call_after(key, limit_s, lambda: self._too_late(reason))
        settings = {"lane": str(lane), "target": setup.target.to_json(), "look_up": "1"}
        link.ask(Kind.CONFIGURE, Configure(edition="", settings=settings), lane, found)

    def step(self, lane: int, request: StepRequest, callback: Callback) -> None:
        """Step a lane."""
        link = self._link
        if link is None:
            callback(self._not_there(lane))
            return
        self._lanes[lane].steps += 1
        link.ask(Kind.STEP, request, lane, callback)

    def reset(self, lane: int, request: ResetRequest, callback: Callback) -> None:
        """Reset a lane; one that holds no env gets the one it held last."""
        state = self._lanes[lane]
        link = self._link
        if link is not None and state.held is not None:
            state.steps, state.doing = 0, "env.reset"
            state.seed = request.seeds[0] if request.seeds else None
            link.ask(Kind.RESET, request, lane, callback)
            return
        if state.wanted is None:
            callback(self._not_there(lane))
            return

        def prepared(result: Any) -> None:
            if isinstance(result, BaseException):
                callback(result)
            else:
                self.reset(lane, request, callback)

        self.prepare(lane, state.wanted, prepared)

    def forget_env(self, lane: int) -> None:
        """Have a lane's env built anew before its next episode."""
        self._lanes[lane].held = None

    def abandon(self, lanes: frozenset[int], reason: str) -> None:
        """Leave what these lanes do behind: the process is killed, as nothing else would end it."""
        self._waiting = [one for one in self._waiting if one[0] not in lanes]
        process, link = self._process, self._link
        if process is None:
            if not self._waiting and self._is_queued:
                self._is_queued = False
                self._shared.settled(self)
            return
        leaving = self._take_waiting(self._doing(lanes))
        leaving.killed_for = reason
        if link is not None:
            leaving.callbacks += link.forget(lanes)
        self._leave(leaving)

    def close(self, callback: Callback) -> None:
        """Close all envs and end the process; `callback` gets None, or what an env's close raised.

        A process that dies of it, or is killed, has ended as well: None.
        """
        if self._is_queued:
            self._is_queued = False
            self._shared.settled(self)
        if self.is_idle:
            callback(None)
            return
        self._closing = callback
        for leaving in self._leaving.values():
            _kill(leaving.process)
        if self._link is not None:
            self._link.forget(frozenset(self.lanes))
            self._link.ask(Kind.CLOSE, Close(close_env=True), self.lanes[0], self._closed)
        elif self._process is not None:
            self._process.kill()

    def kill(self) -> None:
        """Kill whatever is left of it, and let go of its connection; nobody is told."""
        link, self._link = self._link, None
        if link is not None:
            link.close()
        _kill(self._process)
        for leaving in self._leaving.values():
            _kill(leaving.process)

    # ----------------------------------------------------------------------------- happening

    def start(self) -> None:
        """Start a process; called when there is room for it."""
        self._is_queued = False
        self._start += 1
        start, options = self._start, self._shared.options
        self._was_ready, self.pid = False, None
        self._shared.tell(self.number, "starting", f"start {start}", None)
        try:
            self._process = self._shared.launch(self, start)
        except Exception as exc:  # noqa: BLE001 - a pool, or no descriptor left
            self._leave(self._take_waiting("before it was started"), patience_s=None)
            self.ended(start, WorkerExit(code=None, detail=f"it could not be started: {exc}"))
            return
        limit_s = options.start_s
        reason = (
            f"it did not report within {limit_s:g} s of its start; see what its imports wait for, "
            "or raise the limit env_connect_s"
            if limit_s is not None
            else ""
        )
        self._shared.hub.call_after((self, start), limit_s, lambda: self._too_late(reason))

    def arrived(self, start: int, connection: NativeConnection, sock: socket.socket) -> None:
        """Take over the connection of a worker that has dialled in."""
        if start != self._start or self._process is None or self._link is not None:
            connection.close()
            return
        self._shared.hub.cancel((self, start))
        self.pid = self._process.pid
        self._link = Link(connection, sock, self._shared.hub, self._broken)
        waiting, self._waiting = self._waiting, []
        for lane, setup, callback in waiting:
            self._configure(self._link, lane, setup, callback)
        if self._closing is not None:
            self.close(self._closing)

    def ended(self, start: int, how: WorkerExit) -> None:
        """Take note of the end of a process."""
        if self._closing is not None and self._link is not None:
            self._link.read()  # what closing raised may be there, and unread
        if start == self._start and self._process is not None:
            self._leave(self._take_all())
        self._shared.hub.cancel((self, "leaving", start))
        leaving = self._leaving.pop(start, None)
        if leaving is None:
            return
        if self._closing is not None:
            if self.is_idle:
                self._stopped()
            return
        self._lost(leaving, how)

    # ------------------------------------------------------------------------------ building

    def _configure(self, link: Link, lane: int, setup: Setup, callback: Callback) -> None:
        state = self._lanes[lane]
        state.held, state.steps, state.seed = None, 0, None
        state.doing = f"building {setup.title}"
        limit_s = self._shared.options.load_s
        key = (self, "load", lane)

        def built(result: Any) -> None:
            self._shared.hub.cancel(key)
            callback(self._built(link, lane, setup, result))

        settings = {
            "lane": str(lane),
            "target": setup.target.to_json(),
            "contract": self._shared.known_contract,
        }
        if limit_s is not None:
            reason = (
                f"building {setup.title} did not come back within {limit_s:g} s; see what its "
                "constructor waits for, or raise the limit env_connect_s"
            )
            self._shared.hub.call_after(key, limit_s, lambda: self._too_late(reason))
        link.ask(Kind.CONFIGURE, Configure(edition="", settings=settings), lane, built)

    def _built(self, link: Link, lane: int, setup: Setup, result: Any) -> BaseException | None:
        """Take note of what building an env came to; return what the lane is told."""
        if isinstance(result, BaseException):
            if not isinstance(result, WorkerLost):
                self._shared.settled(self)
            return result
        welcome: Welcome = result
        contract = decode_contract(welcome.contract)
        self._shared.settled(self)
        if (fault := self._shared.agree(setup.title, contract)) is not None:
            return fault
        if not self._was_ready:
            self._was_ready = True
            self._failures.clear()
            agreed = self._shared.contract or contract
            actions = agreed.action_space.codec
            link.bind(agreed.observation_space.codec, actions, len(self.lanes))
            self._shared.tell(self.number, "ready", setup.title, self.pid)
        self._lanes[lane].held = setup
        return None

    # -------------------------------------------------------------------------------- losing

    def _too_late(self, reason: str) -> None:
        """Kill a process that takes too long to start or to build."""
        if self._process is None:
            return
        leaving = self._take_all()
        leaving.killed_for = reason
        self._leave(leaving)

    def _broken(self, reason: str) -> None:
        """Take note that the connection is lost: the process has ended, or is going to."""
        _logger.debug("worker_broken worker=%d reason=%s", self.number, reason)
        if self._process is not None:
            patience_s = _EXIT_S if self._closing is None else None
            self._leave(self._take_all(), patience_s=patience_s)

    def _take_waiting(self, doing: str) -> _Leaving:
        waiting, self._waiting = self._waiting, []
        callbacks = [(lane, callback) for lane, _, callback in waiting]
        return _Leaving(self._process, doing=doing, callbacks=callbacks, was_ready=self._was_ready)

    def _take_all(self) -> _Leaving:
        leaving = self._take_waiting(self._doing(frozenset(self.lanes)))
        if self._link is not None:
            leaving.callbacks += self._link.forget(frozenset())
        return leaving

    def _leave(self, leaving: _Leaving, *, patience_s: float | None = 0.0) -> None:
        """Let go of the process: its end is told to whoever waits for it, once it has ended.

        It is killed when it has not ended after so many seconds; None leaves that to others.
        """
        start, shared = self._start, self._shared
        link, self._link = self._link, None
        self._process = None
        for lane, state in self._lanes.items():
            state.held = None
            shared.hub.cancel((self, "load", lane))
        shared.hub.cancel((self, start))
        shared.not_expected(self.number, start)
        if link is not None:
            link.close()
        self._leaving[start] = leaving
        shared.settled(self)
        key = (self, "leaving", start)

        def kill() -> None:
            _kill(leaving.process)
            gone = WorkerExit(code=None, detail="its end is not known")
            shared.hub.call_after(key, _GONE_S, lambda: self.ended(start, gone))

        if patience_s == 0.0:
            kill()
        else:
            shared.hub.call_after(key, patience_s, kill)

    def _lost(self, leaving: _Leaving, how: WorkerExit) -> None:
        """Tell everybody concerned that a process is lost."""
        shared = self._shared
        shared.deaths += 1
        pid = None if leaving.process is None else leaving.process.pid
        fault = worker_lost(
            f"worker {self.number}" + (f" (pid {pid})" if pid else ""),
            how,
            worker=self.number,
            doing=leaving.doing,
            killed_for=leaving.killed_for,
        )
        shared.tell(self.number, "lost", fault.detail, pid)
        if not leaving.was_ready:
            self._failures.append(fault.cause)
            if self._is_hopeless():
                self._given_up = (
                    f"worker {self.number} is given up: it failed to start {len(self._failures)} "
                    f"times in a row; the last time {fault.detail}"
                )
        for lane, callback in leaving.callbacks:
            if self._given_up:
                callback(LaneLost(self._given_up, env_index=lane, outcome="not_done"))
            else:
                callback(_copy(fault, lane))

    def _is_hopeless(self) -> bool:
        """Whether the last starts failed alike, or twice as many in whatever way."""
        failures, most = self._failures, self._shared.options.failed_starts
        is_alike = len(failures) >= most and len(set(failures[-most:])) == 1
        return is_alike or len(failures) >= 2 * most

    def _closed(self, result: Any) -> None:
        """Take note of what closing the envs came to; the process is about to end."""
        if isinstance(result, BaseException) and not isinstance(result, WorkerLost):
            self._close_failure = result

    def _stopped(self) -> None:
        callback, self._closing = self._closing, None
        result, self._close_failure = self._close_failure, None
        self._shared.tell(self.number, "stopped", "", self.pid)
        if callback is not None:
            callback(result)

    def _not_there(self, lane: int) -> WorkerLost:
        return WorkerLost(
            f"worker {self.number} is not there; prepare lane {lane} first",
            worker=self.number,
            cause="not prepared",
            env_index=lane,
        )

    def _doing(self, lanes: frozenset[int]) -> str:
        """Say what these lanes are doing, as the end of a sentence."""
        if self._link is None:
            return "before it reported"
        busy = {lane for lane, _ in self._link.pending.values()} or set(lanes)
        return "in " + "; ".join(
            _what(lane, self._lanes[lane], len(self.lanes)) for lane in sorted(busy & set(lanes))
        )


def _what(lane: int, state: _Lane, count: int) -> str:
    doing = f"env.step {state.steps}" if state.steps else state.doing or "idling"
    where = [f"lane {lane}"] if count > 1 else []
    if state.held is not None and state.held.name:
        where.append(f"task {state.held.name!r}")
    if state.seed is not None:
        where.append(f"seed {state.seed}")
    return f"{doing} ({', '.join(where)})" if where else doing


def _copy(fault: WorkerLost, lane: int) -> WorkerLost:
    return WorkerLost(
        fault.detail,
        worker=fault.worker,
        cause=fault.cause,
        last_lines=fault.last_lines,
        env_index=lane,
    )


def _kill(process: WorkerProcess | None) -> None:
    if process is not None:
        process.kill()
