"""Many episodes in little memory, for runs that go on for long (layer 7).

An `EpisodeResult` and what it holds take some 300 bytes; packed it is about 110. Knows nothing of
runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import fields
from operator import attrgetter
from typing import Any

import msgspec

from rollmesh.results.result import EpisodeResult
from rollmesh.spaces.conformance import OddObservations

_UUID_BYTES = 16
_Odd = tuple[OddObservations, ...]
_NAMES = tuple(one.name for one in fields(EpisodeResult) if one.name != "episode_id")
_values_of = attrgetter(*_NAMES)
_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(list[Any]).decode


class PackedEpisodes(MutableMapping[int, EpisodeResult]):
    """Holds episodes by plan index, ascending; what is read is equal to what was put in."""

    def __init__(self, given: Mapping[int, EpisodeResult] | None = None) -> None:
        """Begin with episodes that others hold anyway: they are not packed.

        Args:
            given: Episodes by index.
        """
        self._held: list[bytes | EpisodeResult | None] = []
        self._count = 0
        for index in sorted(given or ()):
            self._place(index)
            self._held[index] = (given or {})[index]

    def __setitem__(self, index: int, episode: EpisodeResult) -> None:
        self._place(index)
        self._held[index] = _packed(episode)

    def __getitem__(self, index: int) -> EpisodeResult:
        held = self._held[index] if 0 <= index < len(self._held) else None
        if held is None:
            raise KeyError(index)
        return _unpacked(held) if isinstance(held, bytes) else held

    def __delitem__(self, index: int) -> None:
        if index not in self:
            raise KeyError(index)
        self._held[index] = None
        self._count -= 1

    def __contains__(self, index: object) -> bool:
        held = self._held
        return isinstance(index, int) and 0 <= index < len(held) and held[index] is not None

    def __iter__(self) -> Iterator[int]:
        return (index for index, held in enumerate(self._held) if held is not None)

    def __len__(self) -> int:
        return self._count

    def _place(self, index: int) -> None:
        """Make a place for an episode, and count it."""
        if index < 0:
            raise KeyError(index)
        held = self._held
        if index >= len(held):
            held.extend([None] * (index + 1 - len(held)))
        self._count += held[index] is None


def _packed(episode: EpisodeResult) -> bytes | EpisodeResult:
    written = episode.episode_id
    try:
        number = bytes.fromhex(written.replace("-", ""))
        is_uuid = len(number) == _UUID_BYTES and _spelled(number) == written
    except ValueError:  # an id of another kind
        number, is_uuid = b"", False
    try:
        return _pack((number if is_uuid else written, *_values_of(episode)))
    except (OverflowError, TypeError, ValueError):  # a seed of more than 64 bits, half a character
        return episode


def _unpacked(held: bytes) -> EpisodeResult:
    written, *rest = _unpack(held)
    values: dict[str, Any] = dict(zip(_NAMES, rest, strict=True))
    values["causes"] = tuple(values["causes"])
    values["odd_observations"] = _odd_of(values["odd_observations"])
    episode_id = _spelled(written) if isinstance(written, bytes) else written
    return EpisodeResult(episode_id=episode_id, **values)


def _odd_of(held: list[dict[str, Any]]) -> _Odd:
    return msgspec.convert(held, _Odd) if held else ()


def _spelled(number: bytes) -> str:
    """Return a UUID as text."""
    text = number.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
