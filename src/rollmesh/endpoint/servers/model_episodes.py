"""Whose an episode is, among all routes to a served model (layer 6).

An episode belongs to the route that named it first, until that route ends it: no client can name
another one's. Where that route's client is away (its connection dropped, and it may still come back
to its session), an episode goes to whoever asks for it: its client has come back as another
session.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from rollmesh.endpoint.error_bodies import Refused
from rollmesh.ports import PredictRequest, ResetAdapterRequest

if TYPE_CHECKING:
    from rollmesh.endpoint.servers.model_home import DrivenRoute

MOST_EPISODES = 2**16
"""Episodes that one route may have under way."""

Owners: TypeAlias = "dict[str, DrivenRoute]"
"""The route of each episode under way."""
TakenOver: TypeAlias = "list[tuple[DrivenRoute, str]]"
"""Episodes that were another route's."""


def claim(owners: Owners, route: DrivenRoute, request: PredictRequest) -> TakenOver:
    """Make sure that the episodes of a request are this route's; return what was another's.

    Raises:
        Refused: One is another route's, or the request names none.
    """
    if not request.episode_info:
        raise Refused("invalid_request", "PREDICT wants at least one row")
    mine = route.episodes
    taken_over: TakenOver = []
    for info in request.episode_info:
        episode_id = info.episode_id
        if episode_id in mine:
            continue
        if not episode_id or len(mine) >= MOST_EPISODES:
            raise Refused("invalid_request", "no episode id, or too many under way")
        owner = owners.setdefault(episode_id, route)
        if owner is not route:
            if not owner.is_away():
                raise Refused(
                    "invalid_request", f"episode {episode_id[:80]!r} belongs to another route"
                )
            owner.episodes.discard(episode_id)
            owners[episode_id] = route
            taken_over.append((owner, episode_id))
        mine.add(episode_id)
    return taken_over


def end_there(taken_over: TakenOver, go_on: Callable[[], None]) -> None:
    """Have episodes ended where they were, one after the other; then go on."""
    if not taken_over:
        go_on()
        return
    (owner, episode_id), rest = taken_over[0], taken_over[1:]

    def ended(result: Any) -> None:
        del result  # whatever that route makes of it, the episode is this one's now
        end_there(rest, go_on)

    try:
        request = ResetAdapterRequest(owner.context, (episode_id,))
        owner.submit("reset_adapter", request, ended)
    except RuntimeError:  # the route has ended, and its episodes with it
        end_there(rest, go_on)
