"""What the experiment trackers share: what is logged, and a thread that does it (layer 7).

A tracker's library writes files, starts processes and asks servers; a run must not wait for it. So
events are reduced to plain numbers on the run's thread and logged on one of their own.
"""

from __future__ import annotations

import logging
import math
import queue
import threading
from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from rollmesh.observers.observer import Numbers, Observer, phase_numbers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rollmesh.events import EpisodeCompleted, EpisodeErrored, SessionStarted, TelemetryEmitted

_logger = logging.getLogger(__name__)

PREFIX = "rollmesh"
PATIENCE_S = 60.0
"""How long `close` waits for a tracker that does not answer."""
_MOST_WAITING = 100_000


class Tracker(Observer):
    """Logs every finished episode and, at the end, a summary with intervals.

    Guarantees: hook methods put a few numbers into a queue and return; what the library raises is
    logged once and the run goes on; `close` waits at most `PATIENCE_S`.
    """

    def __init__(self) -> None:
        self._numbers = Numbers()
        self._phases: dict[str, float] = {}
        self._waiting: queue.Queue[tuple[str, Any]] = queue.Queue(_MOST_WAITING)
        self._lost = 0
        self._has_complained = False
        self._lock = threading.Lock()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="rollmesh-tracker", daemon=True)
        self._thread.start()

    # --------------------------------------------------------------- what a tracker does

    @abstractmethod
    def log_start(self, facts: Mapping[str, str]) -> None:
        """Log what runs: session, env and model."""

    @abstractmethod
    def log_episode(self, place: int, values: Mapping[str, float]) -> None:
        """Log an episode's numbers; `place` counts ended episodes from 1."""

    @abstractmethod
    def log_summary(self, values: Mapping[str, float]) -> None:
        """Log the final numbers."""

    @abstractmethod
    def finish(self) -> None:
        """Flush and let go."""

    # ------------------------------------------------------------------ the run's threads

    def session_started(self, event: SessionStarted) -> None:
        """Log what runs."""
        facts = {
            "session_id": event.session_id,
            "env": event.route.env_component,
            "model": event.route.model_component,
        }
        self._put("start", facts)

    def episode_completed(self, event: EpisodeCompleted) -> None:
        """Log a finished episode."""
        values: dict[str, float] = {
            "index": event.episode_index,
            "return": event.total_reward,
            "length": event.steps,
            "duration_s": event.duration_s,
            "attempts": event.attempts,
        }
        if event.success is not None:
            values["success"] = float(event.success)
        with self._lock:
            self._numbers.add(event)
            place = self._numbers.ended
        self._put("episode", (place, values))

    def episode_errored(self, event: EpisodeErrored) -> None:
        """Log that an episode errored; its return is no result and is left out."""
        values = {"index": float(event.episode_index), "errored": 1.0, "length": float(event.steps)}
        with self._lock:
            self._numbers.add_errored(event)
            place = self._numbers.ended
        self._put("episode", (place, values))

    def on_telemetry(self, event: TelemetryEmitted) -> None:
        """Keep the last snapshot's durations for the summary."""
        self._phases = phase_numbers(event.snapshot)

    def _put(self, kind: str, what: Any) -> None:
        try:
            self._waiting.put_nowait((kind, what))
        except queue.Full:
            self._lost += 1

    # ---------------------------------------------------------------- the tracker's thread

    def close(self) -> None:
        """Log what is waiting and the summary, and finish; wait at most `PATIENCE_S`."""
        with self._lock:
            is_first, self._is_closed = not self._is_closed, True
        if is_first:
            self._waiting.put(("end", None))
        self._thread.join(PATIENCE_S)
        if self._thread.is_alive():
            _logger.warning(
                "tracker.close_timed_out tracker=%s timeout_s=%s left=%d (logged while the process "
                "lives)",
                type(self).__name__,
                PATIENCE_S,
                self._waiting.qsize(),
            )
        elif self._lost:
            _logger.warning(
                "tracker.lost tracker=%s episodes=%d (it is slower than they come; the summary "
                "counts them)",
                type(self).__name__,
                self._lost,
            )

    def _run(self) -> None:
        while True:
            kind, what = self._waiting.get()
            if kind == "end":
                self._try(lambda: self.log_summary(self._summary()))
                self._try(self.finish)
                return
            if kind == "start":
                self._try(lambda facts=what: self.log_start(facts))
            else:
                place, values = what
                self._try(lambda p=place, v=values: self.log_episode(p, v))

    def _summary(self) -> dict[str, float]:
        with self._lock:
            table = self._numbers.summary()
        return table | self._phases

    def _try(self, call: Any) -> None:
        try:
            call()
        except (Exception, SystemExit):  # a tracker's trouble is no trouble of the run
            if not self._has_complained:
                self._has_complained = True
                _logger.warning(
                    "tracker.failed tracker=%s (the run goes on; further failures are not logged)",
                    type(self).__name__,
                    exc_info=True,
                )


def named(values: Mapping[str, float], group: str) -> dict[str, float]:
    """Return values under names of ours: `rollmesh/episode/return`."""
    return {f"{PREFIX}/{group}/{name}": value for name, value in values.items()}


def finite(values: Mapping[str, float]) -> dict[str, float]:
    """Return the values that are finite: some trackers refuse others."""
    return {name: value for name, value in values.items() if math.isfinite(value)}
