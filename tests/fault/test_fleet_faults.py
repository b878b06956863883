"""A fleet under faults: whatever becomes of workers, results are the same and nothing is left."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

import rollmesh
from rollmesh.endpoint.servers.env_server import EnvServer
from rollmesh.endpoint.servers.server_options import ServerOptions
from rollmesh.errors import LaneLost, RouteCancelled, SessionLost, WorkerLost
from rollmesh.fleet.lanes import FleetEnvs
from rollmesh.fleet.worker_options import WorkerOptions
from rollmesh.fleet.worker_spec import EnvTarget
from rollmesh.limits import Limits
from rollmesh.runtime.cancel import CancelToken
from rollmesh.testing.faults import Child, take_stock
from rollmesh.testing.faults.stock import left_behind
from tests.fault.fleet_parties import Impatient, Landlord, Parent
from tests.unit.fleet_toys import (
    CRASH,
    EXIT,
    FREEZE,
    HANG,
    KILL,
    QUIT,
    RAISE,
    WALKER,
    Walker,
    policy,
    prepare,
    reset,
    step,
)

pytestmark = [pytest.mark.fault, pytest.mark.timeout(120)]

LIMITS = Limits(env_step_s=1.0, env_reset_s=1.0, env_connect_s=15.0)
PATIENCE_S = 20.0
EPISODES = 6
CAUSES = {
    KILL: "SIGKILL",
    CRASH: "SIGSEGV",
    EXIT: "exited with code 7",
    HANG: "did not come back",
    FREEZE: "did not come back",
}


@pytest.fixture(autouse=True)
def _nothing_is_left():
    before = take_stock()
    yield
    assert not left_behind(before, patience_s=PATIENCE_S)


def evaluate(env=Walker, *, episodes=EPISODES, workers=2, **given):
    given.setdefault("limits", LIMITS)
    return rollmesh.evaluate(policy, env, episodes=episodes, workers=workers, base_seed=11, **given)


def played(result):
    """Return what episodes came to, without how often they were begun."""
    return [
        (one.index, one.seed, one.steps, one.total_reward, one.terminated, one.error)
        for one in result.episodes
    ]


@pytest.fixture(scope="module")
def undisturbed():
    """What the same episodes come to when nothing happens."""
    return played(evaluate(workers=1))


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until_gone(pids):
    expiry = time.monotonic() + PATIENCE_S
    while alive := [pid for pid in pids if is_alive(pid)]:
        assert time.monotonic() < expiry, f"still there: {alive}"
        time.sleep(0.01)


# ------------------------------------------------------------------------- the same results


@pytest.mark.parametrize("fault", list(CAUSES), ids=["kill", "crash", "exit", "hang", "freeze"])
@pytest.mark.parametrize("where", ["reset", "step"])
def test_an_episode_whose_worker_died_comes_to_the_same(tmp_path, undisturbed, where, fault):
    kwargs = {"where": where, "fault": fault, "flag": str(tmp_path / "passed"), "turn": 2}
    result = evaluate(env_kwargs=kwargs)
    assert played(result) == undisturbed
    again = [one for one in result.episodes if one.attempts > 1]
    assert [one.attempts for one in again] == [2]
    (cause,) = again[0].causes
    assert CAUSES[fault] in cause
    assert f"seed {again[0].seed}" in cause or "did not come back" in cause
    if fault == EXIT:
        assert "the simulator has lost its licence" in cause
    if fault == CRASH:
        assert "fleet_toys.py" in cause  # the stack says where


@pytest.mark.parametrize("fault", [KILL, CRASH, EXIT], ids=["kill", "crash", "exit"])
def test_an_episode_whose_worker_died_while_building_comes_to_the_same(
    tmp_path, undisturbed, fault
):
    kwargs = {"where": "build", "fault": fault, "flag": str(tmp_path / "passed"), "turn": 1}
    result = evaluate(env_kwargs=kwargs)
    assert played(result) == undisturbed
    assert [one.attempts for one in result.episodes if one.attempts > 1] == [2]


def test_a_worker_that_hangs_while_building_is_replaced(tmp_path, undisturbed):
    kwargs = {"where": "build", "fault": HANG, "flag": str(tmp_path / "passed"), "turn": 1}
    limits = Limits(env_connect_s=4.0)
    result = evaluate(env_kwargs=kwargs, limits=limits, episodes=60)
    assert played(result)[:EPISODES] == undisturbed
    assert len(result.episodes) == 60
    assert not any(one.error for one in result.episodes)


@pytest.mark.parametrize("fault", [RAISE, QUIT], ids=["raise", "sys.exit"])
def test_an_env_that_raises_spoils_its_episode_and_no_other(tmp_path, undisturbed, fault):
    kwargs = {"where": "step", "fault": fault, "flag": str(tmp_path / "passed"), "turn": 2}
    result = evaluate(env_kwargs=kwargs)
    spoilt = [one.index for one in result.episodes if one.error is not None]
    assert len(spoilt) == 1
    others = [one for one in played(result) if one[0] not in spoilt]
    assert others == [one for one in undisturbed if one[0] not in spoilt]


def test_an_episode_that_kills_every_worker_is_errored_after_its_attempts(tmp_path):
    def deadly(observation):
        return KILL

    result = rollmesh.evaluate(deadly, Walker, episodes=2, workers=2, base_seed=1, limits=LIMITS)
    for one in result.episodes:
        assert one.error is not None
        assert one.attempts == 3
        assert all("SIGKILL" in cause for cause in one.causes)


# ------------------------------------------------------------------------------ failing starts


def test_a_worker_that_dies_while_starting_is_lost_and_starts_again():
    target = EnvTarget.of(WALKER, {})
    fleet = FleetEnvs.open({"": target}, workers=2, pool=Impatient(0))
    try:
        fleet._shared.pool.kills = 2
        for _ in range(2):
            with pytest.raises(WorkerLost, match="SIGKILL before it reported"):
                prepare(fleet, 1)
        prepare(fleet, 1)
        reset(fleet, 1)
        assert fleet.deaths == 2
    finally:
        fleet.close(PATIENCE_S)


def test_a_worker_whose_starts_all_fail_is_given_up():
    target = EnvTarget.of(WALKER, {})
    options = WorkerOptions(failed_starts=2)
    fleet = FleetEnvs.open({"": target}, workers=2, pool=Impatient(0), options=options)
    try:
        fleet._shared.pool.kills = 2
        with pytest.raises(WorkerLost):
            prepare(fleet, 1)
        for _ in range(2):
            with pytest.raises(LaneLost, match="failed to start 2 times in a row"):
                prepare(fleet, 1)
        assert fleet.starts == 3
    finally:
        fleet.close(PATIENCE_S)


def test_the_lanes_that_are_left_play_what_one_that_was_given_up_cannot(tmp_path):
    result = evaluate(Landlord, env_kwargs={"flag": str(tmp_path / "owner")}, episodes=20)
    assert len(result.episodes) == 20
    assert not any(one.error for one in result.episodes)


# ---------------------------------------------------------------------------- nothing is left


@pytest.mark.parametrize("then", [0, KILL, HANG], ids=["close", "kill", "hang"])
def test_what_envs_started_goes_with_their_worker(tmp_path, then):
    result = evaluate(Parent, env_kwargs={"folder": str(tmp_path), "then": then}, episodes=2)
    assert len(result.episodes) == 2
    pids = [int(one.name) for one in tmp_path.iterdir()]
    assert len(pids) >= 8
    wait_until_gone(pids)


def test_nothing_is_left_after_a_cancel(tmp_path):
    cancel = CancelToken()

    def asked(observation):
        cancel.cancel("enough")
        return HANG

    with pytest.raises(RouteCancelled):
        rollmesh.evaluate(
            asked,
            Parent,
            episodes=4,
            workers=2,
            cancel=cancel,
            env_kwargs={"folder": str(tmp_path)},
        )
    wait_until_gone([int(one.name) for one in tmp_path.iterdir()])


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="no /proc here")
def test_nothing_is_left_after_its_driver_was_killed(tmp_path):
    with Child("tests.fault.fleet_parties:drive", folder=str(tmp_path), workers=2) as driver:
        pids = [int(pid) for pid in driver.ready.split()]
        started = [int(one.name) for one in tmp_path.iterdir()]
        assert len(started) == 8
        assert all(is_alive(pid) for pid in (*pids, *started))
        os.kill(driver.pid, 9)
        wait_until_gone([*pids, *started])


# -------------------------------------------------------------------------------- served envs


def short():
    """Return an env whose episodes are short."""
    return Walker(length=2)


def test_a_lost_server_is_a_lost_session_and_can_be_prepared_again_once_it_is_back():
    options = ServerOptions(close_timeout_s=2.0)
    with EnvServer(short, "rollmesh+unix://", options) as server:
        address = str(server.address)
        fleet = FleetEnvs.open({}, addresses=[address], options=WorkerOptions(load_s=PATIENCE_S))
        try:
            reset(fleet, 0)
            server.close()
            with pytest.raises(SessionLost) as caught:
                step(fleet, lane=0)
            assert caught.value.env_index == 0
            with pytest.raises(SessionLost, match="no session"):
                step(fleet, lane=0)
            with EnvServer(short, address, options):
                prepare(fleet, 0)
                reset(fleet, 0)
                step(fleet, lane=0)
                fleet.close(PATIENCE_S)
        finally:
            fleet.close(PATIENCE_S)
