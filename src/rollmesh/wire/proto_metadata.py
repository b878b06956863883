"""Free-form maps: infos, options and metadata to `MetaMap` and back (layer 4).

The wire knows null, bool, int64, double, text, bytes, list and map with text keys. The rest becomes
what the released peer makes of it (arrays become lists, tuples lists, named tuples maps, enums
their values), or, where that peer ends the session (integers beyond 64 bits, other objects, keys
that are no text), its `repr` and a report: an odd info never ends an episode.

Seen on the released peer (0.1.0). `MetaValue.null` is an empty *message*; a bool there makes the
whole response unreadable to it. It emits null as no kind at all and reads both. Its protobuf reader
gives up at 100 nested messages, of which a list takes two and a map three.

The infos of several lanes take one of two forms: a served list of envs sends `final_info`, a list
with a map per lane, and `_final_info`, a list of flags, on resets (all set) and on each step (set
for the lanes that ended); a vector env sends what Gymnasium has, a list per key and a mask per key.
A reply of one row is the plain map of that lane in either case.
"""

# numpy's stubs, and values of unknown origin, leave types partly unknown:
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from rollmesh.errors import WireError
from rollmesh.limits import SIZE_LIMITS
from rollmesh.wire._gen import rlmesh_spaces_v1_pb2 as pb

Report: TypeAlias = Callable[[str, str], None]
"""Takes the path (`info['camera']['pose']`) and a sentence about it."""

FINAL_INFO = "final_info"
FINAL_MASK = "_final_info"
_OWN_PREFIX = "rlmesh."
"""Keys that the released peer adds itself; they belong to the whole env."""
_INT64 = 2**63
_REPR_LIMIT = 200
_MOST_ITEMS = 2**20
"""Values in one map from a peer, so that few bytes cannot become many objects."""


# --------------------------------------------------------------------------------- encoding


def encode_map(
    values: Mapping[Any, Any], target: pb.MetaMap, report: Report, root: str = "info"
) -> None:
    """Write a map into a message.

    Args:
        values: Any map; what `carry` returned for best results.
        target: An empty message.
        report: Called for each value that has no form on the wire, with its path.
        root: First word of the paths.
    """
    writer = _Writer(report)
    target.SetInParent()
    writer.mapping(values, target, root, 1)


def encode_lanes(
    infos: Sequence[Mapping[Any, Any]], target: pb.MetaMap, report: Report, ended: Sequence[bool]
) -> None:
    """Write the infos of several lanes the way a served list of envs does.

    Args:
        infos: One per lane, at least two.
        target: An empty message.
        report: As for `encode_map`.
        ended: Which lanes ended; all on a reset.
    """
    writer = _Writer(report)
    rows, flags = target.entries[FINAL_INFO].list, target.entries[FINAL_MASK].list
    rows.SetInParent()
    flags.SetInParent()
    for row, info in enumerate(infos):
        writer.mapping(info, _entered(rows.items.add().map), f"info[{row}]", 2)
        flags.items.add().boolean = bool(ended[row])


def encode_vector(infos: Sequence[Mapping[Any, Any]], target: pb.MetaMap, report: Report) -> None:
    """Write the infos of several lanes the way a Gymnasium vector env does.

    A key that only some lanes have holds null for the others; `_key` says which have it.
    """
    target.SetInParent()
    _Writer(report).columns(infos, target, "info", 1)


def _entered(message: Any) -> Any:
    message.SetInParent()
    return message


