"""Independent lanes: scalar envs that are reset and stepped each on its own thread (layer 6).

Lane i is built, used and closed on thread i. An instance that the caller put into a list is used
on its lane's thread as well, though it was built elsewhere: envs bound to the thread that built
them (OpenGL, pygame) need a factory.

A request names one lane, or none for all of them; one for several lanes is split, and its reply
put together when all lanes are back.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from rollmesh.endpoint.envs.contracts import contract_difference
from rollmesh.endpoint.envs.hosted_env import HostedEnv, build_all, discard
from rollmesh.endpoint.gathering import Gathering
from rollmesh.errors import InvalidSpec
from rollmesh.ports import (
    REBUILD,
    SUBSET_STEP,
    Callback,
    EnvContract,
    OddValue,
    ResetReply,
    ResetRequest,
    StepReply,
    StepRequest,
)


class LaneEnvs:
    """Drives N scalar envs as N lanes."""

    def __init__(self, lanes: Sequence[HostedEnv]) -> None:
        """Take over built lanes; lane i must report completions under `env_index` i.

        Raises:
            InvalidSpec: The lanes' spaces are not all equal.
        """
        self._lanes = tuple(lanes)
        first = self._lanes[0].contract
        for index, lane in enumerate(self._lanes):
            if other := contract_difference(first, lane.contract):
                raise InvalidSpec("env", f"lane {index} differs from lane 0: {other}")
        self.contract: EnvContract = replace(first, num_envs=len(self._lanes))
        can_rebuild = all(lane.can_rebuild for lane in self._lanes)
        self.capabilities = frozenset({SUBSET_STEP, REBUILD} if can_rebuild else {SUBSET_STEP})

    @classmethod
    def build(cls, lanes: Sequence[HostedEnv], timeout_s: float | None) -> LaneEnvs:
        """Build all lanes at once, at most `timeout_s` seconds long.

        Raises:
            EndpointFault: A lane could not be built in time.
            InvalidSpec: The lanes' spaces are not all equal.
        """
        try:
            build_all([lane for lane in lanes if lane.port is None], timeout_s)
            return cls(lanes)
        except BaseException:
            for lane in lanes:
                discard(lane)
            raise

    def lane(self, env_index: int) -> HostedEnv:
        """Return the host of a lane."""
        return self._lanes[env_index]

    def address_of(self, env_indices: tuple[int, ...]) -> str:
        """Return where the first of these lanes (none named: of all) is served; "" for one here."""
        host = self._lanes[env_indices[0] if env_indices else 0]
        return str(getattr(host.port, "address", ""))

    # ------------------------------------------------------------------- SubmitsOperations

    def submit(
        self, method: str, request: Any, callback: Callback, env_indices: tuple[int, ...]
    ) -> None:
        """Start `method(request)` on the threads of these lanes (none named: all)."""
        if len(env_indices) == 1 or len(self._lanes) == 1:
            lane = self._lanes[env_indices[0] if env_indices else 0]
            lane.submit(method, request, callback, ())
            return
        indices = env_indices or tuple(range(len(self._lanes)))
        parts, join = self._split(method, request, indices)
        gathering = Gathering(len(indices), join, callback)
        for row, index in enumerate(indices):
            land = gathering.landing(row)
            try:
                self._lanes[index].submit(method, parts[row], land, ())
            except RuntimeError as exc:  # that lane was abandoned
                land(exc)

    def abandon(self, env_indices: tuple[int, ...] = ()) -> None:
        """Leave these lanes behind (none named: all); they get no further call."""
        for index in env_indices or range(len(self._lanes)):
            self._lanes[index].abandon()

    # ----------------------------------------------------------------------------- EnvPort

    def reset(self, request: ResetRequest) -> ResetReply:
        """Reset the named lanes (none: all) at the same time and wait for them.

        Raises:
            EndpointFault: A lane's env raised, exited or answered nonsense; the first one.
        """
        return self._wait("reset", request, request.env_indices)

    def step(self, request: StepRequest) -> StepReply:
        """Step the named lanes (none: all) at the same time and wait for them.

        Raises:
            EndpointFault: A lane's env raised, exited or answered nonsense; the first one.
        """
        return self._wait("step", request, request.env_indices)

    def rebuild(self, env_indices: tuple[int, ...]) -> None:
        """Close these lanes unless abandoned, and build them anew; waits for it.

        Raises:
            EndpointFault: Building raised or exited.
            InvalidSpec: A lane is an instance, or its new env has another contract.
        """
        self._wait("rebuild", env_indices, env_indices)

    def close(self, timeout_s: float | None) -> None:
        """Close all lanes at the same time; abandoned ones are skipped.

        Raises:
            TimeoutError: Some did not come back in time; they are abandoned.
            EndpointFault: An env raised or exited; the first one.
        """
        arrived: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        waiting = set(range(len(self._lanes)))
        for index, lane in enumerate(self._lanes):
            lane.submit("close", timeout_s, lambda result, at=index: arrived.put((at, result)), ())
        expiry = None if timeout_s is None else time.monotonic() + timeout_s
        failures: list[BaseException] = []
        while waiting:
            left_s = None if expiry is None else max(0.0, expiry - time.monotonic())
            try:
                index, result = arrived.get(timeout=left_s)
            except queue.Empty:
                self.abandon(tuple(sorted(waiting)))
                names = ", ".join(str(lane) for lane in sorted(waiting))
                raise TimeoutError(
                    f"env.close of lane {names} did not come back within {timeout_s} s"
                ) from None
            waiting.discard(index)
            if isinstance(result, BaseException):
                failures.append(result)
        if failures:
            raise failures[0]

    # -------------------------------------------------------------------- several lanes

    def _wait(self, method: str, request: Any, indices: tuple[int, ...]) -> Any:
        arrived: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.submit(method, request, arrived.put, indices)
        result = arrived.get()
        if isinstance(result, BaseException):
            raise result
        return result

    def _split(
        self, method: str, request: Any, indices: tuple[int, ...]
    ) -> tuple[list[Any], Callable[[list[Any]], Any]]:
        """Return the request of each lane, and what puts their replies together."""
        rows = range(len(indices))
        if method == "reset":
            return [_reset_part(request, row, indices[row]) for row in rows], self._join_resets
        if method == "step":
            take = self.contract.action_space.codec.take
            parts = [
                msgspec.structs.replace(
                    request,
                    action=take(request.action, (row,)),
                    episode_ids=request.episode_ids[row : row + 1],
                    env_indices=(indices[row],),
                    next_episode_ids=(),
                )
                for row in rows
            ]
            return parts, self._join_steps
        if method == "rebuild":
            return [(index,) for index in indices], _nothing
        return [request] * len(indices), _nothing

    def _join_resets(self, replies: list[ResetReply]) -> ResetReply:
        gather = self.contract.observation_space.codec.gather
        return ResetReply(
            observation=gather([(reply.observation, 0) for reply in replies]),
            infos=tuple(reply.infos[0] for reply in replies),
            odd=_join_odd(replies),
            request_bytes=sum(reply.request_bytes for reply in replies),
            response_bytes=sum(reply.response_bytes for reply in replies),
        )

    def _join_steps(self, replies: list[StepReply]) -> StepReply:
        gather = self.contract.observation_space.codec.gather
        return StepReply(
            observation=gather([(reply.observation, 0) for reply in replies]),
            rewards=tuple(reply.rewards[0] for reply in replies),
            infos=tuple(reply.infos[0] for reply in replies),
            completions=tuple(end for reply in replies for end in reply.completions),
            odd=_join_odd(replies),
            request_bytes=sum(reply.request_bytes for reply in replies),
            response_bytes=sum(reply.response_bytes for reply in replies),
        )


def _reset_part(request: ResetRequest, row: int, index: int) -> ResetRequest:
    return msgspec.structs.replace(
        request,
        episode_ids=request.episode_ids[row : row + 1],
        seeds=request.seeds[row : row + 1],
        options=request.options[row : row + 1],
        env_indices=(index,),
    )


def _join_odd(replies: Sequence[ResetReply | StepReply]) -> tuple[OddValue, ...]:
    return tuple(
        OddValue(row, one.kind, one.path) for row, reply in enumerate(replies) for one in reply.odd
    )


def _nothing(replies: list[Any]) -> None:
    del replies
