"""Several replicas of a model as one model port (layer 6).

    model = ReplicatedModel([open_one, open_another], observation_space=…, action_space=…)

A replica is whatever answers as a model port: an object here, a model in a process of its own
(`model_process.py`), a served one. Requests go to the replica with the least under way. Where the
model keeps something per episode (`affinity`), an episode stays with the replica that had its first
request, and a request whose episodes live on several replicas is split.

A replica whose session is lost (`SessionLost`), or that does not answer a request within its
limit, is taken out and opened anew, a few times. With affinity, what it was asked fails with that
error, and so does whatever its episodes ask later: the runtime starts them anew, under new ids.
Without, another replica is asked. While none is there but some are being opened, requests wait, and
their limits do not run; once all have been given up, they fail.
"""

from __future__ import annotations

import functools
import itertools
import logging
import threading
from collections.abc import Sequence
from typing import Any

import msgspec

from rollmesh.endpoint.gathering import Gathering
from rollmesh.endpoint.models.replica_joining import join_replies
from rollmesh.endpoint.models.replica_seats import Asked, Lost, Opener, Seat
from rollmesh.endpoint.models.replica_start import Start, close_unused
from rollmesh.endpoint.models.replica_watch import LateWatch, now_ns
from rollmesh.endpoint.models.submitting import SubmittingModel
from rollmesh.errors import EndpointFault, InvalidSpec, PortTimeout, SessionLost
from rollmesh.ports import (
    Callback,
    EpisodeInfo,
    ModelPort,
    PredictRequest,
    ReleaseAdapterRequest,
    ResetAdapterRequest,
)
from rollmesh.runtime.cancel import CancelToken
from rollmesh.spaces.space import Space

_logger = logging.getLogger(__name__)

_MOST_TRIES = 3
"""How often a request without affinity is asked."""
_FIRST_PAUSE_S = 0.25
_LOST = (SessionLost, PortTimeout)
"""Failures after which a replica is opened anew: it is gone, or does not answer."""


