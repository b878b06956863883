"""What a worker is told: data, found by name, and no secret in a log."""

from __future__ import annotations

import functools
import json
import sys

import numpy as np
import pytest

from rollmesh.errors import InvalidSpec
from rollmesh.fleet import worker_spec
from rollmesh.fleet.worker_spec import (
    THREAD_VARIABLES,
    EnvTarget,
    WorkerSpec,
    sets_threads,
    worker_environment,
    working_directory,
)
from tests.unit.fleet_toys import WALKER, Walker


def test_a_target_is_a_name_and_arguments():
    assert EnvTarget.of("CartPole-v1") == EnvTarget(text="CartPole-v1")
    assert EnvTarget.of(Walker, {"length": 3}) == EnvTarget(text=WALKER, env_kwargs={"length": 3})


@pytest.mark.parametrize(
    ("env", "kwargs", "named"),
    [
        (Walker(), {}, "env"),
        (lambda: None, {}, "env"),
        (functools.partial(Walker, 3), {}, "env"),
        (7, {}, "env"),
        (None, {}, "env"),
        ("rollmesh+unix:///tmp/x.sock", {}, "env"),
        ("CartPole-v1", {"made": lambda: None}, "made"),
        ("CartPole-v1", {"made": object()}, "made"),
    ],
)
def test_what_cannot_be_carried_to_another_process_is_refused(env, kwargs, named):
    with pytest.raises(InvalidSpec, match=named):
        EnvTarget.of(env, kwargs)


def test_the_field_of_an_error_is_the_callers():
    with pytest.raises(InvalidSpec, match=r"tasks\[3\]"):
        EnvTarget.of(7, field="tasks[3]")


@pytest.mark.parametrize(
    "kwargs",
    [
        {},
        {"a": 1, "b": 2.5, "c": None, "d": "ü", "e": [1, (2, 3)], "f": {"g": True}},
        {"big": 2**70, "nan": float("inf"), "bytes": b"\x00\xff"},
    ],
)
def test_a_target_survives_its_json(kwargs):
    target = EnvTarget(text="a:b", env_kwargs=kwargs, main_file="/x/run.py")
    again = EnvTarget.from_json(target.to_json())
    assert again == target
    assert again.to_json() == target.to_json()


def test_arrays_are_carried():
    target = EnvTarget.of("a:b", {"x": np.arange(6, dtype=np.uint8).reshape(2, 3)})
    again = EnvTarget.from_json(target.to_json())
    assert again.env_kwargs["x"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert again.env_kwargs["x"].dtype == np.uint8


def spec(**given):
    return WorkerSpec(
        **{
            "worker": 3,
            "start": 2,
            "address": "rollmesh+unix:///x",
            "token": "s3cret",
            "lanes": (6, 7),
            "environment": {"A": "b"},
            "cpus": (1,),
            **given,
        }
    )


def test_a_spec_survives_its_json():
    table = json.loads(json.dumps(spec().to_json()))
    assert WorkerSpec.from_json(table) == spec()
    assert WorkerSpec.from_json({**table, "cpus": None}) == spec(cpus=None)


def test_what_a_spec_does_not_know_is_left_out_and_the_rest_has_defaults():
    least = {"worker": 0, "start": 1, "address": "x", "token": "y", "lanes": [0], "later": 5}
    assert WorkerSpec.from_json(least) == WorkerSpec(
        worker=0, start=1, address="x", token="y", lanes=(0,)
    )


def test_a_spec_names_its_start_and_keeps_its_secret():
    assert spec().name == "3.2"
    assert "s3cret" not in repr(spec())


def test_threads_are_bounded_unless_the_user_says(monkeypatch):
    for name in (*THREAD_VARIABLES, "PYTHONFAULTHANDLER"):
        monkeypatch.delenv(name, raising=False)
    assert not sets_threads()
    added = worker_environment(2)
    assert {name: added[name] for name in THREAD_VARIABLES} == dict.fromkeys(THREAD_VARIABLES, "2")
    assert added["PYTHONFAULTHANDLER"] == "1"
    assert not set(THREAD_VARIABLES) & set(worker_environment(None))
    monkeypatch.setenv("OMP_NUM_THREADS", "9")
    assert "OMP_NUM_THREADS" not in worker_environment(2)
    assert sets_threads()


def test_the_working_directory_may_be_gone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert working_directory() == str(tmp_path)
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert working_directory() == sys.prefix
    monkeypatch.chdir(tmp_path)


def test_nothing_is_pickled():
    assert not {"pickle", "dill", "cloudpickle"} & set(vars(worker_spec))
