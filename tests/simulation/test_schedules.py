"""Ten thousand runs in virtual time: any mode, any width, faults and cancels at any yield.

Each run is a function of its number alone; a failing number can be run again by itself. Every run
ends in a check of its full history.
"""

from __future__ import annotations

import random

import pytest

from rollmesh.errors import RouteCancelled, RouteError
from rollmesh.limits import Limits
from rollmesh.ports import AutoresetMode
from rollmesh.runtime.cancel import CancelToken
from rollmesh.runtime.driver import RouteDriver
from rollmesh.runtime.engine.simulated import SimulatedEngine, VirtualClock, Weather
from rollmesh.runtime.report import RouteReport
from tests.simulation.history import check
from tests.toys import LANES, VECTOR, CountingMint, Notes, ToyEnv, ToyModel, spec_for

RUNS = 10_000
BATCH = 500
FAULTY = {
    "fail": 0.01,
    "lose": 0.01,
    "crash": 0.004,
    "hang": 0.004,
    "exit": 0.002,
    "interrupt": 0.001,
}


def _world(dice: random.Random) -> tuple[ToyEnv, dict[str, object]]:
    """Return an env in any mode and width, and the part of a spec that it allows."""
    width = dice.choice([1, 1, 2, 3, 5])
    mode, capabilities = dice.choice(
        [
            (AutoresetMode.DISABLED, VECTOR),
            (AutoresetMode.DISABLED, LANES),
            (AutoresetMode.NEXT_STEP, ("rebuild",)),
            (AutoresetMode.NEXT_STEP, VECTOR),
            (AutoresetMode.SAME_STEP, ("rebuild",)),
        ]
    )
    env = ToyEnv(width, mode, capabilities=capabilities)
    episodes = dice.randrange(1, 9)
    fields: dict[str, object] = {
        "max_episodes": episodes,
        "execution_horizon": dice.choice([None, 1, 2]),
        "replan": dice.choice(["lane", "batch"]),
        "on_error": dice.choice(["raise", "continue"]),
        "close_env_on_end": dice.random() < 0.5,
        "limits": Limits(env_reset_s=1, env_step_s=1, model_predict_s=1, env_connect_s=5),
    }
    if mode is AutoresetMode.DISABLED or "partial_reset" in capabilities:
        if dice.random() < 0.7:
            fields["episode_seeds"] = [dice.randrange(100) for _ in range(episodes)]
        if dice.random() < 0.3:
            fields["max_episode_steps"] = dice.randrange(1, 4)
    elif "subset_step" not in capabilities and dice.random() < 0.3:
        fields["budget"] = "completions"
    if "episode_seeds" not in fields and dice.random() < 0.3:
        fields["base_seed"] = dice.randrange(100)
    return env, fields


def _run(number: int) -> tuple[Notes, ToyEnv, ToyModel, RouteReport | RouteError]:
    dice = random.Random(number)
    env, fields = _world(dice)
    model = ToyModel(frames=dice.choice([1, 1, 3]))
    notes = Notes()
    clock = VirtualClock()
    faulty = dice.random() < 0.6
    cancels = dice.random() < 0.15
    weather = Weather(
        **(FAULTY if faulty else {}),
        cancel_at_ns=dice.randrange(30_000_000) if cancels else None,
    )
    driver = RouteDriver(
        spec_for(env, **fields),
        env,
        model,
        hooks=[notes],
        make_engine=lambda parts: SimulatedEngine(parts, clock, weather, number),
        clock=clock,
        mint=CountingMint(),
    )
    try:
        return notes, env, model, driver.run(CancelToken())
    except RouteError as error:
        return notes, env, model, error


def _check_order(notes: Notes, outcome: RouteReport | RouteError) -> None:
    """The report is in plan order, or in the order of completion where there is no plan."""
    report = outcome if isinstance(outcome, RouteReport) else outcome.report
    assert report is not None
    indices = [summary.index for summary in report.episodes]
    completed = [e.episode_index for e in notes.of("episode_completed", "episode_errored")]
    assert indices in (sorted(indices), completed)


@pytest.mark.parametrize("first", range(0, RUNS, BATCH))
def test_every_history_holds(first: int) -> None:
    outcomes: set[str] = set()
    for number in range(first, first + BATCH):
        notes, env, model, outcome = _run(number)
        try:
            check(notes, env, model, outcome)
            if isinstance(outcome, RouteReport):
                wanted = notes.of("session_ended")[0].total_episodes
                assert outcome.total_episodes == wanted
        except AssertionError as wrong:
            raise AssertionError(f"run {number}: {wrong}") from wrong
        outcomes.add(type(outcome).__name__)
    assert {"RouteReport", "EnvFailed", "ModelFailed", "RouteCancelled"} <= outcomes


def test_the_same_number_gives_the_same_history() -> None:
    for number in range(50):
        first, second = _run(number)[0], _run(number)[0]
        assert first.names() == second.names()


def test_r26_without_faults_every_planned_episode_ends_once() -> None:
    for number in range(300):
        dice = random.Random(number)
        env, fields = _world(dice)
        notes, model, clock = Notes(), ToyModel(), VirtualClock()
        report = RouteDriver(
            spec_for(env, **fields),
            env,
            model,
            hooks=[notes],
            make_engine=lambda parts, c=clock, n=number: SimulatedEngine(parts, c, Weather(), n),
            clock=clock,
            mint=CountingMint(),
        ).run()
        check(notes, env, model, report)
        wanted = fields["max_episodes"]
        assert isinstance(wanted, int)
        if fields.get("budget") == "completions":
            assert report.total_episodes >= wanted
        else:
            assert [e.index for e in report.episodes] == list(range(wanted))
        seeds = fields.get("episode_seeds")
        if isinstance(seeds, list):
            assert [e.seed for e in report.episodes] == seeds
        assert len(model.releases) == 1
        assert not model.held


def test_r15_a_cancel_at_any_moment_ends_the_route_cancelled() -> None:
    for number in range(200):
        env = ToyEnv(2, capabilities=LANES)
        clock = VirtualClock()
        weather = Weather(cancel_at_ns=number * 50_000)
        driver = RouteDriver(
            spec_for(env),
            env,
            ToyModel(),
            make_engine=lambda parts, c=clock, w=weather, n=number: SimulatedEngine(parts, c, w, n),
            clock=clock,
        )
        with pytest.raises(RouteCancelled, match="simulated cancel"):
            driver.run()


def test_a_lost_session_starts_its_episodes_again_from_their_seeds() -> None:
    attempts: set[int] = set()
    for number in range(300):
        env = ToyEnv(3, capabilities=random.Random(number).choice([LANES, VECTOR]))
        notes, model, clock = Notes(), ToyModel(), VirtualClock()
        seeds = list(range(6))
        driver = RouteDriver(
            spec_for(env, episode_seeds=seeds),
            env,
            model,
            hooks=[notes],
            make_engine=lambda parts, c=clock, n=number: SimulatedEngine(
                parts, c, Weather(lose=0.01), n
            ),
            clock=clock,
            mint=CountingMint(),
        )
        try:
            report = driver.run()
        except RouteError as error:
            check(notes, env, model, error)
            continue
        check(notes, env, model, report)
        assert [(e.index, e.seed) for e in report.episodes] == list(enumerate(seeds))
        assert [e.steps for e in report.episodes] == [1 + seed % 5 for seed in seeds]
        attempts.update([e.attempts for e in report.episodes])
    assert {1, 2} <= attempts
