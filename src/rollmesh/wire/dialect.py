"""Dialect: what may be said to a peer on the rlmesh-wire-v1 wire (layer 4).

The released peers speak the plain wire. What only rollmesh ends share (lossless infos, more spaces,
more about errors) travels in fields from 1000 on, and only where both ends announced it in their
handshake. Towards anybody else it is left out, replaced or refused with a sentence, as each module
says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

SUBSET_STEP = "subset_step"
"""Env: each lane can be reset and stepped on its own."""
CONCURRENT_PREDICT = "rlmesh.model.concurrent_predict.v1"
"""Model: several predicts may be under way at once."""
PREDICT_PER_LANE = "rollmesh.model.predict_per_lane.v1"
"""Model: one predict per lane of the envs that were resolved may be under way at once."""
MOST_PER_LANE = 1024
"""As many of them, however many lanes there are."""
OBSERVATION_HISTORY = "rlmesh.model.observation_history.v1"
"""Model: can be given earlier observations."""
EXACT_MAPS = "rollmesh.exact_maps.v1"
"""Both: infos, options and metadata travel without loss."""
MORE_SPACES = "rollmesh.more_spaces.v1"
"""Both: every space there is, not only those of the released wire."""
DETAILS = "rollmesh.details.v1"
"""Both: the rest of what a request or reply of ours holds (see the fields from 1000 on)."""

OURS = (EXACT_MAPS, MORE_SPACES, DETAILS)
"""What this version announces, whatever it serves."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Dialect:
    """What both ends of a connection know beyond the released wire.

    Attributes:
        exact_maps: Infos, options and metadata travel without loss.
        more_spaces: Every space may be used.
        details: Fields of ours beside infos and spaces may be used.
    """

    exact_maps: bool = False
    more_spaces: bool = False
    details: bool = False


FOREIGN = Dialect()
"""Nothing beyond the released wire."""
ROLLMESH = Dialect(exact_maps=True, more_spaces=True, details=True)
"""Everything."""


def agree(theirs: Mapping[str, str]) -> Dialect:
    """Return the dialect to use with a peer that announced these capabilities.

    A capability counts only with the value `"true"`.
    """
    return Dialect(
        exact_maps=theirs.get(EXACT_MAPS) == "true",
        more_spaces=theirs.get(MORE_SPACES) == "true",
        details=theirs.get(DETAILS) == "true",
    )
