"""A fault proxy: breaks the connections of a client and a server on purpose (layer 7).

It listens at an address of the same kind as the server's, passes bytes on both ways, and on
command, or by a plan drawn from a seed, stalls them, splits them, delays them, limits their
bandwidth, ends them at a given byte, resets links, refuses new ones, and comes back:

    with FaultProxy(server.address) as proxy:
        env = RemoteEnv(proxy.address)
        proxy.outage(2.0)              # every link is reset; nobody gets in for two seconds
        proxy.stall("down")            # answers do not arrive any more …
        proxy.resume()                 # … and now they do
        proxy.cut_after(100, "down")   # 100 bytes of answers more, then a reset
        proxy.change(piece_bytes=1)    # one byte at a time, from here on

Works for any unix or TCP address (native or gRPC). What needs more than bytes works too: the
descriptors that unix sockets carry are passed on, so shared memory goes through. Payloads in shared
memory do not count as bytes: give one end `shared_memory=False` to break within them.

Everything runs on one daemon thread; commands may come from any thread and have been carried out
when they return. A unix link cannot be reset, only closed. The memory transport has no bytes to
break.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import selectors
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollmesh.errors import InvalidSpec
from rollmesh.testing.faults.links import Link, LinkState, close_socket
from rollmesh.testing.faults.plans import (
    NO_FAULTS,
    Directions,
    Ending,
    PipeFaults,
    Plan,
)
from rollmesh.transport.address import Address, parse_address

if TYPE_CHECKING:
    from typing_extensions import Self

_logger = logging.getLogger(__name__)

_CONNECT_S = 1.0
_JOIN_S = 5.0
_BACKLOG = 128
_RETRY_S = 0.05
_PIECE_GAP_S = 20e-6
_NEVER = float("inf")
_clock = time.monotonic


class FaultProxy:
    """Passes connections on to a server, and breaks them when told to.

    Args:
        target: The server's address; `retarget` changes it.
        plan: What is done to each link; None does nothing but what commands say.

    Attributes:
        address: Where clients connect, of the same scheme as the target.

    Raises:
        InvalidSpec: The target is no unix or TCP address.
    """

    def __init__(self, target: str | Address, plan: Plan | None = None) -> None:
        self._target = _reachable(target)
        self._plan = plan
        self._faults = NO_FAULTS
        self._links: list[Link] = []
        self._count = 0
        self._ended: list[LinkState] = []
        self._folder = ""
        self._refuses_until_s = 0.0
        self._is_closed = False
        self._changed = threading.Condition()
        self._selector = selectors.DefaultSelector()
        self._watched: dict[socket.socket, int] = {}
        self._wake, self._waker = socket.socketpair()
        self._wake.setblocking(False)
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._listening: socket.socket | None = None
        try:
            self.address = self._first_address()
            self._listen()
        except BaseException:
            self._let_go()
            raise
        self._thread = threading.Thread(target=self._run, name="fault-proxy", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------------------- commands

    def stall(self, direction: Directions = "both") -> None:
        """Let nothing more pass, on links there are and links to come, until `resume`."""
        self.change(direction, at_byte=0, then="stall", stall_s=None)

    def resume(self, direction: Directions = "both") -> None:
        """Let bytes pass again."""

        def act() -> None:
            self._change(direction, {"at_byte": None})
            for link in self._links:
                for pipe in link.pipes(direction):
                    pipe.stalled_until_s = 0.0

        self._do(act)

    def change(self, direction: Directions = "both", **faults: Any) -> None:
        """Change fields of `PipeFaults`, on links there are and links to come.

        A link that a plan was made for starts with what the plan says.

        Raises:
            InvalidSpec: A value is wrong.
            TypeError: There is no such field.
        """
        self._do(lambda: self._change(direction, faults))

    def cut_after(
        self, nbytes: int, direction: Directions = "down", then: Ending = "reset"
    ) -> None:
        """End every link that is there after so many more bytes."""

        def act() -> None:
            for link in self._links:
                for pipe in link.pipes(direction):
                    pipe.faults = replace(pipe.faults, at_byte=pipe.passed + nbytes, then=then)

        self._do(act)

    def reset(self) -> None:
        """Reset every link that is there; what is held is lost."""
        self._do(lambda: self._end_all("reset", "reset by command"))

    def half_close(self, direction: Directions = "down") -> None:
        """End one direction of every link; the other one goes on."""

        def act() -> None:
            for link in self._links:
                link.end("half_close", direction, "half-closed by command")

        self._do(act)

    def refuse(self, seconds: float | None = None) -> None:
        """Refuse new links, for so long or until `restore`; those there are live on."""

        def act() -> None:
            self._refuses_until_s = _NEVER if seconds is None else _clock() + seconds
            self._stop_listening()

        self._do(act)

    def restore(self) -> None:
        """Take new links again."""

        def act() -> None:
            self._refuses_until_s = 0.0

        self._do(act)
        self._wait(lambda: self._listening is not None, _JOIN_S)

    def outage(self, seconds: float | None = None) -> None:
        """Reset every link and refuse new ones, for so long or until `restore`."""

        def act() -> None:
            self._refuses_until_s = _NEVER if seconds is None else _clock() + seconds
            self._stop_listening()
            self._end_all("reset", "outage")

        self._do(act)

    def retarget(self, target: str | Address) -> None:
        """Pass new links on to another server, such as one that was started again.

        Raises:
            InvalidSpec: The target is no unix or TCP address.
        """
        self._target = _reachable(target)

    # ----------------------------------------------------------------------------- facts

    @property
    def links(self) -> tuple[LinkState, ...]:
        """Every link so far, in the order they came."""
        with self._changed:
            states = [*self._ended, *[link.state() for link in self._links]]
        return tuple(sorted(states, key=lambda state: state.number))

    def wait_for(self, is_so: Callable[[tuple[LinkState, ...]], bool], timeout_s: float) -> bool:
        """Wait until something holds of `links`; return whether it came to hold in time."""
        return self._wait(lambda: is_so(self.links), timeout_s)

    # ------------------------------------------------------------------------- lifecycle

    def close(self) -> None:
        """Close every link, stop listening and end the thread. Any number of times."""
        with self._changed:
            if self._is_closed:
                return
            self._is_closed = True
        self._waker.send(b"x")
        self._thread.join(_JOIN_S)
        with self._changed:
            self._end_all("close", "the proxy was closed")
            self._let_go()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---------------------------------------------------------------------------- inside

    def _do(self, act: Callable[[], None]) -> None:
        """Carry out a command and let the loop know."""
        with self._changed:
            if self._is_closed:
                raise RuntimeError("the fault proxy is closed")
            act()
            self._waker.send(b"x")
            self._changed.notify_all()

    def _wait(self, is_so: Callable[[], bool], timeout_s: float) -> bool:
        with self._changed:
            return self._changed.wait_for(is_so, timeout_s)

    def _change(self, direction: Directions, faults: dict[str, Any]) -> None:
        names = ("up", "down") if direction == "both" else (direction,)
        changed: dict[str, PipeFaults] = {
            name: replace(getattr(self._faults, name), **faults) for name in names
        }
        self._faults = replace(self._faults, **changed)
        for link in self._links:
            for pipe in link.pipes(direction):
                pipe.faults = replace(pipe.faults, **faults)

    def _end_all(self, ending: Ending, reason: str) -> None:
        for link in self._links:
            link.end(ending, "both", reason)
        self._forget_ended()

    def _run(self) -> None:
        try:
            while True:
                with self._changed:
                    if self._is_closed:
                        return
                    timeout_s = self._turn()
                    self._changed.notify_all()
                if timeout_s == 0.0:  # pieces that follow at once would come as one
                    time.sleep(_PIECE_GAP_S)
                ready = self._selector.select(timeout_s)
                with self._changed:
                    self._handle(ready)
        except Exception:
            _logger.exception("fault_proxy_failed address=%s", self.address)

    def _turn(self) -> float | None:
        """Do what is due; return how long there is nothing to do, None for ever."""
        now_s = _clock()
        due_s = _NEVER
        if self._listening is None and self._refuses_until_s < _NEVER:
            due_s = self._refuses_until_s
            if now_s >= due_s:
                due_s = _NEVER if self._try_listening() else now_s + _RETRY_S
        for link in self._links:
            link.pump(now_s)
        self._forget_ended()
        for link in self._links:
            for sock, events in link.wanted(now_s):
                self._watch(sock, events)
            due_s = min(due_s, link.due_s(now_s))
        return None if due_s == _NEVER else max(0.0, due_s - now_s)

    def _handle(self, ready: list[tuple[selectors.SelectorKey, int]]) -> None:
        now_s = _clock()
        for key, events in ready:
            if key.fileobj is self._wake:
                with contextlib.suppress(BlockingIOError):
                    self._wake.recv(4096)
            elif key.fileobj is self._listening:
                self._accept()
            elif events & selectors.EVENT_READ and not key.data.ended:
                key.data.read(key.fileobj, now_s)

    def _watch(self, sock: socket.socket, events: int) -> None:
        if self._watched.get(sock, 0) == events:
            return
        link = next(one for one in self._links if sock in (one.up.source, one.down.source))
        if sock not in self._watched:
            self._selector.register(sock, events, link)
        elif events:
            self._selector.modify(sock, events, link)
        else:
            self._selector.unregister(sock)
        self._watched[sock] = events
        if not events:
            del self._watched[sock]

    def _forget_ended(self) -> None:
        for link in [one for one in self._links if one.ended]:
            for sock in (link.up.source, link.down.source):
                if self._watched.pop(sock, 0):
                    self._selector.unregister(sock)
            self._links.remove(link)
            self._ended.append(link.state())

    def _accept(self) -> None:
        if self._listening is None:
            return
        try:
            client, _ = self._listening.accept()
        except OSError:
            return
        number, self._count = self._count, self._count + 1
        faults = self._faults if self._plan is None else self._plan(number)
        server = None if faults.is_refused else self._connect()
        if server is None:
            close_socket(client, is_reset=True)
            reason = "refused by plan" if faults.is_refused else "the target did not answer"
            self._ended.append(
                LinkState(number=number, up_bytes=0, down_bytes=0, is_open=False, ended=reason)
            )
            return
        self._links.append(Link(number, client, server, faults))

    def _connect(self) -> socket.socket | None:
        sock = _new_socket(self._target)
        try:
            sock.settimeout(_CONNECT_S)
            sock.connect(_where(self._target))
        except OSError as error:
            sock.close()
            _logger.info("fault_proxy_target_down target=%s error=%s", self._target, error)
            return None
        return sock

    # ------------------------------------------------------------------------- listening

    def _first_address(self) -> Address:
        target = self._target
        if target.family == "tcp":
            host = "::1" if target.host == "::1" else "127.0.0.1"
            return replace(target, host=host, port=0)
        self._folder = tempfile.mkdtemp(prefix="rollmesh-proxy-", dir="/tmp")  # a short name
        return replace(target, path=f"{self._folder}/proxy.sock")

    def _listen(self) -> None:
        sock = _new_socket(self.address)
        try:
            if self.address.family == "tcp":
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                sock.bind(_where(self.address))
                sock.listen(_BACKLOG)
            else:  # the file of an outage, which refuses, is replaced by one that listens already
                fresh = f"{self._folder}/next.sock"
                sock.bind(fresh)
                sock.listen(_BACKLOG)
                Path(fresh).replace(self.address.path)
            sock.setblocking(False)
        except BaseException:
            sock.close()
            raise
        if self.address.family == "tcp":
            self.address = replace(self.address, port=sock.getsockname()[1])
        self._listening = sock
        self._selector.register(sock, selectors.EVENT_READ)

    def _try_listening(self) -> bool:
        try:
            self._listen()
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            return False
        return True

    def _stop_listening(self) -> None:
        sock, self._listening = self._listening, None
        if sock is not None:
            self._selector.unregister(sock)
            sock.close()

    def _let_go(self) -> None:
        self._stop_listening()
        self._selector.close()
        self._wake.close()
        self._waker.close()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)


def _reachable(target: str | Address) -> Address:
    address = parse_address(target) if isinstance(target, str) else target
    if address.family == "memory":
        raise InvalidSpec("target", f"{address} has no bytes to break; use a unix or TCP address")
    return address


def _new_socket(address: Address) -> socket.socket:
    if address.family == "unix":
        return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    return socket.socket(family, socket.SOCK_STREAM)


def _where(address: Address) -> Any:
    if address.family == "unix":
        return address.path
    host = "127.0.0.1" if address.host == "localhost" else address.host
    return host, address.port
