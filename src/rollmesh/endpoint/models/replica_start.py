"""Opens the replicas of a model at its start (layer 6).

All are opened at once. The start is over as soon as one is there and the others have had a moment:
one that takes longer goes on being opened, and joins later. One that fails, instead of being late,
ends the start: what is mistyped must not run with half of its replicas.

Part of `replicas.py`. Knows nothing of episodes.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from rollmesh.endpoint.models.replica_seats import Lost, Replica, Seat
from rollmesh.errors import EndpointFault
from rollmesh.runtime.cancel import CancelToken

_logger = logging.getLogger(__name__)

OTHERS_S = 2.0
"""How long the others may take to be there, or to fail, once the first replica is."""
_SETTLE_S = 0.25
"""How long others may take to fail too, once one has: the error names all that did."""
_LOOK_AGAIN_S = 1.0
"""No wait is longer: a signal that comes just before it does not interrupt it."""
_NOBODY_THERE = "ConnectFailed"
"""Error class of an address where nobody answered within the limit: late, not wrong."""

Joins = Callable[[Seat, Any], None]
"""Takes a replica, or why there is none, that comes once the start is over."""


class Start:
    """One start.

    Args:
        seats: To be filled.
        cancel: Ends it.
        joins: Called, on another thread, with what comes later.
    """

    def __init__(self, seats: Sequence[Seat], cancel: CancelToken, joins: Joins) -> None:
        self._seats = seats
        self._cancel = cancel
        self._joins = joins
        self._lock = threading.Lock()
        self._arrived: queue.SimpleQueue[tuple[Seat, Any] | None] = queue.SimpleQueue()
        self._is_over = False
        self._pending = set(seats)
        self._failures: list[tuple[Seat, BaseException]] = []
        self._until: float | None = None

    def run(self) -> None:
        """Fill the seats, at least one; those of replicas that are late later.

        Raises:
            EndpointFault: One failed, none is there, or it was cancelled; all are closed.
        """
        unsubscribe = self._cancel.subscribe(lambda: self._arrived.put(None))
        try:
            for seat in self._seats:
                threading.Thread(
                    target=self._open, args=(seat,), name="rollmesh-replica", daemon=True
                ).start()
            while self._pending and self._wait():
                pass
            self._end()
            self._judge()
        except BaseException:
            self._cancel.cancel("opening the model failed")  # the openings under way
            self._end()
            for lost in [seat.empty() for seat in self._seats]:
                if lost is not None:
                    lost.close()
            raise
        finally:
            unsubscribe()
        self._tell()

    # ------------------------------------------------------------------------------- inside

    def _open(self, seat: Seat) -> None:
        result: Any
        try:
            result = seat.opener(self._cancel)
        except BaseException as exc:  # noqa: BLE001 - told to whoever waits
            result = exc
        with self._lock:
            if not self._is_over:
                self._arrived.put((seat, result))
                return
        self._joins(seat, result)

    def _wait(self) -> bool:
        """Take what comes next; return whether there is more to wait for."""
        limit_s = _LOOK_AGAIN_S
        if self._until is not None:
            limit_s = min(limit_s, self._until - time.monotonic())
        try:
            item = self._arrived.get(timeout=max(0.0, limit_s))
        except queue.Empty:
            return self._until is None or time.monotonic() < self._until
        if item is None:
            raise EndpointFault(
                f"opening the model was ended: {self._cancel.reason}",
                error_class="Interrupted",
                outcome="not_done",
            )
        self._take(*item)
        return True

    def _take(self, seat: Seat, result: Any) -> None:
        self._pending.discard(seat)
        wait_s = OTHERS_S
        if isinstance(result, BaseException):
            self._failures.append((seat, result))
            if _is_late(result):
                return
            wait_s = _SETTLE_S
        else:
            seat.fill(result)
        until = time.monotonic() + wait_s
        if self._until is None or (wait_s == _SETTLE_S and until < self._until):
            self._until = until

    def _end(self) -> None:
        """Have what comes from now on join; take what came in the last moment."""
        with self._lock:
            self._is_over = True
        while not self._arrived.empty():
            item = self._arrived.get()
            if item is not None:
                self._take(*item)

    def _judge(self) -> None:
        wrong = [one for _, one in self._failures if not _is_late(one)]
        if not wrong and any([seat.replica is not None for seat in self._seats]):
            return
        self._failures.sort(key=lambda one: one[0].index)
        words = [str(one) for _, one in self._failures]
        if len(set(words)) == 1 or not all(isinstance(one, EndpointFault) for one in wrong):
            raise wrong[0] if wrong else self._failures[0][1]
        listed = "".join(
            [
                f"\n- {seat.name}: {text}"
                for (seat, _), text in zip(self._failures, words, strict=True)
            ]
        )
        raise EndpointFault(
            f"{len(words)} of {len(self._seats)} replicas of the model cannot be opened:{listed}",
            error_class="ReplicasNotOpened",
            outcome="not_done",
        )

    def _tell(self) -> None:
        """Say who is waited for, and give up who was late beyond the limit."""
        if self._pending:
            _logger.warning(
                "replicas_late open=%d of=%d waiting_for=%s (the run starts; they join when they "
                "are there)",
                sum([seat.replica is not None for seat in self._seats]),
                len(self._seats),
                ", ".join(sorted([seat.name for seat in self._pending])),
            )
        for seat, failure in self._failures:
            self._joins(seat, failure)


def _is_late(failure: BaseException) -> bool:
    return isinstance(failure, EndpointFault) and failure.error_class == _NOBODY_THERE


def close_unused(replica: Replica) -> None:
    """Close a replica that came when nobody needs it any more."""
    Lost(replica, None, ()).close()
