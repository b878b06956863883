"""The concurrent engine over a port whose answers are read by the thread that waits for them."""

from __future__ import annotations

import threading

from rollmesh.errors import OperationTimeout
from rollmesh.limits import Limits
from rollmesh.ports import REBUILD, SUBSET_STEP
from tests.driving import FakeClock, drive
from tests.toys import ToyEnv

LONG = 3_000
TICK_S = 0.001


class ReadEnv(ToyEnv):
    """Answers when it is waited for, on the thread that waits; some lanes never do.

    A fake clock goes on a little with every wait.
    """

    def __init__(self, num_envs, *, clock, hung=(), away_s=0.0, **kwargs):
        super().__init__(num_envs, capabilities=[SUBSET_STEP, REBUILD], **kwargs)
        self.clock, self.hung, self.away_s = clock, set(hung), away_s
        self.asked = []
        self.abandoned = []
        self.threads = set()

    def submit(self, method, request, callback, env_indices):
        """Take note of what was asked."""
        if method == "step" and self.hung & set(env_indices or range(len(self.lanes))):
            return
        self.asked.append((getattr(self, method), request, callback))

    def abandon(self, env_indices):
        """Forget a lane; it is well again."""
        self.abandoned.append(env_indices)
        self.steps_when_abandoned = len(self.steps)
        self.hung -= set(env_indices or range(len(self.lanes)))

    def wait(self, timeout_s):
        """Answer all that was asked."""
        self.clock.pass_s(TICK_S + self.away_s)
        self.threads.add(threading.get_ident())
        if not self.asked:
            self.clock.pass_s(max(0.0, timeout_s))
        asked, self.asked = self.asked, []
        for call, request, callback in asked:
            callback(call(request))

    def wake(self):
        """End a wait: none is longer than it takes to answer."""


def run(env, **spec):
    spec = {"base_seed": 1, "max_episodes": env.contract.num_envs, **spec}
    return drive(env, driver={"clock": env.clock}, **spec)


def test_answers_are_read_on_the_engines_thread():
    env = ReadEnv(3, clock=FakeClock())
    assert len(run(env).ok.episodes) == 3
    assert env.threads == {threading.get_ident()}


def test_a_hung_lane_is_late_also_where_others_always_have_an_answer():
    env = ReadEnv(3, clock=FakeClock(), hung=[0], length=lambda seed, lane, n: LONG)
    result = run(env, on_error="continue", limits=Limits(env_step_s=0.5))
    assert env.abandoned == [(0,)]
    (lost,) = [one for one in result.ok.episodes if one.error is not None]
    assert lost.env_index == 0
    ended = [one for one in result.ok.episodes if one.error is None]
    assert [one.steps for one in ended] == [LONG, LONG]
    assert env.steps_when_abandoned < 2 * LONG  # while they still played


def test_an_answer_that_was_there_when_the_engine_came_to_look_is_in_time():
    env = ReadEnv(2, clock=FakeClock(), away_s=100.0)
    result = run(env, limits=Limits(env_step_s=0.5, env_reset_s=0.5))
    assert not [one for one in result.ok.episodes if one.error]
    assert env.abandoned == []


def test_with_nothing_to_read_a_hung_lane_is_late():
    env = ReadEnv(1, clock=FakeClock(), hung=[0])
    failure = run(env, limits=Limits(env_step_s=0.5)).failure
    assert isinstance(failure, OperationTimeout)
    assert env.abandoned == [()]
