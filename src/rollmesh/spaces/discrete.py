"""The leaf of a Discrete: one integer a row (layer 2).

It knows no space: a space passes what it declares.
"""

# numpy's and gymnasium's stubs, and values of unknown origin, leave types partly unknown:
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy import ndarray

from rollmesh.errors import InvalidValue
from rollmesh.spaces.conformance import Checker
from rollmesh.spaces.leaf_codec import Leaf, LeafSpec
from rollmesh.spaces.leaves import ArrayLeaf
from rollmesh.spaces.reading import Array, conform, read_array, scores_hint

_TABLE_SIZE = 4096
"""Values of a Discrete whose leaf is kept."""
_INTEGERS = frozenset(
    {
        int,
        np.int8,
        np.int16,
        np.int32,
        np.int64,
        np.uint8,
        np.uint16,
        np.uint32,
        np.uint64,
    }
)


class DiscreteLeaf(ArrayLeaf):
    """Discrete: one integer a row; its rows decode to numpy scalars.

    Leaves of values inside the space are made once and handed out again (they are read-only).
    """

    def __init__(self, spec: LeafSpec, low: Array, high: Array) -> None:
        super().__init__(spec, low, high, is_integer_domain=True)
        self.declared = replace(self.declared, scores_hint=scores_hint(int(self.low[()])))
        limits = np.iinfo(self.dtype)
        self._limits = (int(limits.min), int(limits.max))
        self._first = int(self.low[()])
        self._last = int(self.high[()])
        self._table: dict[int, Array] = {}

    def one(self, value: Any, checker: Checker) -> Leaf:
        if type(value) in _INTEGERS:
            leaf = self._table.get(value)
            if leaf is not None:
                return leaf
        number = self._read(value, checker)
        inside = self._first <= number <= self._last
        if not inside and checker.looks:
            refuse = checker.refuses_integers
            checker.note(
                "bounds",
                self.spec.path,
                f"{number} is outside {self._first} to {self._last}",
                refuse=refuse,
            )
            checker.keep("bounds", self.spec.path)
        leaf = np.array([number], self.dtype)
        leaf.flags.writeable = False
        if inside and len(self._table) < _TABLE_SIZE:
            self._table[number] = leaf
        return leaf

    def _read(self, value: Any, checker: Checker) -> int:
        if type(value) in _INTEGERS or isinstance(value, (bool, np.bool_)):
            number = int(value)
            least, greatest = self._limits
            if not least <= number <= greatest:
                raise InvalidValue(
                    checker.root + self.spec.path,
                    f"{number} does not fit dtype {self.dtype}; "
                    f"expected {self._first} to {self._last}",
                )
        else:
            array, _ = read_array(value, checker.root + self.spec.path)
            shape = array.shape if array.size == 1 else ()
            number = int(conform(value, self.declared, shape, checker).reshape(())[()])
        return number

    def rows(self, values: Sequence[Any], checker: Checker) -> Leaf:
        return self.gather([(self.one(value, checker), 0) for value in values])

    def stacked(self, value: Any, rows: int, checker: Checker) -> Leaf:
        if not (type(value) is ndarray and value.shape == (rows,)):
            array, _ = read_array(value, checker.root + self.spec.path)
            if array.shape == (rows, 1):
                is_list = isinstance(value, (list, tuple))
                value = [item[0] for item in value] if is_list else array.reshape(rows)
        return super().stacked(value, rows, checker)

    def fresh(self, leaf: Any, row: int) -> Any:
        return leaf[row]
