"""Plans in full: episodes with a task and a setup, lanes that are prepared, late lanes lost."""

from __future__ import annotations

import pytest

from rollmesh.errors import EnvFailed, InvalidSpec, LaneLost, PortTimeout, SessionLost
from rollmesh.ports import PREPARE, REBUILD, SUBSET_STEP, PrepareRequest, ResetRequest
from rollmesh.runtime.spec import EpisodeStart
from tests.driving import drive
from tests.toys import ToyEnv, spec_for

LANES = (SUBSET_STEP, REBUILD, PREPARE)


class PreparedEnv(ToyEnv):
    """Notes what each lane is prepared for; fails on the named prepares, counted from 1."""

    def __init__(self, width: int, *, failing: dict[int, Exception] | None = None, **toy):
        super().__init__(width, capabilities=LANES, **toy)
        self.failing = failing or {}
        self.prepared: list[tuple[int, str]] = []
        self.held: dict[int, str] = {}
        self.played: list[tuple[str, int]] = []

    def prepare(self, request: PrepareRequest) -> None:
        (lane,) = request.env_indices
        self.prepared.append((lane, request.setup))
        if (error := self.failing.get(len(self.prepared))) is not None:
            raise error
        self.held[lane] = request.setup

    def rebuild(self, env_indices: tuple[int, ...]) -> None:
        super().rebuild(env_indices)
        for lane in env_indices or range(self.contract.num_envs):
            self.held.pop(lane, None)

    def reset(self, request: ResetRequest):
        lanes = request.env_indices or tuple(range(self.contract.num_envs))
        for lane, seed in zip(lanes, request.seeds, strict=True):
            self.played.append((self.held[lane], seed))
        return super().reset(request)


def starts(*setups: str, seed: int = 10) -> tuple[EpisodeStart, ...]:
    return tuple(
        EpisodeStart(index=2 * k, seed=seed + k, task=f"task {setup}", setup=setup)
        for k, setup in enumerate(setups)
    )


def test_each_episode_runs_on_a_lane_that_holds_its_setup():
    env = PreparedEnv(2)
    run = drive(env, starts=starts("a", "a", "b", "b", "a"))
    assert sorted(env.played) == [("a", 10), ("a", 11), ("a", 14), ("b", 12), ("b", 13)]
    assert [(e.index, e.task, e.seed) for e in run.ok.episodes] == [
        (0, "task a", 10),
        (2, "task a", 11),
        (4, "task b", 12),
        (6, "task b", 13),
        (8, "task a", 14),
    ]


def test_a_lane_stays_with_its_setup_while_that_has_episodes():
    env = PreparedEnv(2)
    assert drive(env, starts=starts("a", "b", "a", "b", "a", "b")).ok.total_episodes == 6
    assert sorted(env.prepared) == [(0, "a"), (1, "b")]


def test_an_episode_has_its_own_limit_of_steps():
    capped = [EpisodeStart(index=k, seed=4, max_steps=most) for k, most in enumerate((2, None, 3))]
    run = drive(PreparedEnv(1), starts=capped, max_episode_steps=4)
    assert [(e.steps, e.truncated) for e in run.ok.episodes] == [(2, True), (4, True), (3, True)]


def test_a_lane_lost_while_it_is_prepared_gives_the_episode_back():
    env = PreparedEnv(1, failing={1: SessionLost("worker 0 died of SIGKILL\nlast lines")})
    run = drive(env, starts=starts("a"))
    (episode,) = run.ok.episodes
    assert (episode.attempts, episode.seed) == (2, 10)
    assert len(episode.causes) == 1
    assert "worker 0 died of SIGKILL" in episode.causes[0]
    assert "\n" not in episode.causes[0]
    assert env.rebuilt == [()]


def test_attempts_are_bounded_by_the_spec():
    failing: dict[int, Exception] = {k: SessionLost(f"death {k}") for k in range(1, 9)}
    run = drive(
        PreparedEnv(1, failing=failing), starts=starts("a"), max_attempts=5, on_error="continue"
    )
    (episode,) = run.ok.episodes
    assert episode.attempts == 5
    assert [f"death {k + 1}" in cause for k, cause in enumerate(episode.causes)] == [True] * 4
    assert "death 5" in (episode.error or "")


class LateEnv(PreparedEnv):
    """Does not answer its first step in time."""

    def step(self, request):
        if not self.steps:
            self.steps.append(request)
            raise PortTimeout("no answer")
        return super().step(request)


def test_a_late_lane_is_lost_only_where_the_spec_says_so():
    kept = drive(LateEnv(1), starts=starts("a"), on_error="continue", retry_late=True)
    (episode,) = kept.ok.episodes
    assert (episode.attempts, episode.error) == (2, None)
    assert "timed out" in episode.causes[0]
    spoiled = drive(LateEnv(1), starts=starts("a"), on_error="continue")
    assert "timed out" in (spoiled.ok.episodes[0].error or "")


def test_a_setup_that_cannot_be_built_spoils_its_episodes_and_no_others():
    env = PreparedEnv(1, failing={1: ValueError("no such scene")})
    run = drive(env, starts=starts("a", "b"), on_error="continue")
    first, second = run.ok.episodes
    assert "no such scene" in (first.error or "")
    assert second.error is None
    assert isinstance(drive(env, starts=starts("a")).error, (EnvFailed, type(None)))


