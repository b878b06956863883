"""Where the replicas of a model sit: how they are asked and let go of (layer 6).

Part of `replicas.py`, which decides who is asked. Knows nothing of episodes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rollmesh.endpoint.own_thread import OwnThread
from rollmesh.ports import Callback, ModelPort, PredictRequest
from rollmesh.runtime.cancel import CancelToken

_logger = logging.getLogger(__name__)


def _nothing() -> None:
    """Close what needs no closing."""


@dataclass(frozen=True, kw_only=True)
class Replica:
    """One replica that is ready.

    Attributes:
        port: Asks it.
        name: What errors and logs call it.
        close: Ends what is behind the port; called once, when it is lost or no longer needed.
        kill: Ends it without asking, where it hangs; `close` does where there is no such way.
    """

    port: ModelPort
    name: str = "a model"
    close: Callable[[], object] = _nothing
    kill: Callable[[], object] | None = None


Opener = Callable[[CancelToken], Replica]
"""Opens a replica, in a time of its own choosing, on a thread of its own; again after a loss. A
cancel of the token ends it."""


@dataclass(eq=False)
class Asked:
    """A predict, who waits for it, how often it has been asked, and when it is late (or 0)."""

    request: PredictRequest
    callback: Callback
    tries: int = 0
    expires_ns: int = 0

    @property
    def rows(self) -> int:
        return len(self.request.episode_info)


class _OnThread:
    """A port that answers on a thread of its own."""

    def __init__(self, port: ModelPort, name: str) -> None:
        self._port = port
        self._thread = OwnThread(f"rollmesh-replica {name}")

    def submit(self, method: str, request: Any, callback: Callback, _env_indices: Any) -> None:
        self._thread.submit(getattr(self._port, method), callback, request)
        if method == "release_adapter":
            self._thread.stop()

    def abandon(self, env_indices: tuple[int, ...]) -> None:
        del env_indices
        self._thread.abandon()


@dataclass(eq=False)
class Seat:
    """The place of one replica.

    Attributes:
        index: Which one.
        opener: Fills it.
        name: What it is called while nothing is there.
        replica: What is there; None while it is being opened, or was given up.
        port: Starts its calls.
        asked: What it was asked and has not answered.
        rows: Rows of that.
        episodes: How many live on it.
        losses: Losses, and failures to open it, since it last answered.
        is_given_up: Whether it stays empty.
    """

    index: int
    opener: Opener
    name: str = ""
    replica: Replica | None = None
    port: Any = None
    asked: set[Asked] = field(default_factory=set[Asked])
    rows: int = 0
    episodes: int = 0
    losses: int = 0
    is_given_up: bool = False

    def fill(self, replica: Replica) -> None:
        """Put an opened replica there."""
        port = replica.port
        self.replica = replica
        self.port = port if hasattr(port, "submit") else _OnThread(port, replica.name)

    def empty(self) -> Lost | None:
        """Take the replica out and return it, with what it was asked."""
        if self.replica is None:
            return None
        lost = Lost(self.replica, self.port, tuple(self.asked))
        self.replica = self.port = None
        self.asked.clear()
        self.rows = self.episodes = 0
        return lost


@dataclass(frozen=True)
class Lost:
    """What was in a seat."""

    replica: Replica
    port: Any
    asked: tuple[Asked, ...]

    def close(self, *, hangs: bool = False) -> None:
        """Leave its calls behind and close it, or kill it; what that raises is logged."""
        try:
            if self.port is not None:
                self.port.abandon(())
            (self.replica.kill if hangs and self.replica.kill else self.replica.close)()
        except Exception as exc:  # noqa: BLE001 - nobody waits for it
            _logger.warning("replica_close_failed name=%s error=%r", self.replica.name, exc)
