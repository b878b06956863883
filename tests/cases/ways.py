"""The ways of running within this process; those with servers are in `served_ways.py`.

A new one is a class and an entry in `all_ways.WAYS`.

| way | env | model | engine |
|---|---|---|---|
| blocking | an instance | a callable | blocking |
| hosted | a factory | a factory, on the same thread | hosted |
| concurrent | a factory | a callable | concurrent, one group |
| session | a factory | an object | turned by hand |
| lanes | a factory for K lanes | a callable | concurrent, K groups |
| … vector | SyncVectorEnv of that mode | a callable | blocking |
"""

from __future__ import annotations

from functools import partial
from typing import Any, Protocol

import numpy as np

from rollmesh import EvalResult, Session, evaluate
from rollmesh.endpoint.envs.env_loading import open_env
from rollmesh.ports import ResetRequest, StepRequest
from tests.cases.case_run import CaseRun
from tests.cases.recording import Outcome


class Way(Protocol):
    """One way of running a case.

    Attributes:
        name: As printed.
        is_routeless: Whether it needs no policy.
    """

    name: str
    is_routeless: bool

    def is_slow(self, case_id: str) -> bool:
        """Return whether it takes so long with this case that it is left to the slow tests."""
        ...

    def applies(self, run: CaseRun) -> bool:
        """Return whether the case means to be run this way."""
        ...

    def refuses(self, run: CaseRun) -> str | None:
        """Return why a case that means to be run this way cannot be, or None."""
        ...

    def drive(self, run: CaseRun, outcome: Outcome) -> None:
        """Run the case and put what came of it into the outcome.

        Raises:
            Exception: Whatever the run raised.
        """
        ...


class SingleLane:
    """Runs on one lane.

    Attributes:
        has_hard_limits: Whether a call that hangs can be left behind.
    """

    is_routeless = False
    has_hard_limits = True

    def is_slow(self, case_id: str) -> bool:
        del case_id
        return False

    def applies(self, run: CaseRun) -> bool:
        return run.lanes == 1 and not run.run.get("manual")

    def refuses(self, run: CaseRun) -> str | None:
        if run.deadlines and not self.has_hard_limits:
            return "a call on the caller's thread cannot be interrupted: hard limits need a factory"
        return None


class Blocking(SingleLane):
    """An env instance and a callable, on the calling thread."""

    name = "blocking"
    has_hard_limits = False

    def drive(self, run: CaseRun, outcome: Outcome) -> None:
        outcome.result = evaluate(
            run.make_policy(), run.make_env(0), hooks=outcome.recorder, **run.arguments
        )


class Hosted(SingleLane):
    """Env and model built by rollmesh, on one thread that they share."""

    name = "hosted"

    def drive(self, run: CaseRun, outcome: Outcome) -> None:
        outcome.result = evaluate(
            run.make_model,
            run.factory,
            model_kwargs={},
            hooks=outcome.recorder,
            **run.arguments,
        )


class Concurrent(SingleLane):
    """An env on its own thread and a model on the caller's."""

    name = "concurrent"

    def drive(self, run: CaseRun, outcome: Outcome) -> None:
        outcome.result = evaluate(
            run.make_policy(), run.factory, hooks=outcome.recorder, **run.arguments
        )


class ByHand(SingleLane):
    """A `Session` turned by hand."""

    name = "session"

    def drive(self, run: CaseRun, outcome: Outcome) -> None:
        self.turn(run, run.factory, outcome)

    def turn(self, run: CaseRun, env: Any, outcome: Outcome) -> None:
        """Turn the case's episodes in an env."""
        plan = run.seeds if run.seeds is not None else [None] * run.episodes
        session = Session(
            run.make_model(),
            env,
            execution_horizon=run.horizon,
            max_episode_steps=run.max_steps,
            limits=run.own_limits,
        )
        with session:
            try:
                for index, seed in enumerate(plan):
                    options = run.options[index] if run.options else None
                    self._turn_episode(session, outcome, index, (seed, options))
            finally:
                outcome.result = EvalResult(episodes=session.episodes)

    @staticmethod
    def _turn_episode(
        session: Session, outcome: Outcome, index: int, start: tuple[Any, Any]
    ) -> None:
        observation, _ = session.reset(seed=start[0], options=start[1])
        t = 0
        while not session.done:
            action = session.predict()
            step = session.step()
            outcome.recorder.add(
                episode=index,
                t=t,
                obs=observation,
                action=action,
                reward=step.reward,
                terminated=step.terminated,
                truncated=step.truncated,
                next_obs=step.observation,
                info=step.info,
            )
            observation, t = step.observation, t + 1