def test_episodes_are_told_one_by_one_as_they_end():
    told: list[int] = []
    drive(
        PreparedEnv(1),
        starts=starts("a", "a", "b"),
        driver={"tell": lambda summary: told.append(summary.index)},
    )
    assert told == [0, 2, 4]


@pytest.mark.parametrize(
    ("name", "value"), [("episode_seeds", [1]), ("base_seed", 3), ("episode_options", [None])]
)
def test_starts_are_the_whole_plan(name, value):
    with pytest.raises(InvalidSpec, match="contradicts starts"):
        spec_for(ToyEnv(), starts=starts("a"), **{name: value})


def test_wrong_starts_are_refused_by_name():
    with pytest.raises(InvalidSpec, match=r"starts\[0\]"):
        spec_for(ToyEnv(), starts=[{"seed": 3}])
    with pytest.raises(InvalidSpec, match="max_attempts"):
        spec_for(ToyEnv(), max_attempts=0)


class LosingEnv(PreparedEnv):
    """Gives up the named lanes for good."""

    def __init__(self, width: int, *, lost: set[int]):
        super().__init__(width)
        self.lost = lost

    def prepare(self, request: PrepareRequest) -> None:
        if request.env_indices[0] in self.lost:
            raise LaneLost("worker 0 failed to start 3 times: no such file")
        super().prepare(request)


def test_the_others_play_the_episodes_of_a_lane_that_is_given_up():
    run = drive(LosingEnv(3, lost={0, 2}), starts=starts("a", "a", "a", "a"))
    assert [(e.index, e.attempts, e.causes) for e in run.ok.episodes] == [
        (0, 1, ()),
        (2, 1, ()),
        (4, 1, ()),
        (6, 1, ()),
    ]
    warnings = [e.message for e in run.notes.of("log") if e.level == "warning"]
    assert [w.startswith("goes on without lane") for w in warnings] == [True, True]


def test_the_run_fails_when_the_last_lane_is_given_up():
    run = drive(LosingEnv(2, lost={0, 1}), starts=starts("a", "a"))
    assert isinstance(run.failure, EnvFailed)
    assert "failed to start 3 times" in str(run.failure)


class LateLosingEnv(PreparedEnv):
    """Loses the worker of lane 1 at its third step, and cannot start another one."""

    def prepare(self, request: PrepareRequest) -> None:
        if request.env_indices == (1,) and self.steps_of_last:
            raise LaneLost("worker 1 failed to start 3 times: no such file", env_index=1)
        super().prepare(request)

    steps_of_last = 0

    def step(self, request):
        if request.env_indices == (1,):
            self.steps_of_last += 1
            if self.steps_of_last == 3:
                raise SessionLost("worker 1 died of SIGKILL")
        return super().step(request)


def late() -> list[EpisodeStart]:
    """One episode that ends at once, and a longer one of another setup."""
    return [
        EpisodeStart(index=0, seed=10, setup="a", max_steps=1),
        EpisodeStart(index=1, seed=11, setup="b", max_steps=4),
    ]


def test_a_lane_that_had_run_out_of_episodes_plays_that_of_one_given_up_later():
    env = LateLosingEnv(2, length=lambda *_: 9)
    run = drive(env, starts=late())
    first, second = run.ok.episodes
    assert (first.attempts, first.error, first.env_index) == (1, None, 0)
    assert (second.attempts, second.error, second.env_index) == (2, None, 0)
    assert (second.seed, second.steps) == (11, 4)
    assert env.played == [("a", 10), ("b", 11), ("b", 11)]
    warnings = [e.message for e in run.notes.of("log") if e.level == "warning"]
    assert warnings[-1].startswith("goes on without lane 1")


def test_a_lane_that_cannot_be_prepared_leaves_its_episode_to_one_that_is_ready():
    class Unready(LateLosingEnv):
        def prepare(self, request: PrepareRequest) -> None:
            if request.env_indices == (1,) and self.steps_of_last:
                raise SessionLost("worker 1 died while it built the env")
            super().prepare(request)

    env = Unready(2, length=lambda *_: 9)
    run = drive(env, starts=late(), max_attempts=3)
    second = run.ok.episodes[1]
    assert (second.attempts, second.error, second.env_index) == (3, None, 0)
    assert [lane for lane, _ in env.prepared] == [0, 1, 0]


def test_what_fails_on_a_lane_that_was_taken_over_names_that_lane():
    class Stumbles(LateLosingEnv):
        def step(self, request):
            if request.env_indices == (0,) and self.held[0] == "b":
                raise ValueError("the gripper fell off")
            return super().step(request)

    run = drive(Stumbles(2, length=lambda *_: 9), starts=late(), on_error="continue")
    second = run.ok.episodes[1]
    assert second.env_index == 0
    assert "lane 0" in (second.error or "")
    assert "the gripper fell off" in (second.error or "")


def test_what_the_end_of_a_kept_run_spoils_is_not_told_as_errored():
    told: list[int] = []
    run = drive(
        PreparedEnv(2, failing={2: ValueError("no such scene")}),
        starts=starts("a", "b"),
        driver={"tell": lambda summary: told.append(summary.index)},
    )
    assert isinstance(run.failure, EnvFailed)
    assert told == []
    assert run.notes.of("episode_errored") == []