class _Writer:
    """Writes values; never raises for what they are."""

    def __init__(self, report: Report) -> None:
        self._report = report

    def mapping(self, values: Mapping[Any, Any], target: pb.MetaMap, path: str, depth: int) -> None:
        entries = target.entries
        for key, value in values.items():
            name = key if type(key) is str and key.isascii() else self._name(key, path)
            self.value(value, entries[name], path, key, depth)

    def value(self, value: Any, out: pb.MetaValue, path: str, key: Any, depth: int) -> None:
        """Write the value at `path[key]`; the path is only put together when it is needed."""
        if not _write_atom(value, out):
            self._other(value, out, f"{path}[{_bounded(key)}]", depth)

    def _inner(self, value: Any, out: pb.MetaValue, path: str, depth: int) -> None:
        """Write what was inside of the value at `path`."""
        if not _write_atom(value, out):
            self._other(value, out, path, depth)

    def _other(self, value: Any, out: pb.MetaValue, path: str, depth: int) -> None:
        if depth > SIZE_LIMITS.nesting:
            self._replace(value, out, path, f"nested deeper than {SIZE_LIMITS.nesting} levels")
        elif hasattr(value, "_asdict"):
            self.mapping(value._asdict(), _entered(out.map), path, depth + 1)
        elif isinstance(value, np.ndarray):
            self._array(value, out, path, depth)
        elif isinstance(value, Mapping):
            self.mapping(value, _entered(out.map), path, depth + 1)
        elif isinstance(value, (list, tuple)):
            self._list(value, out, path, depth)
        elif isinstance(value, enum.Enum):
            self._enum(value, out, path, depth)
        elif isinstance(value, np.generic) and not isinstance(value, np.void):
            self._scalar(value, out, path, depth)
        else:
            self._subclass(value, out, path)

    def _list(self, values: Sequence[Any], out: pb.MetaValue, path: str, depth: int) -> None:
        items = _entered(out.list).items
        for index, item in enumerate(values):
            self.value(item, items.add(), path, index, depth + 1)

    def _array(self, value: np.ndarray[Any, Any], out: pb.MetaValue, path: str, depth: int) -> None:
        if value.dtype.kind in "Mm":  # dates: their texts say more than their numbers
            value = value.astype(str)
        plain: Any = value.tolist()
        if isinstance(plain, list):
            self._list(plain, out, path, depth)
        else:
            self._inner(plain, out, path, depth)

    def _scalar(self, value: Any, out: pb.MetaValue, path: str, depth: int) -> None:
        plain = value.item()
        if isinstance(plain, np.generic):  # longdouble
            plain = float(plain) if plain.dtype.kind == "f" else repr(plain)
        self._inner(plain, out, path, depth)

    def _enum(self, value: enum.Enum, out: pb.MetaValue, path: str, depth: int) -> None:
        inner = value.value
        is_plain = isinstance(inner, (bool, int, float, str, bytes, list, tuple, dict))
        self._inner(inner if is_plain else value.name, out, path, depth)

    def _subclass(self, value: Any, out: pb.MetaValue, path: str) -> None:
        for kind in (int, float, str, bytes):
            if isinstance(value, kind):
                plain = _base_value(kind, value)
                if _ATOMS[kind](plain, out):
                    return
                self._replace(plain, out, path, _why_not(plain))
                return
        self._replace(value, out, path, f"{type(value).__name__} has no form on this peer's wire")

    def _name(self, key: Any, path: str) -> str:
        """Return a key as text; a key of another kind, or no Unicode text, is reported."""
        if isinstance(key, str):
            try:
                key.encode()
            except UnicodeEncodeError:
                name = key.encode("utf-8", "backslashreplace").decode()
            else:
                return str.__str__(key)
        else:
            name = _bounded(key)
        self._report(
            f"{path}[{_bounded(key)}]", f"keys are texts on this peer's wire: now {name!r}"
        )
        return name

    def _replace(self, value: Any, out: pb.MetaValue, path: str, why: str) -> None:
        text = _bounded(value)
        out.text = text
        self._report(path, f"{why}; replaced by {text}")

    def columns(
        self, infos: Sequence[Mapping[Any, Any]], target: pb.MetaMap, path: str, depth: int
    ) -> None:
        """Write one entry and one mask per key."""
        keys = dict.fromkeys([key for info in infos for key in info])
        for key in keys:
            name = self._name(key, path)
            said = [key in info for info in infos]
            maps = [info[key] for info in infos if key in info]
            out = target.entries[name]
            if depth <= SIZE_LIMITS.nesting and all([isinstance(one, Mapping) for one in maps]):
                inner: list[Any] = [info.get(key, {}) for info in infos]
                self.columns(inner, _entered(out.map), f"{path}[{_bounded(key)}]", depth + 1)
            else:
                items, filler = _entered(out.list).items, _filler(maps[0])
                for row, info in enumerate(infos):
                    value = info.get(key, filler)
                    self.value(value, items.add(), f"{path}[{row}]", key, depth + 1)
            flags = target.entries["_" + name].list
            for has in said:
                flags.items.add().boolean = has