class SeveralLanes:
    """What is quick with every case."""

    def is_slow(self, case_id: str) -> bool:
        del case_id
        return False


class Lanes(SeveralLanes):
    """Independent lanes, a thread each."""

    name = "lanes"
    is_routeless = False

    def applies(self, run: CaseRun) -> bool:
        return run.lanes > 1 and not run.run.get("manual")

    def refuses(self, run: CaseRun) -> str | None:
        del run
        return None

    def drive(self, run: CaseRun, outcome: Outcome) -> None:
        outcome.result = evaluate(
            run.make_policy(),
            run.factory,
            num_envs=run.lanes,
            hooks=outcome.recorder,
            **run.arguments,
        )


class Vector(SeveralLanes):
    """A Gymnasium SyncVectorEnv of one autoreset mode."""

    is_routeless = False

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.name = f"{mode.lower()} vector"

    def applies(self, run: CaseRun) -> bool:
        named = run.run.get("modes") or [run.run.get("mode")]
        modes = {str(mode).upper() for mode in named}
        return self.mode in modes and not run.run.get("manual")

    def refuses(self, run: CaseRun) -> str | None:
        if run.deadlines:
            return "a call on the caller's thread cannot be interrupted: hard limits need a factory"
        asked = [
            name
            for name, value in (
                ("seeds", run.seeds),
                ("max_steps", run.max_steps),
                ("options", run.options),
            )
            if value is not None
        ]
        if self.mode == "SAME_STEP" and asked:
            return f"a SAME_STEP env resets itself and takes no {', '.join(asked)} (rule R2)"
        return None

    def drive(self, run: CaseRun, outcome: Outcome) -> None:
        outcome.result = evaluate(
            run.make_policy(),
            make_vector_env(run, self.mode),
            hooks=outcome.recorder,
            **run.arguments,
        )


class VectorPort(SeveralLanes):
    """The port of a vector env, driven by the case's own `drive`, without a route."""

    name = "vector port"
    is_routeless = True

    def applies(self, run: CaseRun) -> bool:
        drive = getattr(run.case, "drive", None)
        return bool(run.run.get("manual")) and drive is not None and "mode" in run.run

    def refuses(self, run: CaseRun) -> str | None:
        del run
        return None

    def drive(self, run: CaseRun, outcome: Outcome) -> None:
        env = make_vector_env(run, str(run.run.get("mode", "NEXT_STEP")))
        outcome.answer = run.case.drive(PortAsVectorEnv(env))


class PortAsVectorEnv:
    """The port of a vector env, with the methods of a Gymnasium one."""

    def __init__(self, env: Any) -> None:
        self._port = open_env(env)
        contract = self._port.contract
        self.num_envs = contract.num_envs
        self._ids = tuple(f"episode-{lane}" for lane in range(self.num_envs))
        self._observations = contract.observation_space.codec
        self._actions = contract.action_space.codec

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        """Reset all lanes; lane i gets `seed` + i."""
        count = self.num_envs
        reply = self._port.reset(
            ResetRequest(
                episode_ids=self._ids,
                seeds=() if seed is None else tuple(range(seed, seed + count)),
                options=() if options is None else (options,) * count,
            )
        )
        return self._observations.decode_stacked(reply.observation, count, copy=True), reply.infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, Any]:
        """Step all lanes."""
        count = self.num_envs
        action = self._actions.encode_stacked(actions, count)
        reply = self._port.step(StepRequest(action=action, episode_ids=self._ids))
        ends = {end.env_index: end for end in reply.completions}
        return (
            self._observations.decode_stacked(reply.observation, count, copy=True),
            np.array(reply.rewards),
            np.array([lane in ends and ends[lane].terminated for lane in range(count)]),
            np.array([lane in ends and ends[lane].truncated for lane in range(count)]),
            reply.infos,
        )


def make_vector_env(run: CaseRun, mode: str) -> Any:
    """Build a Gymnasium vector env of the case's lanes."""
    from gymnasium.vector import AutoresetMode, SyncVectorEnv

    makers = [partial(run.make_env, lane) for lane in range(run.lanes)]
    return SyncVectorEnv(makers, autoreset_mode=AutoresetMode[mode.upper()])
