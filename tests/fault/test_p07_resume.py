"""P7: a run resumes by the same command. Whatever moment its driver is killed at, no finished
work is done again, the result is that of a run nobody disturbed, and no process is left."""

from __future__ import annotations

import json
import signal
import time

import pytest

from rollmesh.fleet.plan import Plan, Task
from rollmesh.runs.reading import read_run
from tests.fault.starts import Place

EPISODES, SEED, WORKERS = 60, 7, 3
SEEDS = [e.env_seed for e in Plan(tasks=(Task(episodes=EPISODES),), seed=SEED).episodes]
DEADLY = 20
"""The episode whose first attempt takes its worker with it."""

pytestmark = [pytest.mark.fault, pytest.mark.timeout(180)]


def make_place(folder, *more, **env_kwargs):
    kwargs = {"log": str(folder / "log"), "deadly": SEEDS[DEADLY], **env_kwargs}
    arguments = ["tests.fault.logged_env:LoggedEnv", "-m", "tests.fault.logged_env:policy"]
    arguments += ["-n", str(EPISODES), "--seed", str(SEED), "--workers", str(WORKERS)]
    arguments += ["--run-dir", str(folder / "run"), "--env-kwargs", json.dumps(kwargs), *more]
    return Place(folder, arguments)


def outcomes(result):
    keys = ("index", "seed", "steps", "total_reward", "success", "terminated", "error")
    return [tuple(one[key] for key in keys) for one in result["episodes"]]


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """What comes of a run that nobody disturbs, but for the one worker that dies."""
    place = make_place(tmp_path_factory.mktemp("undisturbed"))
    with place.start() as start:
        assert start.wait() == 0, start.errors
        assert sorted(start.acknowledged) == list(range(EPISODES))
        place.assert_nothing_is_left()
        return outcomes(start.result)


# ----------------------------------------------------------------------------------- the points


def at_once(start):
    assert start.process.poll() is None


def folder_made(start):
    start.until((start.place.run_dir / "run.sqlite").exists, "the run has a folder")


def worker_starting(start):
    start.until(lambda: start.states("starting"), "a worker starts")


def building(start):
    start.until(lambda: start.place.lines("build", start.number), "an env is being built")


def first_ready(start):
    start.until(lambda: start.states("ready"), "a worker is ready")


def first_episode(start):
    start.until(lambda: start.place.lines("begin", start.number), "an episode has begun")


def first_acknowledged(start):
    start.until(lambda: start.acknowledged, "an episode is kept")