def _write_atom(value: Any, out: pb.MetaValue) -> bool:
    """Write a value that holds no others; return False if it is none, or has no form."""
    if value is None:
        out.SetInParent()
        return True
    write = _ATOMS.get(type(value))
    return write is not None and write(value, out)


def _filler(value: Any) -> Any:
    """Return what Gymnasium gives a lane that lacks the key: a zero like the others' values."""
    if isinstance(value, (bool, int, float, np.generic)):
        return np.zeros_like(value).item()
    return np.zeros_like(value) if isinstance(value, np.ndarray) else None


def _write_bool(value: Any, out: pb.MetaValue) -> bool:
    out.boolean = bool(value)
    return True


def _write_int(value: Any, out: pb.MetaValue) -> bool:
    number = int(value)
    if not -_INT64 <= number < _INT64:
        return False
    out.integer = number
    return True


def _write_float(value: Any, out: pb.MetaValue) -> bool:
    out.number = float(value)
    return True


def _write_text(value: Any, out: pb.MetaValue) -> bool:
    try:
        out.text = value
    except UnicodeEncodeError:
        return False
    return True


def _write_bytes(value: Any, out: pb.MetaValue) -> bool:
    out.raw = value
    return True


_ATOMS: dict[type, Callable[[Any, pb.MetaValue], bool]] = {
    bool: _write_bool,
    np.bool_: _write_bool,
    int: _write_int,
    float: _write_float,
    str: _write_text,
    bytes: _write_bytes,
    **{np.dtype(code).type: _write_int for code in "bhilqBHILQ"},
    **{np.dtype(code).type: _write_float for code in "efd"},
}
"""How a value of exactly this type is written; False where it has no form."""


def _base_value(kind: Any, value: Any) -> Any:
    """Return the value of a subclass as its plain base type."""
    if kind is str:
        return str.__str__(value)
    if kind is bytes:
        return bytes.__getitem__(value, slice(None))
    return kind.__pos__(value)


def _why_not(value: Any) -> str:
    return "no Unicode text" if isinstance(value, str) else "an integer beyond 64 bits"


def _bounded(value: Any) -> str:
    """Return a `repr` of bounded length that is Unicode text, whatever the object does."""
    try:
        text = repr(value)
    except Exception as error:  # noqa: BLE001 - a broken __repr__ must not end an episode
        text = f"<{type(value).__qualname__} whose repr raised {type(error).__name__}>"
    text = text if len(text) <= _REPR_LIMIT else text[: _REPR_LIMIT - 1] + "…"
    return text.encode("utf-8", "backslashreplace").decode()


# --------------------------------------------------------------------------------- decoding


def decode_map(source: pb.MetaMap) -> dict[str, Any]:
    """Return a map as plain Python values; a kind that is not known reads as None.

    Raises:
        WireError: It is over a limit of `SIZE_LIMITS`.
    """
    if not source.entries:
        return {}
    return _Reader().mapping(source, 1)


