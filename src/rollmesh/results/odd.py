"""Observations that their space does not hold: where they were seen, and how often (layer 7).

Policy `warn` delivers them and tells each kind and path once, which is easily overlooked; what is
here is told with the result. Knows episodes and nothing of how they ran.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rollmesh.results.result import EpisodeResult

ODD_WORDS = {
    "nan": "NaN observed",
    "bounds": "out of bounds",
    "length": "length of a text",
    "charset": "characters of a text",
}
"""What people are told of each kind; the worst first."""
_MOST_LISTED = 8
_MOST_PATH = 60


@dataclass(frozen=True, kw_only=True, slots=True)
class OddPlace:
    """Observations that their space does not hold, for one reason at one place.

    Attributes:
        kind: `nan`, `bounds` (outside of them), `length` or `charset` (of a text).
        path: Where in the observation: `observation['wrist'][2]`; `…` stands for several.
        count: How many observations were so.
        episodes: The plan indices of the episodes that they belong to, in plan order.
    """

    kind: str
    path: str
    count: int
    episodes: tuple[int, ...]

    @property
    def words(self) -> str:
        """The kind, as people are told of it."""
        return ODD_WORDS.get(self.kind, self.kind)


def odd_places(episodes: Iterable[EpisodeResult]) -> tuple[OddPlace, ...]:
    """Return where and how often observations were odd: NaN first, then the most frequent."""
    counts: dict[tuple[str, str], int] = {}
    where: dict[tuple[str, str], list[int]] = {}
    for episode in episodes:
        for one in episode.odd_observations:
            key = one.kind, one.path
            counts[key] = counts.get(key, 0) + one.count
            where.setdefault(key, []).append(episode.index)
    places = [
        OddPlace(kind=kind, path=path, count=n, episodes=tuple(where[kind, path]))
        for (kind, path), n in counts.items()
    ]
    order = list(ODD_WORDS)
    rank = {kind: place for place, kind in enumerate(order)}
    return tuple(sorted(places, key=lambda p: (rank.get(p.kind, len(order)), -p.count, p.path)))


def odd_lines(places: Sequence[OddPlace], *, episodes: int) -> Iterator[tuple[str, str, str]]:
    """Yield one line a kind: what it is, how many observations, and where.

    Args:
        places: As `odd_places` returns them.
        episodes: How many episodes there are.
    """
    for kind in dict.fromkeys(place.kind for place in places):
        of_it = [place for place in places if place.kind == kind]
        where = sorted({index for place in of_it for index in place.episodes})
        path = of_it[0].path if len(of_it) == 1 else f"{of_it[0].path} and elsewhere"
        if len(path) > _MOST_PATH:
            path = f"{path[: _MOST_PATH - 2]} …"
        note = f"{path}; in {len(where)} of {episodes} episodes: {listed(where)}"
        yield of_it[0].words, f"{sum(place.count for place in of_it):,}", note


def listed(indices: Sequence[int]) -> str:
    """Return the first of some indices as text."""
    shown = ", ".join(map(str, indices[:_MOST_LISTED]))
    return f"{shown}, …" if len(indices) > _MOST_LISTED else shown


def printable(line: str) -> str:
    """Return a line without what a terminal would obey."""
    return "".join(c if c.isprintable() else "?" for c in line)
