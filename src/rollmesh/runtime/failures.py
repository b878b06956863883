"""Failures: what a port raised, told as an error of this route (rule R44)."""

from __future__ import annotations

import traceback

from rollmesh.errors import EndpointFault, EnvFailed, ModelFailed, RouteError
from rollmesh.ports import EpisodeInfo, ResetRequest
from rollmesh.runtime.lanes import Group, Lane
from rollmesh.runtime.operations import Operation
from rollmesh.runtime.spec import SessionSpec

_TRACEBACK_CHARS = 16_000


def explain(
    spec: SessionSpec, group: Group | None, operation: Operation, exc: BaseException
) -> RouteError:
    """Return the error that an exception of a port comes to: what failed, where, what to look at.

    The exception is its cause; a `RouteError` is returned as it is.
    """
    if isinstance(exc, RouteError):
        return exc
    fault = exc if isinstance(exc, EndpointFault) else _fault_of(exc)
    is_env = operation.target == "env"
    component = spec.env_component if is_env else spec.model_component
    lane = _lane_of(group, operation, fault)
    episode = None if lane is None else _episode_of(lane, operation)
    is_reset = isinstance(operation.request, ResetRequest)  # which belongs to no step
    where = "" if is_reset else f" at step {operation.step}"
    if lane is not None:
        where += f"{' on' if is_reset else ','} lane {lane.env_index}"
    if episode is not None:
        where += f", episode {episode.episode_id}, seed {episode.seed}"
    message = f"{component}: {operation.name} failed{where}: {fault.error_class}: {fault.detail}"
    if fault.traceback_text:
        message += f"\n\n{operation.target}-side traceback:\n{fault.traceback_text}"
    kind = EnvFailed if is_env else ModelFailed
    error = kind(
        message,
        fault=fault,
        route=spec.env_id,
        component=component,
        operation=operation.name,
        step=operation.step,
        episode_id=None if episode is None else episode.episode_id,
        seed=None if episode is None else episode.seed,
    )
    if lane is not None:
        error.env_index = lane.env_index
    error.__cause__ = exc
    return error


def _episode_of(lane: Lane, operation: Operation) -> EpisodeInfo | None:
    """Return the episode that a lane played, or that a reset was to start there."""
    request = operation.request
    if isinstance(request, ResetRequest):
        indices = request.env_indices or range(len(request.episode_ids))
        if lane.env_index not in indices:
            return None
        row = indices.index(lane.env_index)
        return EpisodeInfo(request.episode_ids[row], request.seeds[row] if request.seeds else None)
    episode = lane.next or lane.episode
    return None if episode is None else EpisodeInfo(episode.id, episode.seed)


def _fault_of(exc: BaseException) -> EndpointFault:
    text = "".join(traceback.format_exception(type(exc), exc, exc.__traceback__))
    return EndpointFault(
        str(exc), error_class=type(exc).__name__, traceback_text=text[-_TRACEBACK_CHARS:]
    )


def _lane_of(group: Group | None, operation: Operation, fault: EndpointFault) -> Lane | None:
    if group is None:
        return None
    if fault.env_index is not None:
        return group.by_index.get(fault.env_index)
    if group.width == 1:
        return group.lanes[0]
    if len(operation.env_indices) == 1:
        return group.by_index.get(operation.env_indices[0])
    return None
