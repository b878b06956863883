"""A contract as a readable tree, and as plain JSON values (layer 9).

    CartPole-v1: 1 env, autoreset disabled
    observation  Dict                        921,616 bytes
    ├─ image     Box uint8 (480, 640, 3)     921,600 bytes
    └─ state     Box float32 (4,)                 16 bytes
    action       Discrete 2                        8 bytes

Pure: takes a contract, returns text.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from rollmesh.ports import EnvContract
from rollmesh.spaces.space import (
    Box,
    Dict,
    Discrete,
    Graph,
    MultiBinary,
    MultiDiscrete,
    Sequence,
    Space,
    Text,
)

_MOST_LINES = 200
_MOST_NAME = 60


class _Row(NamedTuple):
    name: str
    what: str
    nbytes: int | None


def contract_lines(contract: EnvContract) -> list[str]:
    """Return the contract as lines for people."""
    lanes = "1 env" if contract.num_envs == 1 else f"{contract.num_envs} envs"
    head = f"{_shown(contract.id)}: {lanes}, autoreset {contract.autoreset_mode.value}"
    if contract.render_mode:
        head += f", renders {contract.render_mode}"
    rows = [
        *_rows("observation", contract.observation_space, "", ""),
        *_rows("action", contract.action_space, "", ""),
    ]
    left_out = len(rows) - _MOST_LINES
    rows = rows[:_MOST_LINES]
    names, whats = max(len(row.name) for row in rows), max(len(row.what) for row in rows)
    sizes = ["varies" if row.nbytes is None else f"{row.nbytes:,} bytes" for row in rows]
    width = max(map(len, sizes))
    lines = [
        f"{row.name:<{names}}  {row.what:<{whats}}  {size:>{width}}"
        for row, size in zip(rows, sizes, strict=True)
    ]
    if left_out > 0:
        lines.append(f"… {left_out:,} more")
    return [head, *lines]


def contract_values(contract: EnvContract) -> dict[str, Any]:
    """Return the contract as values that JSON knows."""
    return {
        "id": contract.id,
        "num_envs": contract.num_envs,
        "autoreset_mode": contract.autoreset_mode.value,
        "render_mode": contract.render_mode,
        "observation_space": _values(contract.observation_space),
        "action_space": _values(contract.action_space),
    }


def _rows(name: str, space: Space, first: str, rest: str) -> Iterator[_Row]:
    """Yield a space and all inside it, with the branches of the tree before each name."""
    yield _Row(first + _shown(name), _what(space), space.codec.row_bytes)
    children = _named_children(space)
    for index, (label, child) in enumerate(children):
        is_last = index == len(children) - 1
        branch, trunk = ("└─ ", "   ") if is_last else ("├─ ", "│  ")
        yield from _rows(label, child, rest + branch, rest + trunk)


def _named_children(space: Space) -> list[tuple[str, Space]]:
    match space:
        case Dict():
            return list(space.spaces)
        case Sequence():
            return [("each", space.space)]
        case Graph():
            edges = [] if space.edge_space is None else [("edges", space.edge_space)]
            return [("nodes", space.node_space), *edges]
        case _:
            return [(str(index), child) for index, child in enumerate(space.children)]


def _what(space: Space) -> str:
    more = ""
    match space:
        case Box() | MultiDiscrete():
            # numpy's stub leaves the name's type open
            more = f" {space.dtype.name} {space.shape}"  # pyright: ignore[reportUnknownMemberType]
        case MultiBinary():
            more = f" {space.shape}"
        case Discrete():
            more = f" {space.n}" + (f" from {space.start}" if space.start else "")
        case Text():
            more = f" {space.min_length} to {space.max_length} characters"
        case _:
            pass
    return type(space).__name__ + more


def _values(space: Space) -> dict[str, Any]:
    values: dict[str, Any] = {
        "kind": type(space).__name__,
        "description": _what(space),
        "row_bytes": space.codec.row_bytes,
    }
    if children := _named_children(space):
        values["spaces"] = {label: _values(child) for label, child in children}
    return values


def _shown(name: str) -> str:
    """Return a peer's name as one line that no control character disturbs."""
    shown = name if name.isprintable() and name else repr(name)
    return shown if len(shown) <= _MOST_NAME else shown[: _MOST_NAME - 1] + "…"
