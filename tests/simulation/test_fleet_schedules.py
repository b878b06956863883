"""A thousand runs of a fleet in virtual time: workers and lanes are lost at any operation.

Each run is a function of its number alone. The port behaves as a fleet's does: a lane must be
prepared before its first reset and after each loss, a lane that is given up says so at its next
prepare, and an env may fail without its worker being lost.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, replace

import pytest

from rollmesh.errors import EndpointFault, LaneLost, RouteError, WorkerLost
from rollmesh.limits import Limits
from rollmesh.ports import PREPARE, REBUILD, SUBSET_STEP, PrepareRequest, ResetRequest, StepRequest
from rollmesh.runtime.cancel import CancelToken
from rollmesh.runtime.driver import RouteDriver
from rollmesh.runtime.engine.simulated import SimulatedEngine, VirtualClock, Weather
from rollmesh.runtime.report import EpisodeSummary, LostAttempt, RouteReport
from rollmesh.runtime.spec import EpisodeStart
from tests.simulation.history import check
from tests.toys import CountingMint, Notes, ToyEnv, ToyModel, spec_for

RUNS = 1_000
BATCH = 250
FLEET = (SUBSET_STEP, REBUILD, PREPARE)


class ToyFleet(ToyEnv):
    """Lanes that have to be prepared, whose workers die and are given up by the dice."""

    def __init__(self, width: int, dice: random.Random, starts: list[EpisodeStart]) -> None:
        super().__init__(width, capabilities=FLEET)
        self.dice = dice
        self.dies, self.fails, self.gives_up = (
            dice.choice([0.0, share]) for share in (0.05, 0.02, 0.1)
        )
        self.held: dict[int, str | None] = dict.fromkeys(range(width))
        self.given_up: set[int] = set()
        self.setup_of = {start.seed: start.setup for start in starts}

    def prepare(self, request: PrepareRequest) -> None:
        (lane,) = request.env_indices
        if lane in self.given_up or self.dice.random() < self.gives_up:
            self.given_up.add(lane)
            raise LaneLost("it was given up", env_index=lane, outcome="not_done")
        self._may_die(lane)
        self.held[lane] = request.setup
        self.lanes[lane].over = True

    def reset(self, request: ResetRequest):
        (lane,) = request.env_indices
        assert self.held[lane] is not None, "a reset of a lane that is not prepared"
        assert self.held[lane] == self.setup_of[request.seeds[0]], "another env is held"
        self._may_die(lane)
        return super().reset(request)

    def step(self, request: StepRequest):
        (lane,) = request.env_indices
        assert self.held[lane] is not None, "a step of a lane that is not prepared"
        self._may_die(lane)
        return super().step(request)

    def _may_die(self, lane: int) -> None:
        draw = self.dice.random()
        if draw < self.dies:
            self.held[lane] = None
            raise WorkerLost("it died", worker=lane, cause="SIGKILL", env_index=lane)
        if draw < self.dies + self.fails:
            raise EndpointFault("the env is out of order", env_index=lane)


@dataclass
class Outcome:
    """What one run came to, and what was told of it while it went on."""

    starts: list[EpisodeStart]
    max_attempts: int
    fleet: ToyFleet
    token: CancelToken
    told: list[EpisodeSummary] = field(default_factory=list)
    lost: list[LostAttempt] = field(default_factory=list)
    notes: Notes = field(default_factory=Notes)
    model: ToyModel = field(default_factory=ToyModel)
    end: RouteReport | RouteError | None = None


def _starts(dice: random.Random) -> list[EpisodeStart]:
    """A plan of which some episodes have ended before, in one or several setups."""
    setups = dice.choice([("",), ("a", "b"), ("a", "b", "c")])
    planned = dice.randrange(1, 12)
    left = sorted(dice.sample(range(20), planned))
    return [
        EpisodeStart(index=i, seed=1000 + i, setup=dice.choice(setups), task=f"t{i % 2}")
        for i in left
    ]


def _run(number: int) -> Outcome:
    dice = random.Random(number)
    starts = _starts(dice)
    fleet = ToyFleet(dice.choice([2, 3, 8]), random.Random(-number), starts)
    made = Outcome(starts, dice.choice([1, 2, 3]), fleet, CancelToken())
    clock = VirtualClock()
    spec = spec_for(
        fleet,
        starts=starts,
        max_episodes=None,
        on_error=dice.choice(["continue", "continue", "raise"]),
        max_attempts=made.max_attempts,
        retry_late=True,
        limits=Limits(env_reset_s=1, env_step_s=1, model_predict_s=None),
    )
    drain_after = dice.choice([None, None, None, 2])

    def tell(summary: EpisodeSummary) -> None:
        made.told.append(summary)
        if len(made.told) == drain_after:
            made.token.drain()

    weather = Weather(hang=dice.choice([0.0, 0.01]))
    driver = RouteDriver(
        spec,
        fleet,
        made.model,
        hooks=[made.notes],
        make_engine=lambda parts: SimulatedEngine(parts, clock, weather, number),
        tell=tell,
        tell_lost=made.lost.append,
        clock=clock,
        mint=CountingMint(),
    )
    try:
        made.end = driver.run(made.token)
    except RouteError as error:
        made.end = error
    return made


def _filled(made: Outcome) -> RouteReport | RouteError:
    """What the run came to, its report filled with the episodes that were told of instead."""
    end = made.end
    report = end.report if isinstance(end, RouteError) else end
    assert report is not None
    assert (report.episodes, report.total_episodes) == ((), len(made.told))
    report = replace(report, episodes=tuple(sorted(made.told, key=lambda one: one.index)))
    if isinstance(end, RouteError):
        end.report = report
        return end
    return report


def _check(made: Outcome) -> None:
    check(made.notes, made.fleet, made.model, _filled(made), is_told=True)
    planned = {start.index: start for start in made.starts}
    ended = Counter(summary.index for summary in made.told)
    assert max(ended.values(), default=1) == 1, "an episode was told twice"
    assert ended.keys() <= planned.keys()
    if isinstance(made.end, RouteReport) and not made.token.draining:
        assert ended.keys() == planned.keys(), "an episode was lost"
    lost = Counter(one.index for one in made.lost)
    for summary in made.told:
        start = planned[summary.index]
        assert (summary.seed, summary.task) == (start.seed, start.task)
        assert summary.attempts == 1 + lost[summary.index] <= made.max_attempts
        assert len(summary.causes) == lost[summary.index]
        if summary.error is None:
            assert summary.steps == 1 + (start.seed or 0) % 5


@pytest.mark.parametrize("first", range(0, RUNS, BATCH))
def test_every_planned_episode_ends_once_whatever_is_lost(first: int) -> None:
    ends: Counter[str] = Counter()
    attempts: set[int] = set()
    for number in range(first, first + BATCH):
        made = _run(number)
        try:
            _check(made)
        except AssertionError as wrong:
            raise AssertionError(f"run {number}: {wrong}") from wrong
        ends[type(made.end).__name__] += 1
        attempts.update(summary.attempts for summary in made.told)
    assert ends.keys() >= {"RouteReport", "EnvFailed"}
    assert attempts == {1, 2, 3}