def middle(start):
    start.until(lambda: len(start.acknowledged) >= EPISODES // 2, "half of the episodes are kept")


def retrying(start):
    deadly = str(SEEDS[DEADLY])
    start.until(lambda: start.place.lines("begin").count(deadly) > 1, "an episode begins again")
    start.until(lambda: noted_attempts(start.place), "its first attempt is noted")


def last_ended(start):
    start.until(lambda: len(set(start.place.lines("end"))) == EPISODES, "the last episode ended")


POINTS = {
    "at once": at_once,
    "the folder is made": folder_made,
    "a worker is starting": worker_starting,
    "an env is being built": building,
    "the first worker is ready": first_ready,
    "the first episode is under way": first_episode,
    "just after an acknowledgement": first_acknowledged,
    "in the middle": middle,
    "a retry is under way": retrying,
    "the last episode has ended": last_ended,
}


def noted_attempts(place):
    return [
        (one.index, one.attempt)
        for one in read_run(place.run_dir).failed_attempts
        if "SIGKILL" in one.cause
    ]


def kill_at(place, point):
    """Start the command, kill it at a point, and check what it left; return what is kept."""
    with place.start() as start:
        POINTS[point](start)
        start.kill()
        place.assert_nothing_is_left()
        if not (place.run_dir / "run.sqlite").exists():
            assert not start.acknowledged
            return set()
        kept = {one.index for one in read_run(place.run_dir).result.episodes}
        assert set(start.acknowledged) <= kept, "an acknowledged episode is lost"
        return kept


def check_begun(place, start, kept, *, ended=True):
    """Check that a start began nothing that was kept before, and all else once."""
    begun = place.lines("begin", start)
    assert not [seed for seed in begun if SEEDS.index(int(seed)) in kept], "done again"
    again = begun.count(str(SEEDS[DEADLY])) - 1
    assert len(begun) - max(0, again) == len(set(begun))
    if ended:
        assert len(set(begun)) == EPISODES - len(kept)


def finish(place, expected, kept):
    """Start the command again, let it end, and check all of it; return what was stored."""
    with place.start() as start:
        assert start.wait() == 0, start.errors
        assert outcomes(start.result) == expected
        assert set(start.acknowledged) == set(range(EPISODES)) - kept
        check_begun(place, start.number, kept)
    place.assert_nothing_is_left()
    stored = read_run(place.run_dir)
    assert stored.status == "finished"
    noted = noted_attempts(place)
    if stored.result.episodes[DEADLY].attempts > 1:
        assert noted == [(DEADLY, 1)]
        assert "SIGKILL" in stored.result.episodes[DEADLY].causes[0]
    else:  # its first attempt was in an earlier start, which may have been killed before the note
        assert place.lines("begin").count(str(SEEDS[DEADLY])) > 1
        assert noted in ([], [(DEADLY, 1)])
    return stored


# ------------------------------------------------------------------------------------ the kills


@pytest.mark.parametrize(
    "point",
    [
        pytest.param(point, marks=() if k % 3 == 0 else pytest.mark.fault_full)
        for k, point in enumerate(POINTS)
    ],
)
def test_p7_a_run_killed_at_a_point_is_gone_on_with(point, expected, tmp_path):
    place = make_place(tmp_path, build_s=0.2, again_s=2.0 if point == "a retry is under way" else 0)
    kept = kill_at(place, point)
    stored = finish(place, expected, kept)
    is_early = point in ("at once", "the folder is made")  # killed before it noted that it started
    assert len(stored.starts) in ((1, 2) if is_early else (2,))
    if point == "a retry is under way":
        assert noted_attempts(place) == [(DEADLY, 1)], "the lost attempt is listed"
    print(f"killed when {point}: {len(kept)} of {EPISODES} kept")


def test_p7_a_run_is_killed_ten_times(expected, tmp_path):
    place = make_place(tmp_path, build_s=0.2)
    kept: set[int] = set()
    points = [point for point in POINTS if point not in ("a retry is under way", "in the middle")]
    points[-1:] = ["just after an acknowledgement"] * 3
    for point in points:
        after = kill_at(place, point)
        assert kept <= after, "a finished episode is lost"
        check_begun(place, place.starts, kept, ended=False)
        kept = after
    stored = finish(place, expected, kept)
    assert len(points) - 1 <= len(stored.starts) <= len(points) + 1


# ---------------------------------------------------------------------------------- the signals


def slow_place(folder, *more, slow_s):
    return make_place(folder, *more, slow=SEEDS[10:], slow_s=slow_s, deadly=None)


def test_p7_ctrl_c_lets_running_episodes_end(expected, tmp_path):
    place = slow_place(tmp_path, "--grace", "100", slow_s=0.05)
    with place.start() as start:
        start.until(lambda: len(start.acknowledged) >= 12, "slow episodes are under way")
        start.signal(signal.SIGINT)
        assert start.wait() == 130, start.errors
        begun, ended = place.lines("begin"), place.lines("end")
        assert sorted(begun) == sorted(ended), "a running episode did not end"
        kept = {one["index"] for one in start.result["episodes"]}
        assert outcomes(start.result) == [one for one in expected if one[0] in kept]
        assert 12 <= len(kept) == len(begun) < EPISODES
        assert start.result["stopped"] is not None
    place.assert_nothing_is_left()
    stored = read_run(place.run_dir)
    assert stored.status == "stopped"
    assert {one.index for one in stored.result.episodes} == kept


def test_p7_two_ctrl_c_wait_for_nothing(tmp_path):
    place = slow_place(tmp_path, "--grace", "1000", slow_s=100.0)
    with place.start() as start:
        start.until(lambda: len(start.acknowledged) == 10, "slow episodes are under way")
        start.until(lambda: len(place.lines("begin")) >= 10 + WORKERS, "on every worker")
        start.signal(signal.SIGINT)
        time.sleep(1.0)
        assert start.process.poll() is None, "the first one gives running episodes a grace"
        start.signal(signal.SIGINT)
        assert start.wait() == 130, start.errors
        assert len(start.result["episodes"]) == 10
    place.assert_nothing_is_left()
    assert len(read_run(place.run_dir).result.episodes) == 10


def test_p7_sigterm_ends_with_143(tmp_path):
    place = slow_place(tmp_path, "--grace", "0", slow_s=100.0)
    with place.start() as start:
        start.until(lambda: len(start.acknowledged) == 10, "slow episodes are under way")
        start.signal(signal.SIGTERM)
        assert start.wait() == 143, start.errors
        assert len(start.result["episodes"]) == 10
    place.assert_nothing_is_left()
    assert read_run(place.run_dir).status == "stopped"
