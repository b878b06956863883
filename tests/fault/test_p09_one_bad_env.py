"""P9: one bad env spoils nothing else: the other ones keep their throughput."""

from __future__ import annotations

import struct
import threading
import time

import pytest

import rollmesh
from rollmesh.errors import RouteCancelled
from rollmesh.limits import Limits
from rollmesh.runtime.cancel import CancelToken
from rollmesh.testing.faults import take_stock
from rollmesh.testing.faults.stock import left_behind
from tests.fault.bad_env import MISDEEDS, make

WORKERS = 8
LIMITS = Limits(env_step_s=0.5, env_reset_s=0.5, env_connect_s=30.0)
PATIENCE_S = 60.0
MANY = 100_000
"""Episodes: more than are played."""
FEW = ("raises", "hangs", "segfaults", "huge_info", "forks")
SHORT_S, SHORT_RATIO = 3.0, 0.7
LONG_S, LONG_RATIO = 60.0, 0.95


def policy(observation):
    """Return the action that is always right."""
    return 0


def steps_of(folder):
    """Return the steps of each good process, by its pid."""
    counts = {}
    for file in folder.iterdir():
        data = file.read_bytes() if file.name.isdigit() else b""
        if len(data) == 8:
            counts[file.name] = struct.unpack("q", data)[0]
    return counts


def count(folder, misdeed, seconds):
    """Return how many steps the good envs make in so many seconds, and what had ended by then."""
    folder.mkdir()
    cancel, results = CancelToken(), []
    before = take_stock()

    def run():
        try:
            rollmesh.evaluate(
                policy,
                make,
                episodes=MANY,
                workers=WORKERS,
                base_seed=1,
                on_error="continue",
                limits=LIMITS,
                cancel=cancel,
                env_kwargs={"folder": str(folder), "misdeed": misdeed},
            )
        except RouteCancelled as error:
            results.append(error.result)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        expiry = time.monotonic() + PATIENCE_S
        while sum(steps > 5 for steps in steps_of(folder).values()) < WORKERS - 1:
            assert time.monotonic() < expiry, f"not all good envs run: {steps_of(folder)}"
            assert thread.is_alive()
            time.sleep(0.01)
        first = steps_of(folder)
        time.sleep(seconds)
        last = steps_of(folder)
    finally:
        cancel.cancel("measured")
        thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert not left_behind(before, patience_s=PATIENCE_S)
    assert len(last) == WORKERS - 1, "a good env was lost"
    (result,) = results
    return sum(last.values()) - sum(first.values()), result


def told(misdeed, steps, wanted, seconds, result):
    """Print what was measured, and return the ratio."""
    ratio = steps / wanted
    bad = [one for one in result.episodes if one.error is not None or one.attempts > 1]
    print(
        f"{misdeed}: {steps} of {wanted:.0f} steps in {seconds:g} s, {100 * ratio:.1f} %; "
        f"{len(result.episodes)} episodes, {len(bad)} of them not well"
    )
    return ratio


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """How many steps they make in a short time where none misbehaves."""
    steps, _ = count(tmp_path_factory.mktemp("good") / "counts", "none", SHORT_S)
    return steps


@pytest.mark.fault
@pytest.mark.alone
@pytest.mark.timeout(180)
@pytest.mark.parametrize("misdeed", FEW)
def test_p9_the_others_go_on_for_a_while(tmp_path, undisturbed, misdeed):
    steps, result = count(tmp_path / "counts", misdeed, SHORT_S)
    assert told(misdeed, steps, undisturbed, SHORT_S, result) >= SHORT_RATIO


@pytest.mark.fault_full
@pytest.mark.alone
@pytest.mark.timeout(600)
@pytest.mark.parametrize("misdeed", MISDEEDS)
def test_p9_the_others_keep_their_throughput_for_a_minute(tmp_path, misdeed):
    before, _ = count(tmp_path / "before", "none", LONG_S / 2)
    steps, result = count(tmp_path / "counts", misdeed, LONG_S)
    after, _ = count(tmp_path / "after", "none", LONG_S / 2)
    assert told(misdeed, steps, before + after, LONG_S, result) >= LONG_RATIO
