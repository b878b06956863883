"""Names by which another process finds a factory; what has none is refused, with what to do."""

from __future__ import annotations

import functools
import sys
import types

import pytest

from rollmesh.endpoint.child_process import MAIN_NAME
from rollmesh.endpoint.named_targets import NamedTarget, find_target
from rollmesh.errors import InvalidSpec
from tests.unit.serving_toys import Counter

TARGET = "tests.unit.serving_toys:Counter"


def test_a_name_is_taken_as_it_is():
    assert find_target("CartPole-v1") == NamedTarget(text="CartPole-v1")


def test_a_factory_is_found_in_its_module():
    assert find_target(Counter) == NamedTarget(text=TARGET)


def test_a_factory_of_the_main_script_is_found_in_its_file(monkeypatch, tmp_path):
    script = tmp_path / "run.py"
    script.touch()
    main = types.ModuleType("__main__")
    main.__file__ = str(script)
    main.__spec__ = None
    monkeypatch.setitem(sys.modules, "__main__", main)

    def make_env():
        return None

    make_env.__module__, make_env.__qualname__ = "__main__", "make_env"
    main.make_env = make_env
    assert find_target(make_env) == NamedTarget(text=f"{MAIN_NAME}:make_env", main_file=str(script))
    main.__spec__ = types.SimpleNamespace(name="package.run")
    assert find_target(make_env) == NamedTarget(text="package.run:make_env")
    main.__spec__ = None
    main.__file__ = "<stdin>"
    with pytest.raises(InvalidSpec, match="typed in by hand"):
        find_target(make_env)
    del main.__file__
    with pytest.raises(InvalidSpec, match="typed in by hand"):
        find_target(make_env)


def test_a_script_that_starts_a_run_when_it_is_loaded_is_told_of_the_guard(monkeypatch):
    module = types.ModuleType(MAIN_NAME)
    monkeypatch.setitem(sys.modules, MAIN_NAME, module)

    def make_env():
        return None

    make_env.__module__, make_env.__qualname__ = MAIN_NAME, "make_env"
    module.make_env = make_env
    with pytest.raises(InvalidSpec, match='if __name__ == "__main__"'):
        find_target(make_env)


@pytest.mark.parametrize("factory", [lambda: None, functools.partial(Counter)])
def test_what_has_no_name_of_its_own_is_refused(factory):
    with pytest.raises(InvalidSpec, match="by name"):
        find_target(factory)


def test_a_refusal_names_the_field_and_where_arguments_go():
    with pytest.raises(InvalidSpec, match=r"^model: .*its arguments into model_kwargs"):
        find_target(lambda: None, field="model", kwargs="model_kwargs")
