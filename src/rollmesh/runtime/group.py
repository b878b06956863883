"""The episode loop: reset, observe, predict, act, step, until every planned episode has ended.

A generator that yields what it needs (`Operation`) and receives what came back. It knows no clock,
thread, socket or event loop: an engine performs the operations, so that the same loop runs
blocking, concurrent and simulated. Each helper below is one sentence of the contract
(docs/semantics.md); the three autoreset modes differ in one branch at the end of an iteration.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

from rollmesh.errors import EndpointFailed, EnvFailed, OperationTimeout, RouteError
from rollmesh.ports import REBUILD, AutoresetMode, ResetReply, StepReply
from rollmesh.runtime.lanes import Ending, Episode, Group, Lane
from rollmesh.runtime.operations import GroupLoop, Operation
from rollmesh.runtime.route import Route
from rollmesh.spaces.codec import Leaves


def group_loop(route: Route, group: Group) -> GroupLoop:
    """Play planned episodes on these lanes until there are none left for them.

    A fault spoils the episodes that were running on the group. Under `on_error="continue"` an env
    fault then has the group built anew; any other fault ends the route. Where the session with a
    served endpoint was lost, they are not spoiled but started again, as new attempts. A lane that
    was given up leaves its episode to the others, also where these had run out of episodes.
    """
    try:
        yield from _play(route, group)
    finally:
        route.groups_left -= 1


def _play(route: Route, group: Group) -> GroupLoop:
    while True:
        try:
            yield from _episodes(route, group)
        except (EndpointFailed, OperationTimeout) as error:
            if route.may_do_without(group, error):
                if route.groups_left > 1:
                    return
                group.take_over(route.resting.pop())
                continue
            again = route.may_try_again(group, error)
            goes_on = again or _may_rebuild(route, error)
            if again:
                ids = route.take_back(group, error)
            else:
                ids = route.spoil(group, error, goes_on=goes_on)
            if not goes_on:
                raise
            if (evict := route.requests.evict(ids)) is not None:
                yield evict
            if route.plan.exhausted:
                return
            yield from _mend(route, group, error)
        else:
            route.resting.append(group)
            return


def _mend(route: Route, group: Group, error: RouteError) -> GroupLoop:
    """Have lanes built anew after a fault of their env, or go on with others that are ready."""
    if error.operation == "env.prepare" and route.resting:
        group.take_over(route.resting.pop())
    elif error.operation.startswith("env."):
        for lane in group.lanes:
            lane.setup = None
        yield route.requests.rebuild(group)


def _episodes(route: Route, group: Group) -> GroupLoop:
    """Play until nothing is left to play here.

    What is deleted is held by nobody then, so that the next observation may use its memory.
    """
    observation = yield from _first_reset(route, group)
    while observation is not None:
        route.check_cancel(group)
        mark = route.telemetry.mark()
        roster = group.roster()
        if roster.lanes:
            rows = route.observe(roster, observation)
            ask = [lane for lane in roster.lanes if not lane.frames]
            if ask:
                route.check_cancel(group, "model.predict", ask[0].steps)
                predict = route.requests.predict(group, ask, roster, rows)
                route.plan_frames(ask, predict, (yield predict))
                del predict
            del rows
            action = route.act(group, roster)
        else:
            action = route.fill(group)
        del observation
        route.check_cancel(group, "env.step", group.step + 1)
        reply: StepReply = yield route.requests.step(group, action)
        endings = route.stepped(group, roster, reply)
        for lane in group.lanes:
            if lane.next is not None:
                route.start(group, lane, lane.next, reply.ended_ns)
        observation = reply.observation
        if endings:
            observation = yield from _handle_ends(route, group, endings, reply)
        del reply
        route.telemetry.round_ended(mark)


def _first_reset(route: Route, group: Group) -> Generator[Operation, Any, Leaves | None]:
    lanes = group.lanes
    episodes = route.plan.claim(lanes, may_idle=group.may_idle)
    if not any([episode is not None and episode.planned for episode in episodes]):
        return None
    return (yield from _restart(route, group, lanes, episodes, None))


def _handle_ends(
    route: Route, group: Group, endings: Sequence[Ending], reply: StepReply
) -> Generator[Operation, Any, Leaves | None]:
    """Report the ends, have them forgotten, and give the lanes their next episodes.

    Returns the current observation, or None when nothing is left to play here.
    """
    for ending in endings:
        route.complete(group, ending, reply)
    ended = [ending.lane for ending in endings]
    evict = route.requests.evict([lane.episode.id for lane in ended if lane.episode is not None])
    if evict is not None:
        yield evict
    for lane in group.lanes if route.spec.replan == "batch" else ended:
        lane.frames.clear()
    if route.budget_met:
        return None
    nexts = route.plan.claim(ended, may_idle=group.may_idle)
    return (yield from _restart_ended(route, group, ended, nexts, reply))


def _restart_ended(
    route: Route,
    group: Group,
    ended: Sequence[Lane],
    nexts: Sequence[Episode | None],
    reply: StepReply,
) -> Generator[Operation, Any, Leaves | None]:
    planned = any([episode is not None and episode.planned for episode in nexts])
    others = any([lane.owes for lane in group.lanes if lane not in ended])
    if not (planned or others):
        return None
    if route.owns_resets:
        return (yield from _restart(route, group, ended, nexts, reply.observation))
    for lane, episode in zip(ended, nexts, strict=True):
        if episode is None:
            continue
        if route.mode is AutoresetMode.SAME_STEP:
            route.start(group, lane, episode, reply.ended_ns)
        else:
            lane.next = episode
    group.changed()
    return reply.observation


def _restart(
    route: Route,
    group: Group,
    lanes: Sequence[Lane],
    episodes: Sequence[Episode | None],
    observation: Leaves | None,
) -> Generator[Operation, Any, Leaves | None]:
    """Reset these lanes, and return the group's observation with their rows replaced."""
    chosen = [(lane, e) for lane, e in zip(lanes, episodes, strict=True) if e is not None]
    lanes = [lane for lane, _ in chosen]
    starting = [episode for _, episode in chosen]
    route.check_cancel(group, "env.reset", lanes[0].steps)
    for lane, episode in chosen:
        lane.next = episode
    if route.prepares:
        yield from _prepare(route, chosen)
    reply: ResetReply = yield route.requests.reset(group, lanes, starting)
    route.started(group, lanes, starting, reply)
    return route.put(group, lanes, observation, reply.observation)


def _prepare(
    route: Route, chosen: Sequence[tuple[Lane, Episode]]
) -> Generator[Operation, Any, None]:
    """Have each lane ready for its episode, where that is not what it holds already."""
    for lane, episode in chosen:
        if lane.setup != episode.setup:
            lane.setup = None
            yield route.requests.prepare(lane, episode.setup)
            lane.setup = episode.setup


def _may_rebuild(route: Route, error: RouteError) -> bool:
    if route.spec.on_error != "continue" or REBUILD not in route.capabilities:
        return False
    is_late = isinstance(error, OperationTimeout) and error.operation.startswith("env.")
    return is_late or isinstance(error, EnvFailed)
