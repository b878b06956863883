"""Lost sessions: episodes are started again from their seed, as new attempts."""

from __future__ import annotations

from rollmesh.errors import EnvFailed, ModelFailed, SessionLost
from rollmesh.ports import PredictReply, PredictRequest, ResetReply, ResetRequest, StepReply
from tests.driving import drive
from tests.toys import VECTOR, StepRequest, ToyEnv, ToyModel


class LossyEnv(ToyEnv):
    """Loses its session on the named calls of `step` or `reset`, counted from 1."""

    def __init__(
        self, width: int, *, steps: set[int] = frozenset(), resets: set[int] = frozenset()
    ):
        super().__init__(width, capabilities=VECTOR)
        self.lossy = {"step": steps, "reset": resets}
        self.calls = {"step": 0, "reset": 0}

    def _count(self, method: str) -> None:
        self.calls[method] += 1
        if self.calls[method] in self.lossy[method]:
            raise SessionLost("the server was started again")

    def reset(self, request: ResetRequest) -> ResetReply:
        self._count("reset")
        return super().reset(request)

    def step(self, request: StepRequest) -> StepReply:
        self._count("step")
        return super().step(request)


def test_episodes_of_a_lost_session_are_started_again_from_their_seeds():
    env = LossyEnv(2, steps={2})
    run = drive(env, episode_seeds=[3, 4])
    assert [(e.seed, e.steps, e.attempts) for e in run.ok.episodes] == [(3, 4, 2), (4, 5, 2)]
    assert env.rebuilt == [()]
    assert [r.seeds for r in env.resets[:2]] == [(3, 4), (3, 4)]
    ids = [e.episode_id for e in run.notes.of("episode_started")]
    assert len(set(ids)) == 4, "an attempt has an id of its own"
    assert not run.notes.of("episode_errored")
    warnings = [e.message for e in run.notes.of("log") if e.level == "warning"]
    assert [
        w.startswith(f"episode {k} is started again, as attempt 2") for k, w in enumerate(warnings)
    ] == [True, True]


def test_ids_of_lost_attempts_are_evicted_once():
    run = drive(LossyEnv(1, steps={2}), episode_seeds=[3])
    evicted = [i for e in run.model.evictions for i in e.episode_ids]
    assert sorted(evicted) == sorted({e.episode_id for e in run.notes.of("episode_started")})


def test_a_session_lost_in_a_reset_is_made_up_for():
    run = drive(LossyEnv(1, resets={2}), episode_seeds=[1, 1, 1])
    assert [e.attempts for e in run.ok.episodes] == [1, 2, 1]


def test_an_episode_is_errored_when_its_attempts_are_used_up():
    env = LossyEnv(1, steps={1, 2, 3})
    run = drive(env, episode_seeds=[3])
    assert isinstance(run.failure, EnvFailed)
    assert run.failure.is_session_lost
    (episode,) = run.failure.report.episodes
    assert episode.attempts == 3
    assert episode.error is not None


def test_an_env_that_cannot_be_connected_again_ends_the_route():
    env = LossyEnv(1, steps={1})
    env.capabilities = frozenset()
    assert isinstance(drive(env, episode_seeds=[3]).failure, EnvFailed)


def test_a_lost_model_starts_the_episode_again_without_touching_the_env_twice():
    class Lossy(ToyModel):
        lost = False

        def predict(self, request: PredictRequest) -> PredictReply:
            if len(self.predicts) == 2 and not self.lost:
                self.lost = True
                raise SessionLost("the model server was started again")
            return super().predict(request)

    env = ToyEnv(1)
    run = drive(env, Lossy(), episode_seeds=[3])
    assert [(e.steps, e.attempts) for e in run.ok.episodes] == [(4, 2)]
    assert not env.rebuilt


def test_a_model_that_is_lost_each_time_ends_the_route():
    class Gone(ToyModel):
        def predict(self, request: PredictRequest) -> PredictReply:
            raise SessionLost("nobody there")

    run = drive(ToyEnv(1), Gone(), episode_seeds=[3])
    assert isinstance(run.failure, ModelFailed)
