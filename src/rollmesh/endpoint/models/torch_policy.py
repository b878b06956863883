"""A torch module as a policy (layer 6).

Needs the extra `rollmesh[torch]`; torch is imported by the functions that use it. The module knows
spaces, no port.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from typing import Any, TypeAlias, cast

import numpy as np

from rollmesh.endpoint.models.model import Model
from rollmesh.errors import InvalidValue
from rollmesh.spaces import space as spaces
from rollmesh.spaces.space import Space

_ROWS = 2
"""Axes of scores: rows, and one score an action."""

_Returned: TypeAlias = "Mapping[str, Any] | tuple[Any, ...] | list[Any] | None"
"""What a module returned; anything else, a tensor mostly, is told from these."""


class TorchPolicy(Model):
    """Asks a `torch.nn.Module` with batches of tensors, in eval mode and without gradients.

    Observations become tensors (B, …) on the device of the module's first parameter, dicts and
    tuples of them leaf by leaf; floats take the parameter's dtype, integers (uint8 images) keep
    their own; texts stay a tuple of str. The output is an action per row (B, *A) or a chunk per
    row (B, T, *A). For a Discrete action space floats (B, n) are scores: the best of the n
    actions is taken.

    The module is left in eval mode.

    Args:
        module: The module; `module(observations)` is called.
        action_space: The action space.
    """

    def __init__(self, module: Any, action_space: Space) -> None:
        self.module = module
        self.action_space = action_space

    def load(self) -> None:
        self._torch: Any = importlib.import_module("torch")
        self.module.eval()
        parameter = next(self.module.parameters(), None)
        self._device = self._torch.device("cpu") if parameter is None else parameter.device
        self._dtype = (
            parameter.dtype if parameter is not None and parameter.is_floating_point() else None
        )

    def predict_chunk_batch(self, observations: Any) -> Any:
        with self._torch.inference_mode():
            returned = self.module(self._tensors(observations))
            return _chunked(self.action_space, returned)

    def _tensors(self, value: Any) -> Any:
        if isinstance(value, np.ndarray):
            tensor = self._torch.from_numpy(value)
            wants = self._dtype if tensor.is_floating_point() else None
            return tensor.to(device=self._device, dtype=wants)
        if isinstance(value, Mapping):
            table = cast("Mapping[str, Any]", value)
            return {name: self._tensors(part) for name, part in table.items()}
        if isinstance(value, tuple):
            return tuple(self._tensors(part) for part in cast("tuple[Any, ...]", value))
        return value


def is_module(model: object) -> bool:
    """Return whether a value is a torch module, without importing torch."""
    base = getattr(sys.modules.get("torch.nn"), "Module", None)
    return base is not None and isinstance(model, base)


def _chunked(space: Space, value: _Returned) -> Any:
    """Give an output (B, *A) a time axis of 1, leaf by leaf, and leave (B, T, *A) as it is."""
    if isinstance(space, spaces.Dict) and isinstance(value, Mapping):
        return {
            name: _chunked(child, value[name]) if name in value else None
            for name, child in space.spaces
        }
    if (
        isinstance(space, spaces.Tuple)
        and isinstance(value, (tuple, list))
        and len(value) == len(space.spaces)
    ):
        return tuple(_chunked(*pair) for pair in zip(space.spaces, value, strict=True))
    return _with_time_axis(space, value) if hasattr(value, "detach") else value


def _with_time_axis(space: Space, tensor: Any) -> np.ndarray[Any, Any]:
    if isinstance(space, spaces.Discrete) and tensor.is_floating_point() and tensor.ndim == _ROWS:
        if tensor.shape[1] == space.n:
            tensor = tensor.argmax(-1) + space.start
        elif tensor.shape[1] > 1 and not bool((tensor == tensor.trunc()).all()):
            raise InvalidValue(
                "action",
                f"the module returned {tensor.shape[1]} numbers a row, which are no scores of "
                f"{space.n} actions; give it {space.n} outputs",
            )
    if str(tensor.dtype) == "torch.bfloat16":  # which NumPy lacks
        tensor = tensor.float()
    axes = 1 + len(getattr(space, "shape", ()))
    return (tensor.unsqueeze(1) if tensor.ndim == axes else tensor).cpu().numpy()
