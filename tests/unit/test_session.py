"""`Session`: the loop turned by hand."""

from __future__ import annotations

import copy
import json
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rollmesh.api import evaluate
from rollmesh.errors import (
    EnvFailed,
    InvalidSpec,
    InvalidValue,
    ModelFailed,
    RouteCancelled,
    SessionLost,
)
from rollmesh.ports import StepReply, StepRequest
from rollmesh.runtime.cancel import CancelToken
from rollmesh.runtime.hooks import EVENTS, Hooks
from rollmesh.session import Session, StepResult
from tests.toys import ToyEnv


class Walk(gym.Env[Any, Any]):
    """Observes (seed, sum of actions); ends after `length` steps; reward is the action."""

    observation_space = gym.spaces.Box(-1e6, 1e6, (2,), np.float64)
    action_space = gym.spaces.Discrete(10)

    def __init__(self, length: int = 6, log: list[Any] | None = None) -> None:
        self.length = length
        self.log: list[Any] = [] if log is None else log

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = self.total = 0
        self.start = -1 if seed is None else seed
        self.log.append(("reset", seed, options))
        return self._observation(), {"options": options}

    def step(self, action: Any) -> Any:
        if int(action) == 9:
            raise RuntimeError("stepped off the edge")
        self.t += 1
        self.total += int(action)
        self.log.append(int(action))
        ended = self.t >= self.length
        return self._observation(), float(action), ended, False, {"is_success": True}

    def close(self) -> None:
        self.log.append("closed")

    def _observation(self) -> Any:
        return np.array([self.start, self.total], np.float64)


class Chunks:
    """Plans (1, 2, 3, 4) and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[float] = []
        self.ended: list[str] = []

    def predict_chunk(self, observation: Any) -> Any:
        self.asked.append(float(observation[1]))
        return np.array([1, 2, 3, 4])

    def on_episode_end(self, context: Any) -> None:
        self.ended.append(context.episode_id)


class Recorder(Hooks):
    """Writes down every event's name."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.actions: list[Any] = []


def _note(name: str) -> Any:
    def method(self: Recorder, event: Any) -> None:
        self.names.append(name)
        if name == "action_received":
            self.actions.append(int(event.decode()))

    return method


for _name in EVENTS:
    setattr(Recorder, _name, _note(_name))


def test_an_episode_by_hand_is_the_episode_of_evaluate() -> None:
    by_hand, by_loop = Recorder(), Recorder()
    with Session(Chunks(), Walk(), hooks=by_hand) as session:
        session.reset(seed=5)
        while not session.done:
            session.step()
        turned = session.episodes[0]
    looped = evaluate(Chunks(), Walk(), seeds=[5], hooks=by_loop).episodes[0]
    assert by_hand.names == by_loop.names
    assert by_hand.actions == by_loop.actions == [1, 2, 3, 4, 1, 2]
    assert (turned.seed, turned.steps, turned.total_reward, turned.success) == (
        looped.seed,
        looped.steps,
        looped.total_reward,
        looped.success,
    )


def test_reset_returns_observation_and_info_and_passes_seed_and_options() -> None:
    env = Walk()
    with Session(Chunks(), env) as session:
        observation, info = session.reset(seed=7, options={"task": 1})
        assert observation.tolist() == [7.0, 0.0]
        assert info == {"options": {"task": 1}}
        session.reset()
        assert env.log[:2] == [("reset", 7, {"task": 1}), ("reset", None, None)]


def test_predict_tells_the_action_to_come_and_asks_once() -> None:
    model = Chunks()
    with Session(model, Walk()) as session:
        session.reset(seed=0)
        assert session.predict() == 1
        assert session.predict() == 1
        result = session.step()
        assert isinstance(result, StepResult)
        observation, reward, terminated, truncated, info = result
        assert observation.tolist() == [0.0, 1.0]
        assert (reward, terminated, truncated) == (1.0, False, False)
        assert info == {"is_success": True}
        assert session.predict() == 2
        assert model.asked == [0.0]


def test_an_own_action_replaces_frame_0_and_drops_the_queue() -> None:
    model, env = Chunks(), Walk()
    with Session(model, env) as session:
        session.reset(seed=0)
        session.step()
        session.step(5)
        session.step()
        assert [a for a in env.log if isinstance(a, int)] == [1, 5, 1]
        assert model.asked == [0.0, 6.0]


