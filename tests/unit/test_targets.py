"""Targets are read in one order; a name that leads nowhere says why."""

from __future__ import annotations

import importlib
import sys

import pytest

from rollmesh.endpoint.targets import (
    Address,
    GymnasiumId,
    ImportTarget,
    is_address,
    load_attribute,
    parse_target,
)
from rollmesh.errors import InvalidSpec


@pytest.mark.parametrize(
    "text",
    [
        "grpc://host:50051",
        "unix:///run/a.sock",
        "unix:/run/a.sock",
        "unix:run/a.sock",
        "tcp+tls://[::1]:1",
        "localhost:50051",
        "127.0.0.1:80",
        "[::1]:50051",
        "my-host.example:1",
        ":8080",
    ],
)
def test_schemes_and_host_digits_are_addresses(text):
    assert parse_target(text) == Address(text=text)


@pytest.mark.parametrize(
    ("text", "module"),
    [
        ("CartPole-v1", None),
        ("ALE/Pong-v5", None),
        ("CartPole", None),
        ("my-name_space/Env.x-v12", None),
        ("pkg.envs:Lift-v0", "pkg.envs"),
        ("pkg:ns/Lift-v0", "pkg"),
    ],
)
def test_ids_with_or_without_a_module(text, module):
    assert parse_target(text) == GymnasiumId(text=text, module=module)


def test_module_attribute_is_a_callable():
    assert parse_target(" pkg.envs:make.env ") == ImportTarget(module="pkg.envs", name="make.env")
    assert parse_target("unix:make") == ImportTarget(module="unix", name="make")
    assert parse_target("pkg:make_v0") == ImportTarget(module="pkg", name="make_v0")
    assert ImportTarget(module="a", name="b.c").text == "a:b.c"


@pytest.mark.parametrize("text", ["", "   "])
def test_an_empty_target_is_refused(text):
    with pytest.raises(InvalidSpec, match="env: is empty; give a Gymnasium id"):
        parse_target(text, field="env")


@pytest.mark.parametrize(
    ("target", "is_one"),
    [
        ("host:1", True),
        (" rollmesh+unix:///run/x.sock ", True),
        ("CartPole-v1", False),
        ("module:callable", False),
        (5000, False),
        (None, False),
    ],
)
def test_what_names_a_served_endpoint(target, is_one):
    assert is_address(target) is is_one


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    names = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - names:
        del sys.modules[name]
    importlib.invalidate_caches()


def test_the_working_directory_is_importable(folder):
    (folder / "rm_here.py").write_text("class Maker:\n    sub = 5\n")
    assert load_attribute("rm_here:Maker.sub") == 5


def test_a_missing_module_is_named(folder):
    with pytest.raises(InvalidSpec, match="there is no module 'rm_nowhere'"):
        load_attribute("rm_nowhere:make")
    with pytest.raises(InvalidSpec, match="there is no module 'rm_nowhere'"):
        load_attribute("rm_nowhere.deep.er:make")


def test_a_module_that_lacks_a_package_says_which(folder):
    (folder / "rm_needs.py").write_text("import rm_not_installed\n")
    with pytest.raises(InvalidSpec, match="importing 'rm_needs' failed: it needs 'rm_not_inst"):
        load_attribute("rm_needs:make")


@pytest.mark.parametrize("line", ["raise ValueError('why')", "def :", "raise SystemExit(3)"])
def test_a_module_that_raises_says_what(folder, line):
    (folder / "rm_raises.py").write_text(line + "\n")
    with pytest.raises(InvalidSpec, match="importing 'rm_raises' failed: ") as caught:
        load_attribute("rm_raises:make")
    assert caught.value.__cause__ is not None


def test_a_missing_attribute_offers_close_names(folder):
    (folder / "rm_attr.py").write_text("def make_env(): ...\nclass A:\n    inner = 1\n")
    with pytest.raises(InvalidSpec, match="no attribute 'make_evn'; did you mean 'make_env'"):
        load_attribute("rm_attr:make_evn")
    with pytest.raises(InvalidSpec, match="'A' has no attribute 'iner'; did you mean 'inner'"):
        load_attribute("rm_attr:A.iner")
    with pytest.raises(InvalidSpec, match="check the spelling"):
        load_attribute("rm_attr:zzzzzz")


@pytest.mark.parametrize("text", ["pkg", "pkg:", ":attr", "pkg:a b", "file.py/x:y"])
def test_other_forms_are_refused(text):
    with pytest.raises(InvalidSpec, match="wants module:attribute"):
        load_attribute(text)


@pytest.mark.parametrize(
    ("text", "cure"),
    [
        ("./toys.py:policy", "write toys:policy"),
        ("sub/toys.py:Net.best", "write sub.toys:Net.best"),
        ("../toys.py:policy", "start in its folder and write toys:policy"),
        ("/home/me/toys.py:policy", "start in its folder and write toys:policy"),
        (".\\sub\\toys.py:policy", "write sub.toys:policy"),
    ],
)
def test_a_file_with_what_is_in_it_is_refused_with_the_modules_name(text, cure):
    with pytest.raises(InvalidSpec, match="model: names a file") as refused:
        parse_target(text, field="model")
    assert str(refused.value).endswith(cure)
