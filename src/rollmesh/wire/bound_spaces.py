"""The spaces of a connection, as layouts (layer 4): what frame writers and readers share."""

from __future__ import annotations

from rollmesh.errors import WireError
from rollmesh.spaces.codec import Codec
from rollmesh.wire.frames import Layout

_MOST_LAYOUTS = 256


class Side:
    """Layouts of one space, by number of rows."""

    def __init__(self, codec: Codec) -> None:
        self.codec = codec
        self._layouts: dict[int, Layout] = {}

    def layout(self, rows: int) -> Layout:
        """Return the layout of a batch of so many rows."""
        layout = self._layouts.get(rows)
        if layout is None:
            layout = Layout(self.codec, rows)
            if len(self._layouts) < _MOST_LAYOUTS:
                self._layouts[rows] = layout
        return layout


class Spaces:
    """Observation and action space of a connection, unknown until they are bound.

    Attributes:
        num_envs: Width of the env, or None where batches are not bounded by one.
    """

    def __init__(self) -> None:
        self._observation: Side | None = None
        self._action: Side | None = None
        self.num_envs: int | None = None

    def bind(self, observation: Codec, action: Codec, num_envs: int | None) -> None:
        """Fix the spaces."""
        self._observation = Side(observation)
        self._action = Side(action)
        self.num_envs = num_envs

    @property
    def is_bound(self) -> bool:
        """Whether they are known."""
        return self._observation is not None

    @property
    def observation(self) -> Side:
        """The observation space; `WireError` before it is known."""
        if self._observation is None:
            raise _unknown()
        return self._observation

    @property
    def action(self) -> Side:
        """The action space; `WireError` before it is known."""
        if self._action is None:
            raise _unknown()
        return self._action


def _unknown() -> WireError:
    return WireError("a message with leaves before the spaces are known")
