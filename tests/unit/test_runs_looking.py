"""What of objects of installed packages is looked at: types, and arrays that lie in memory."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from tests.unit.test_runs_fingerprint import Layer, Leans, differing


def foreign(**attributes):
    """Return an object of a class of an installed package."""
    kind = type("Client", (), {"__module__": "numpy.client"})
    thing = kind()
    thing.__dict__.update(attributes)
    return thing


def test_of_foreign_objects_the_type_and_arrays_count():
    def held(**attributes):
        return Leans(held=foreign(**attributes))

    def several(number):
        return {"w": [np.full(2, number), {"b": np.full(3, number)}]}

    assert differing(held(at=1, peer=Leans(1)), held(at=2, peer=Leans(2))) == set()
    assert differing(held(w=np.zeros(2)), held(w=np.ones(2))) == {"attribute held"}
    assert differing(held(w=several(1)), held(w=several(1))) == set()
    assert differing(held(w=several(1)), held(w=several(2))) == {"attribute held"}
    assert differing(held(), Leans(held=Layer(1))) == {"attribute held"}
    assert differing(Leans(held=SimpleNamespace(a=1)), Leans(held=SimpleNamespace(a=2))) == {
        "attribute held"
    }


class Stored:
    """An array that reading fetches from a file."""

    shape = dtype = None

    def __init__(self, rows, dtype="f4"):
        self.shape, self.dtype = (rows, 2), np.dtype(dtype)

    def __array__(self, dtype=None, copy=None):
        pytest.fail("it was read")


class InMemory(Stored):
    """An array of another library."""

    __dlpack__ = None

    def __array__(self, dtype=None, copy=None):
        return np.full((2, 2), self.shape[0])


Stored.__module__ = InMemory.__module__ = "numpy.stored"


def test_stored_arrays_count_by_type_and_shape_and_are_not_read():
    assert differing(Leans(d=Stored(3)), Leans(d=Stored(3))) == set()
    assert differing(Leans(d=Stored(3)), Leans(d=Stored(4))) == {"attribute d"}
    assert differing(Leans(d=Stored(3)), Leans(d=Stored(3, "f8"))) == {"attribute d"}
    assert differing(Leans(d=InMemory(3)), Leans(d=InMemory(4))) == {"attribute d"}