def test_own_actions_alone_never_ask_the_model() -> None:
    model = Chunks()
    with Session(model, Walk(length=3)) as session:
        session.reset()
        for _ in range(3):
            session.step(2)
        assert session.done
        assert model.asked == []
    assert model.ended == []


def test_r19_the_horizon_cuts_chunks() -> None:
    model = Chunks()
    with Session(model, Walk(), execution_horizon=2) as session:
        session.reset(seed=0)
        while not session.done:
            session.step()
    assert len(model.asked) == 3


def test_r27_the_cap_truncates() -> None:
    with Session(Chunks(), Walk(length=50), max_episode_steps=2) as session:
        session.reset(seed=0)
        session.step()
        result = session.step()
        assert (result.terminated, result.truncated) == (False, True)
        assert session.done


def test_a_reset_in_mid_episode_marks_it_interrupted() -> None:
    model = Chunks()
    with Session(model, Walk(length=3)) as session:
        session.reset(seed=1)
        session.step()
        session.reset(seed=2)
        assert len(model.ended) == 1
        while not session.done:
            session.step()
        assert [(e.seed, e.error) for e in session.episodes] == [(1, "interrupted"), (2, None)]
        assert [e.index for e in session.episodes] == [0, 1]
    assert len(model.ended) == len(set(model.ended)) == 2


def test_observations_belong_to_the_caller() -> None:
    with Session(Chunks(), Walk()) as session:
        observation, _ = session.reset(seed=3)
        observation += 100
        assert session.step().observation.tolist() == [3.0, 1.0]


def test_calls_out_of_order_are_refused_and_hurt_nothing() -> None:
    with Session(Chunks(), Walk(length=1)) as session:
        assert session.done
        with pytest.raises(InvalidSpec, match="call reset"):
            session.step()
        with pytest.raises(InvalidSpec, match="call reset"):
            session.predict()
        session.reset(seed=0)
        session.step()
        with pytest.raises(InvalidSpec, match="call reset"):
            session.step()
        session.reset(seed=1)
        session.step()
        assert len(session.episodes) == 2
    with pytest.raises(InvalidSpec, match="over"):
        session.reset()
    session.close()


@pytest.mark.parametrize("seed", [-1, 1.5, "7", True])
def test_bad_seeds_are_refused(seed: Any) -> None:
    with Session(Chunks(), Walk()) as session, pytest.raises(InvalidSpec, match="seed"):
        session.reset(seed=seed)


def test_an_action_that_does_not_fit_is_refused_and_hurts_nothing() -> None:
    env = Walk()
    with Session(Chunks(), env) as session:
        session.reset(seed=0)
        with pytest.raises(InvalidValue, match="action"):
            session.step(77)
        assert session.step(3).reward == 3.0


def test_c25_own_float64_actions_are_told_as_evaluate_tells_the_models(caplog: Any) -> None:
    class Push(gym.Env[Any, Any]):
        observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
        action_space = gym.spaces.Box(-1, 1, (2,), np.float32)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return np.zeros(2, np.float32), {}

        def step(self, action: Any) -> Any:
            assert action.dtype == np.float32
            return np.zeros(2, np.float32), 0.0, True, False, {}

    action = np.full(2, 0.5)

    def said() -> list[Any]:
        records = [(one.name, one.levelname, one.getMessage()) for one in caplog.records]
        caplog.clear()
        return [record for record in records if "float64" in record[2]]

    with caplog.at_level("INFO", "rollmesh"):
        evaluate(lambda observation: action, Push(), episodes=1)
        by_evaluate = said()
        with Session(lambda observation: action, Push()) as session:
            session.reset(seed=0)
            session.step(action)
    assert [level for _, level, _ in by_evaluate] == ["INFO"]
    assert said() == by_evaluate


def test_odd_actions_of_ones_own_are_warned_of_once(caplog: Any) -> None:
    class Push(Walk):
        action_space = gym.spaces.Box(-1, 1, (1,), np.float32)

        def step(self, action: Any) -> Any:
            return super().step(0)

    with Session("random", Push()) as session:
        session.reset(seed=0)
        for _ in range(2):
            session.step(np.full(1, 5.0, np.float32))
    assert [one.levelname for one in caplog.records if "5.0" in one.getMessage()] == ["WARNING"]