class ReplicatedModel(SubmittingModel):
    """A model port (`SubmitsOperations`) over several replicas; see the module.

    Args:
        openers: Open one replica each; all at once, here. One is waited for, and the others for a
            moment; they join when they are there.
        observation_space: Space of one row's observation.
        action_space: Space of one row's action.
        affinity: Whether an episode stays with one replica. Needed where the model keeps anything
            per episode.
        restarts: How often in a row a lost replica is opened anew.
        names: What the replicas are called while they are being opened.
        cancel: Ends opening.

    Attributes:
        keeps_predict_limit: A predict is answered here when it is late (`KeepsLimits`).

    Raises:
        EndpointFault: One of them could not be opened; the others are closed.
        InvalidSpec: There are none.
    """

    keeps_predict_limit = True

    def __init__(
        self,
        openers: Sequence[Opener],
        *,
        observation_space: Space,
        action_space: Space,
        affinity: bool = True,
        restarts: int = 3,
        names: Sequence[str] = (),
        cancel: CancelToken | None = None,
    ) -> None:
        if not openers:
            raise InvalidSpec("replicas", "wants at least one")
        self._observations = observation_space.codec
        self._actions = action_space.codec
        self._affinity = affinity
        self._restarts = restarts
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        names = names or [f"replica {index}" for index in range(len(openers))]
        self._seats = [Seat(i, *one) for i, one in enumerate(zip(openers, names, strict=True))]
        self._homes: dict[str, list[int]] = {}
        """The seats that know an episode; with affinity one, `_GONE` once that was emptied."""
        self._gone: dict[str, str] = {}
        """What is said to such an episode."""
        self._parked: list[Asked] = []
        self._last_loss: object = None
        self._watch = LateWatch(self._look)
        self._stop = CancelToken()
        self._unsubscribe = _nothing
        if cancel is not None:
            self._unsubscribe = cancel.subscribe(lambda: self._stop.cancel(cancel.reason or ""))
        try:
            Start(self._seats, self._stop, self._joins).run()
        except BaseException:
            self.close()
            raise

    @property
    def ready(self) -> int:
        """How many replicas can be asked."""
        return sum([seat.replica is not None for seat in self._seats])

    # --------------------------------------------------------------------- SubmitsOperations

    def submit(
        self, method: str, request: Any, callback: Callback, env_indices: tuple[int, ...]
    ) -> None:
        """Start `method(request)` and return at once."""
        del env_indices  # a model has no lanes
        if method == "predict":
            self._predict(request, callback)
        elif method == "reset_adapter":
            self._reset(request, callback)
        else:
            self._release(request, callback)

    def abandon(self, env_indices: tuple[int, ...] = ()) -> None:
        """Leave the calls under way behind; nothing is called back, and the replicas are closed."""
        del env_indices
        self._is_over.set()
        self._watch.stop()
        with self._lock:
            self._parked.clear()
        threading.Thread(target=self.close, name="rollmesh-replica", daemon=True).start()

    def close(self) -> None:
        """Close all replicas, without telling the models; again does nothing."""
        self._is_over.set()
        self._unsubscribe()
        self._stop.cancel("the model was released")
        self._watch.stop()
        with self._lock:
            left = [seat.empty() for seat in self._seats]
        for lost in left:
            if lost is not None:
                lost.close()

    # ------------------------------------------------------------------------------- predict

    def _predict(self, request: PredictRequest, callback: Callback) -> None:
        parts = self._parts(request) if self._affinity and len(request.episode_info) > 1 else None
        if parts is None:
            self._ask(Asked(request, callback))
            return
        join = functools.partial(join_replies, self._actions, request, parts)
        joining = Gathering(len(parts), join, callback)
        for place, rows in enumerate(parts):
            part = msgspec.structs.replace(
                request,
                observation=self._observations.take(request.observation, rows),
                episode_info=tuple([request.episode_info[row] for row in rows]),
            )
            self._ask(Asked(part, joining.landing(place)))

    def _parts(self, request: PredictRequest) -> list[list[int]] | None:
        """Return the rows of each home, or None where there is one for all of them.

        Episodes without a home go with the first that has one.
        """
        homes = [self._homes.get(info.episode_id, _NOWHERE)[0] for info in request.episode_info]
        known = [home for home in homes if home != _UNKNOWN]
        if len(set(known)) <= 1:
            return None
        rows: dict[int, list[int]] = {}
        for row, home in enumerate(homes):
            rows.setdefault(known[0] if home == _UNKNOWN else home, []).append(row)
        return list(rows.values())

    def _ask(self, asked: Asked) -> None:
        """Give a request to a replica, or keep it until there is one."""
        limit_ns = asked.request.timeout_ms * 1_000_000
        if limit_ns:
            self._watch.heed(limit_ns)
        with self._lock:
            seat = self._choose(asked.request.episode_info)
            if seat is None:
                self._parked.append(asked)
            port: Any = None
            if isinstance(seat, Seat):
                asked.tries += 1
                asked.expires_ns = now_ns() + limit_ns if limit_ns else 0
                seat.asked.add(asked)
                seat.rows += asked.rows
                port = seat.port
        if isinstance(seat, EndpointFault):
            asked.callback(seat)
        elif seat is not None:
            land = functools.partial(self._landed, seat, asked)
            try:
                port.submit("predict", asked.request, land, ())
            except RuntimeError as exc:  # its thread has ended
                land(SessionLost(str(exc)))

    def _choose(self, infos: Sequence[EpisodeInfo]) -> Seat | EndpointFault | None:
        """Return the seat for these episodes, or why there is none; None is to wait for one."""
        if self._is_over.is_set():
            return EndpointFault("the model was released", outcome="not_done")
        home = self._home_of(infos)
        if home == _GONE:
            return SessionLost(
                next(self._gone[i.episode_id] for i in infos if i.episode_id in self._gone)
            )
        ready = [seat for seat in self._seats if seat.replica is not None]
        if home != _UNKNOWN:
            seat = self._seats[home]
        elif ready:
            seat = min(ready, key=lambda one: (one.rows, one.episodes))
        elif all([one.is_given_up for one in self._seats]):
            return self._all_gone()
        else:
            return None
        for info in infos:
            known = self._homes.setdefault(info.episode_id, [])
            if seat.index not in known:
                known.append(seat.index)
                seat.episodes += 1
        return seat

    def _home_of(self, infos: Sequence[EpisodeInfo]) -> int:
        """Return the home of the first of these episodes that has one."""
        if self._affinity:
            for info in infos:
                if (home := self._homes.get(info.episode_id, _NOWHERE)[0]) != _UNKNOWN:
                    return home
        return _UNKNOWN

    def _all_gone(self) -> EndpointFault:
        count = len(self._seats)
        return EndpointFault(
            f"all {count} replicas of the model are lost and could not be opened again; the last "
            f"failure: {self._last_loss}",
            error_class="ReplicasLost",
            outcome="not_done",
        )

    def _landed(self, seat: Seat, asked: Asked, result: Any) -> None:
        if isinstance(result, _LOST):
            self._take_out(seat, asked, result)
            return
        with self._lock:
            if asked not in seat.asked:  # the seat was emptied, and this failed with it
                return
            seat.asked.discard(asked)
            seat.rows -= asked.rows
            seat.losses = 0
        asked.callback(result)

    def _look(self, at_ns: int) -> int | None:
        """Take out the replicas that are late, and return when the next request may be."""
        with self._lock:
            under_way = [
                (asked.expires_ns, seat, asked)
                for seat in self._seats
                for asked in seat.asked
                if asked.expires_ns
            ]
        late = [one for one in under_way if one[0] <= at_ns]
        for _, seat, asked in sorted(late, key=lambda one: one[0]):
            self._take_out(seat, asked, PortTimeout("it does not answer"))
        return min([expires for expires, _, _ in under_way if expires > at_ns], default=None)

    def _failed(self, asked: Asked, failure: BaseException) -> None:
        """Ask another replica, where that is as good; else tell who waits."""
        is_lost = isinstance(failure, SessionLost)
        if is_lost and not self._affinity and asked.tries < _MOST_TRIES:
            self._ask(asked)
        else:
            asked.callback(failure)

    # ------------------------------------------------------------------------------ episodes

    def _reset(self, request: ResetAdapterRequest, callback: Callback) -> None:
        mine: dict[int, list[str]] = {}
        with self._lock:
            for episode_id in request.episode_ids:
                self._gone.pop(episode_id, None)
                for index in self._homes.pop(episode_id, ()):
                    if index >= 0 and self._seats[index].replica is not None:
                        mine.setdefault(index, []).append(episode_id)
                        self._seats[index].episodes -= 1
            calls = [
                (self._seats[index].port, ResetAdapterRequest(request.context, tuple(ids)))
                for index, ids in mine.items()
            ]
        _all_of("reset_adapter", calls, callback)

    def _release(self, request: ReleaseAdapterRequest, callback: Callback) -> None:
        self._is_over.set()
        with self._lock:
            self._homes.clear()
            self._gone.clear()
            parked, self._parked = self._parked, []
            calls = [(seat.port, request) for seat in self._seats if seat.port is not None]

        def released(result: Any) -> None:
            self.close()
            callback(result)

        for asked in parked:
            asked.callback(EndpointFault("the model was released", outcome="not_done"))
        _all_of("release_adapter", calls, released)

    # -------------------------------------------------------------------------------- losses

    def _take_out(self, seat: Seat, asked: Asked, failure: BaseException) -> None:
        """Empty the seat of a lost replica, fail what it was asked, and have the seat filled."""
        hangs = isinstance(failure, PortTimeout)
        with self._lock:
            lost = seat.empty() if asked in seat.asked else None
            if lost is None:  # the seat was emptied before, and this failed with it
                return
            self._count_loss(seat, failure)
            own, others, gone = _told(lost, asked, failure, is_over=seat.is_given_up)
            self._last_loss = own
            for episode_id, known in self._homes.items():
                if seat.index in known:
                    known.remove(seat.index)
                    if self._affinity:
                        known.append(_GONE)
                        self._gone[episode_id] = gone
        _logger.warning(
            "replica_lost replica=%d name=%s error=%s restarts=%s",
            seat.index,
            lost.replica.name,
            own,
            "no" if seat.is_given_up else "yes",
        )
        threading.Thread(
            target=functools.partial(self._replace, seat, lost, hangs=hangs),
            name="rollmesh-replica",
            daemon=True,
        ).start()
        for one in lost.asked:
            if one is not asked:
                self._failed(one, SessionLost(others))
            else:
                self._failed(one, SessionLost(own) if hangs else failure)

    def _count_loss(self, seat: Seat, failure: BaseException) -> None:
        self._last_loss = failure
        seat.losses += 1
        seat.is_given_up = seat.losses > self._restarts

    def _replace(self, seat: Seat, lost: Lost, *, hangs: bool) -> None:
        """Close a lost replica and open another one in its place; on a thread of its own."""
        lost.close(hangs=hangs)
        while not seat.is_given_up and not self._is_over.wait(_pause_s(seat.losses)):
            try:
                replica = seat.opener(self._stop)
            except Exception as exc:  # noqa: BLE001 - told once there is no replica left
                if self._is_over.is_set():  # which ended it
                    break
                with self._lock:
                    self._count_loss(seat, exc)
                _logger.warning("replica_failed replica=%d error=%s", seat.index, exc)
                continue
            with self._lock:
                seat.fill(replica)
            _logger.warning("replica_back replica=%d name=%s", seat.index, replica.name)
            break
        if self._is_over.is_set():
            self.close()
        self._serve_parked()

    def _joins(self, seat: Seat, result: Any) -> None:
        """Take a replica that came after the start, or give its seat up; on the opener's thread."""
        with self._lock:
            is_over = self._is_over.is_set() or self._stop.cancelled
            is_failure = isinstance(result, BaseException)
            if not is_over and is_failure:
                self._last_loss = result
                seat.is_given_up = True
            elif not is_over:
                seat.fill(result)
        if is_over:
            if not is_failure:
                close_unused(result)
            return
        if is_failure:
            _logger.warning("replica_given_up name=%s error=%s", seat.name, result)
        else:
            _logger.warning("replica_joined name=%s", result.name)
        self._serve_parked()

    def _serve_parked(self) -> None:
        with self._lock:
            parked, self._parked = self._parked, []
        for asked in parked:
            self._ask(asked)


