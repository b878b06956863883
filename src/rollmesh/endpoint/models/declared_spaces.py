"""Compares the spaces that a policy declares with the env's (layer 6).

A policy may have attributes `observation_space` and `action_space`: a `Model` says so in its class
or once it is loaded, an algorithm of Stable-Baselines3 was trained with them. Where they are
spaces, they are those of one lane, and must have the form of the env's: the same kinds, shapes,
names and counts, whole numbers where the env has whole numbers. Bounds, precision, the order of
names and the lengths of texts may differ: values are checked against the env's anyway.

Nothing is called but the attributes themselves; Gymnasium is not imported here for a policy that
cannot have a space of it.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from rollmesh.errors import InvalidSpec, InvalidValue
from rollmesh.spaces.gymnasium import from_gymnasium
from rollmesh.spaces.space import (
    Box,
    Dict,
    Discrete,
    Graph,
    MultiDiscrete,
    OneOf,
    Sequence,
    Space,
    Text,
    Tuple,
)

DECLARED_FIELDS = ("model.observation_space", "model.action_space")
"""The fields of the refusals."""

_IMAGE_AXES = 3
_MOST_TEXT = 300


def check_declared(
    model: object,
    observation_space: Space,
    action_space: Space,
    *,
    name: str,
    turns_images: bool = False,
) -> None:
    """Refuse a policy that declares other spaces than the env has.

    Args:
        model: The policy.
        observation_space: Space of one observation of the env.
        action_space: Space of one action.
        name: What to call the policy.
        turns_images: Whether it takes images with the channels last for a declared space with the
            channels first.

    Raises:
        InvalidSpec: Its field is `model.observation_space` or `model.action_space`; the text names
            both spaces and what to do.
    """
    for which, given in (("observation", observation_space), ("action", action_space)):
        field = f"{which}_space"
        declared = _declared(model, field)
        if declared is None:
            continue
        where = misfit(declared, given, which, turns_images=turns_images and which == "observation")
        if where is not None:
            at = "" if where.startswith(f"{which}:") else f" (they differ at {where})"
            raise InvalidSpec(
                f"model.{field}",
                f"{name} declares {_short(declared)} and the env has {_short(given)}{at}; play it "
                "in an env with the spaces it was made for, wrap the env so that they are the "
                f"same, or correct the model's {field}, which is that of one lane",
            )


def misfit(declared: Space, given: Space, path: str, *, turns_images: bool = False) -> str | None:
    """Say where two spaces differ in form first, as in `observation['arm']: …`; None if nowhere."""
    parts = _parts(declared, given)
    if parts is not None:
        for key, one, other in parts:
            inner = misfit(one, other, f"{path}[{key!r}]", turns_images=turns_images)
            if inner is not None:
                return inner
        return None
    if _fits(declared, given) or (turns_images and _is_turned(declared, given)):
        return None
    return f"{path}: {_short(declared)} and {_short(given)}"


def _declared(model: object, field: str) -> Space | None:
    """Return the space that a policy declares, or None where it declares none."""
    try:
        value: Any = getattr(model, field, None)
    except Exception:  # noqa: BLE001 - a property of foreign code that is not ready yet
        return None
    if isinstance(value, Space):
        return value
    base = getattr(sys.modules.get("gymnasium"), "Space", None)
    if base is None or not isinstance(value, base):
        return None
    try:
        return from_gymnasium(value, f"model.{field}")
    except InvalidValue:  # a kind of space that no env here can have: nothing to compare
        return None


def _parts(declared: Space, given: Space) -> list[tuple[Any, Space, Space]] | None:
    """Pair the parts of two spaces with the same form; None where one of them has no parts."""
    match declared, given:
        case Dict(), Dict():
            ours, theirs = dict(declared.spaces), dict(given.spaces)
            if ours.keys() == theirs.keys():
                return [(name, space, theirs[name]) for name, space in ours.items()]
        case (Tuple(), Tuple()) | (OneOf(), OneOf()):
            if len(declared.spaces) == len(given.spaces):
                pairs = zip(declared.spaces, given.spaces, strict=True)
                return [(i, one, other) for i, (one, other) in enumerate(pairs)]
        case Sequence(), Sequence():
            if declared.stack == given.stack:
                return [("element", declared.space, given.space)]
        case Graph(), Graph():
            if (declared.edge_space is None) == (given.edge_space is None):
                nodes: list[tuple[Any, Space, Space]]
                nodes = [("node", declared.node_space, given.node_space)]
                if declared.edge_space is None or given.edge_space is None:
                    return nodes
                return [*nodes, ("edge", declared.edge_space, given.edge_space)]
        case _:
            pass
    return None


def _fits(declared: Space, given: Space) -> bool:
    """Return whether two spaces without parts have the same form."""
    match declared, given:
        case Box(), Box():
            return declared.shape == given.shape and _is_alike(declared, given)
        case Discrete(), Discrete():
            return (declared.n, declared.start) == (given.n, given.start)
        case MultiDiscrete(), MultiDiscrete():
            same = np.array_equal(declared.nvec, given.nvec)
            return same and np.array_equal(declared.start, given.start)
        case Text(), Text():
            return True
        case _:
            return declared == given


def _is_alike(declared: Box, given: Box) -> bool:
    """Return whether both boxes hold whole numbers, or both do not."""
    return (declared.dtype.kind in "iub") == (given.dtype.kind in "iub")


def _is_turned(declared: Space, given: Space) -> bool:
    """Return whether two spaces are of one image, with the channels first and last."""
    if not (isinstance(declared, Box) and isinstance(given, Box)):
        return False
    if len(given.shape) != _IMAGE_AXES or not _is_alike(declared, given):
        return False
    height, width, channels = given.shape
    return declared.shape == (channels, height, width)


def _short(space: Space) -> str:
    text = repr(space)
    return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}…"