def test_an_env_that_raises_ends_the_session_with_the_report() -> None:
    recorder = Recorder()
    session = Session(Chunks(), Walk(), hooks=recorder)
    session.reset(seed=4)
    session.step()
    with pytest.raises(EnvFailed, match="off the edge") as caught:
        session.step(9)
    assert caught.value.seed == 4
    assert caught.value.report is not None
    assert recorder.names[-1] == "session_failed"
    with pytest.raises(InvalidSpec, match="over"):
        session.step()
    session.close()
    assert recorder.names[-1] == "session_failed"


def test_a_model_that_raises_ends_the_session() -> None:
    def broken(observation: Any) -> int:
        raise ZeroDivisionError("no policy")

    session = Session(broken, Walk())
    session.reset(seed=0)
    with pytest.raises(ModelFailed, match="no policy"):
        session.predict()
    assert session.done
    session.close()


def test_a_cancel_ends_the_session_at_its_next_call() -> None:
    cancel = CancelToken()
    session = Session(Chunks(), Walk(), cancel=cancel)
    session.reset(seed=0)
    cancel.cancel("enough")
    with pytest.raises(RouteCancelled, match="enough"):
        session.step()
    session.close()


def test_what_was_built_is_closed_once_and_an_instance_is_not() -> None:
    given, built = Walk(), []
    with Session(Chunks(), given) as session:
        session.reset()
    with Session(Chunks, Walk, env_kwargs={"log": built}) as session:
        session.reset(seed=1)
        while not session.done:
            session.step()
    assert "closed" not in given.log
    assert built.count("closed") == 1


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_a_vector_env_of_one_lane_in_every_mode(mode: AutoresetMode) -> None:
    env = SyncVectorEnv([lambda: Walk(length=2)], autoreset_mode=mode)
    with Session(Chunks(), env) as session:
        for seed in (3, 4):
            observation, _ = session.reset(seed=seed)
            assert observation.tolist() == [float(seed), 0.0]
            session.step()
            last = session.step()
            assert last.observation.tolist() == [float(seed), 3.0]
            assert session.done
        assert [(e.seed, e.steps, e.total_reward) for e in session.episodes] == [
            (3, 2, 3.0),
            (4, 2, 3.0),
        ]
    env.close()


def test_infos_are_plain_dicts_of_the_callers_own() -> None:
    class Silent(Walk):
        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return super().reset(seed=seed, options=options)[0], {}

        def step(self, action: Any) -> Any:
            return (*super().step(action)[:4], {})

    with Session(Chunks(), Silent()) as session:
        _, first = session.reset(seed=1)
        for info in (first, session.step().info):
            assert json.dumps(info) == "{}"
            assert copy.deepcopy(info) == {}
            info["mine"] = 1
        assert session.step().info == {}


def test_more_than_one_lane_is_refused() -> None:
    env = SyncVectorEnv([Walk, Walk])
    with pytest.raises(InvalidSpec, match="2 lanes"):
        Session(Chunks(), env)
    env.close()


def test_r49_ctrl_c_while_the_model_is_asked_ends_the_session(monkeypatch):
    told: list[Any] = []

    class Told(Hooks):
        def session_failed(self, event: Any) -> None:
            told.append(event.reason)

    def struck(tasks: Any, *, shutdown: bool = False) -> None:
        if not shutdown:
            raise KeyboardInterrupt

    session = Session(Chunks(), Walk(), hooks=Told())
    session.reset(seed=1)
    monkeypatch.setattr(session._driver._hand_engine, "run", struck)
    with pytest.raises(RouteCancelled, match="interrupted"):
        session.predict()
    assert session.done
    assert len(told) == 1
    session.close()


def test_a_lost_session_ends_the_session_and_is_not_played_again_unasked():
    class Lossy(ToyEnv):
        def step(self, request: StepRequest) -> StepReply:
            if len(self.steps) == 1:
                raise SessionLost("the server was started again")
            return super().step(request)

    with Session(
        lambda observation: np.zeros(1, np.float32), Lossy(length=lambda *_: 9)
    ) as session:
        session.reset(seed=3)
        session.step()
        with pytest.raises(EnvFailed, match="started again") as caught:
            session.step()
    assert caught.value.is_session_lost
