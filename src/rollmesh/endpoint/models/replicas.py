"""Several replicas of a model as one model port (layer 6).

    model = ReplicatedModel([open_one, open_another], observation_space=…, action_space=…)

A replica is whatever answers as a model port: an object here, a model in a process of its own
(`model_process.py`), a served one. Requests go to the replica with the least under way. Where the
model keeps something per episode (`affinity`), an episode stays with the replica that had its first
request, and a request whose episodes live on several replicas is split.

A replica whose session is lost (`SessionLost`) is taken out and opened anew, a few times. With
affinity, what it was asked fails with that error, and so does whatever its episodes ask later: the
runtime starts them anew, under new ids. Without, another replica is asked. While none is there but
some are being opened, requests wait; once all have been given up, they fail.
"""

from __future__ import annotations

import functools
import itertools
import logging
import threading
from collections.abc import Sequence
from typing import Any

import msgspec

from rollmesh.endpoint.models.replica_seats import Asked, Lost, Opener, Seat, open_all
from rollmesh.endpoint.models.submitting import SubmittingModel
from rollmesh.errors import EndpointFault, InvalidSpec, PortTimeout, SessionLost
from rollmesh.ports import (
    Callback,
    EpisodeInfo,
    ModelPort,
    PredictReply,
    PredictRequest,
    ReleaseAdapterRequest,
    ResetAdapterRequest,
)
from rollmesh.spaces.codec import Codec
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
        openers: Open one replica each; all at once, here.
        observation_space: Space of one row's observation.
        action_space: Space of one row's action.
        affinity: Whether an episode stays with one replica. Needed where the model keeps anything
            per episode.
        restarts: How often in a row a lost replica is opened anew.

    Raises:
        EndpointFault: One of them could not be opened; the others are closed.
        InvalidSpec: There are none.
    """

    def __init__(
        self,
        openers: Sequence[Opener],
        *,
        observation_space: Space,
        action_space: Space,
        affinity: bool = True,
        restarts: int = 3,
    ) -> None:
        if not openers:
            raise InvalidSpec("replicas", "wants at least one")
        self._observations = observation_space.codec
        self._actions = action_space.codec
        self._affinity = affinity
        self._restarts = restarts
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._seats = [Seat(index, opener) for index, opener in enumerate(openers)]
        self._homes: dict[str, list[int]] = {}
        """The seats that know an episode; with affinity one, `_GONE` once that was emptied."""
        self._parked: list[Asked] = []
        self._last_loss: BaseException | None = None
        open_all(self._seats)

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
        with self._lock:
            self._parked.clear()
        threading.Thread(target=self.close, name="rollmesh-replica", daemon=True).start()

    def close(self) -> None:
        """Close all replicas, without telling the models; again does nothing."""
        self._is_over.set()
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
        joining = _Joining(self._actions, request, parts, callback)
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
        with self._lock:
            seat = self._choose(asked.request.episode_info)
            if seat is None:
                self._parked.append(asked)
            port: Any = None
            if isinstance(seat, Seat):
                asked.tries += 1
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
            return SessionLost("the replica of the model that these episodes lived on is lost")
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
        is_lost = isinstance(result, _LOST)
        with self._lock:
            if asked not in seat.asked:  # the seat was emptied, and this failed with it
                return
            seat.asked.discard(asked)
            seat.rows -= asked.rows
            if not is_lost:
                seat.losses = 0
        if not is_lost:
            asked.callback(result)
            return
        self._take_out(seat, result)
        self._failed(asked, result)

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
            parked, self._parked = self._parked, []
            calls = [(seat.port, request) for seat in self._seats if seat.port is not None]

        def released(result: Any) -> None:
            self.close()
            callback(result)

        for asked in parked:
            asked.callback(EndpointFault("the model was released", outcome="not_done"))
        _all_of("release_adapter", calls, released)

    # -------------------------------------------------------------------------------- losses

    def _take_out(self, seat: Seat, failure: BaseException) -> None:
        """Empty the seat of a lost replica, fail what it was asked, and have the seat filled."""
        with self._lock:
            lost = seat.empty()
            if lost is None:
                return
            self._count_loss(seat, failure)
            for known in self._homes.values():
                if seat.index in known:
                    known.remove(seat.index)
                    if self._affinity:
                        known.append(_GONE)
        _logger.warning(
            "replica_lost replica=%d name=%s error=%s restarts=%s",
            seat.index,
            lost.replica.name,
            failure,
            "no" if seat.is_given_up else "yes",
        )
        threading.Thread(
            target=self._replace, args=(seat, lost), name="rollmesh-replica", daemon=True
        ).start()
        for asked in lost.asked:
            gone = SessionLost(f"{lost.replica.name} is lost: {failure}")
            self._failed(asked, gone)

    def _count_loss(self, seat: Seat, failure: BaseException) -> None:
        self._last_loss = failure
        seat.losses += 1
        seat.is_given_up = seat.losses > self._restarts

    def _replace(self, seat: Seat, lost: Lost) -> None:
        """Close a lost replica and open another one in its place; on a thread of its own."""
        lost.close()
        while not seat.is_given_up and not self._is_over.wait(_pause_s(seat.losses)):
            try:
                replica = seat.opener()
            except Exception as exc:  # noqa: BLE001 - told once there is no replica left
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

    def _serve_parked(self) -> None:
        with self._lock:
            parked, self._parked = self._parked, []
        for asked in parked:
            self._ask(asked)


_UNKNOWN, _GONE = -2, -1
_NOWHERE = (_UNKNOWN,)


class _Joining:
    """Puts the replies of several replicas together, and calls back once."""

    def __init__(
        self,
        actions: Codec,
        request: PredictRequest,
        parts: Sequence[Sequence[int]],
        callback: Callback,
    ) -> None:
        self._actions = actions
        self._request = request
        self._parts = parts
        self._callback = callback
        self._results: list[Any] = [None] * len(parts)
        self._missing = itertools.count(len(parts) - 1, -1).__next__

    def landing(self, place: int) -> Callback:
        """Return the callback of one part."""

        def land(result: Any) -> None:
            self._results[place] = result
            if self._missing() == 0:
                self._callback(self._together())

        return land

    def _together(self) -> Any:
        for result in self._results:
            if isinstance(result, BaseException):
                return result
        where = {
            row: (place, index)
            for place, rows in enumerate(self._parts)
            for index, row in enumerate(rows)
        }
        order = [where[row] for row in range(len(where))]
        count = min([len(result.frames) for result in self._results])  # the shortest chunk decides
        frames = [
            self._actions.gather([(self._results[p].frames[t], row) for p, row in order])
            for t in range(count)
        ]
        return PredictReply(
            context=self._request.context,
            frames=tuple(frames),
            request_bytes=sum([result.request_bytes for result in self._results]),
            response_bytes=sum([result.response_bytes for result in self._results]),
        )


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