_UNKNOWN, _GONE = -2, -1
_NOWHERE = (_UNKNOWN,)


def _nothing() -> None:
    """Stand in for what takes a subscription back."""


def _told(
    lost: Lost, asked: Asked, failure: BaseException, *, is_over: bool
) -> tuple[str, str, str]:
    """Return what is said of a loss: to who asked, to others who did, to whoever asks later."""
    name, limit_ms = lost.replica.name, asked.request.timeout_ms
    if not isinstance(failure, PortTimeout) or not limit_ms:
        text = f"{name} is lost: {failure}"
        return text, text, f"the replica of the model that these episodes lived on is lost: {text}"
    fate = f"within {limit_ms / 1e3:g} s and was {'given up' if is_over else 'replaced'} ({name})"
    others = f"the model's replica did not answer another request {fate}"
    return f"the model's replica did not answer {fate}", others, others


def _pause_s(losses: int) -> float:
    """Return how long to wait before a replica is opened again: longer each time."""
    return 0.0 if losses <= 1 else _FIRST_PAUSE_S * 2.0 ** (losses - 2)


def _all_of(method: str, calls: Sequence[tuple[Any, Any]], callback: Callback) -> None:
    """Start the calls, and call back with None or the first failure: a loss is none."""
    if not calls:
        callback(None)
        return
    failures: list[BaseException] = []
    missing = itertools.count(len(calls) - 1, -1).__next__

    def landed(result: Any) -> None:
        if isinstance(result, BaseException) and not isinstance(result, SessionLost):
            failures.append(result)
        if missing() == 0:
            callback(failures[0] if failures else None)

    for port, request in calls:
        try:
            port.submit(method, request, landed, ())
        except RuntimeError as exc:  # its thread has ended
            landed(exc)


_: type[ModelPort] = ReplicatedModel