def decode_lanes(source: pb.MetaMap, rows: int) -> tuple[dict[str, Any], ...]:
    """Return one map per lane, whichever of the forms the peer uses.

    Args:
        source: The infos of a reply.
        rows: Number of lanes of the reply.

    Raises:
        WireError: It is over a limit of `SIZE_LIMITS`.
    """
    if not source.entries:
        return tuple([{} for _ in range(rows)])
    whole = _Reader().mapping(source, 1)
    if rows == 1:
        return (whole,)
    maps = whole.get(FINAL_INFO)
    if not (isinstance(maps, list) and len(maps) == rows and _are_maps(maps)):
        maps = None
    else:
        whole.pop(FINAL_INFO)
        whole.pop(FINAL_MASK, None)
    infos = _split(whole, rows)
    for info, given in zip(infos, maps or (), strict=False):
        info.update(given or {})
    return tuple(infos)


def _are_maps(values: list[Any]) -> bool:
    return all(value is None or isinstance(value, dict) for value in values)


def _split(whole: dict[str, Any], rows: int) -> list[dict[str, Any]]:
    """Split a map of lists: `_key` says which lanes have a value under `key`."""
    infos: list[dict[str, Any]] = [{} for _ in range(rows)]
    for key, value in whole.items():
        if key[:1] == "_" and key[1:] in whole and _is_mask(value, rows):
            continue
        mask = whole.get("_" + key)
        said = mask if _is_mask(mask, rows) else [True] * rows
        column: list[Any]
        if isinstance(value, dict):
            column = list(_split(value, rows))
        elif isinstance(value, list) and len(value) == rows and not key.startswith(_OWN_PREFIX):
            column = value
        else:
            column = [value] * rows
        for info, one, has in zip(infos, column, said or (), strict=True):
            if has:
                info[key] = one
    return infos


def _is_mask(value: Any, rows: int) -> bool:
    return (
        isinstance(value, list)
        and len(value) == rows
        and all(isinstance(flag, bool) for flag in value)
    )


class _Reader:
    """Reads one map; counts what it makes."""

    def __init__(self) -> None:
        self._left = _MOST_ITEMS

    def mapping(self, source: pb.MetaMap, depth: int) -> dict[str, Any]:
        entries = source.entries
        self._enter(len(entries), depth)
        if len(entries) > SIZE_LIMITS.keys:
            raise WireError(
                f"metadata: {len(entries)} keys are more than SIZE_LIMITS.keys allows "
                f"({SIZE_LIMITS.keys})"
            )
        result: dict[str, Any] = {}
        for key, value in entries.items():
            if len(key) * 4 > SIZE_LIMITS.key_bytes and len(key.encode()) > SIZE_LIMITS.key_bytes:
                raise WireError(
                    f"metadata: the key {key[:40]!r}… is longer than SIZE_LIMITS.key_bytes allows "
                    f"({SIZE_LIMITS.key_bytes})"
                )
            result[key] = self._value(value, depth)
        return result

    def _enter(self, count: int, depth: int) -> None:
        self._left -= count
        if self._left < 0:
            raise WireError(f"metadata: more than {_MOST_ITEMS} values in one map")
        if depth > SIZE_LIMITS.nesting + 1:
            raise WireError(
                f"metadata: nested deeper than SIZE_LIMITS.nesting allows ({SIZE_LIMITS.nesting})"
            )

    def _value(self, value: pb.MetaValue, depth: int) -> Any:
        kind = value.WhichOneof("kind")
        if kind is None or kind == "null":
            return None
        if kind == "list":
            items = value.list.items
            self._enter(len(items), depth + 1)
            return [self._value(item, depth + 1) for item in items]
        if kind == "map":
            return self.mapping(value.map, depth + 1)
        plain = getattr(value, kind)
        if (
            kind == "text"
            and len(plain) * 4 > SIZE_LIMITS.text_bytes
            and len(plain.encode()) > SIZE_LIMITS.text_bytes
        ):
            raise WireError(
                f"metadata: a text of {len(plain.encode())} bytes is over the limit of "
                f"{SIZE_LIMITS.text_bytes}"
            )
        return plain
