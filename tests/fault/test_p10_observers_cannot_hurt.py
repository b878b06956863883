"""P10: observers cannot hurt. Whatever hooks do, the run has the same trace and the same results.

The last test measures what `BackgroundHooks` adds; it prints and does not judge.
"""

from __future__ import annotations

import io
import os
import sys
import threading
import time

import gymnasium
import msgspec
import numpy as np
import pytest

import rollmesh
from rollmesh import observers
from rollmesh.observers.tracker import Tracker
from rollmesh.runtime.hooks import EVENTS, Hooks
from rollmesh.runtime.trace import TraceHash
from rollmesh.viewer.live.tally import Tally
from rollmesh.viewer.live.watching import watching

pytestmark = pytest.mark.fault

EPISODES = 12
SPACES = {"observation_space", "action_space", "route"}


class Env(gymnasium.Env):
    """Gives its own buffer as every observation, and infos with something to spoil."""

    observation_space = gymnasium.spaces.Box(-1e6, 1e6, (3,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.length = 0, int(self.np_random.integers(2, 9))
        self.x = self.np_random.random(3).astype(np.float32)
        return self.x, {"first": [1, 2]}

    def step(self, action):
        self.t += 1
        self.x += float(np.sum(action))
        info = {
            "is_success": self.length > 4,
            "forces": np.ones(2),
            "deep": {"list": [1, {"a": 2}]},
        }
        return self.x, float(self.x.sum()), self.t >= self.length, False, info


def policy(observation):
    return np.tanh(observation[:2] * 0.37)


def of_all_events(do):
    """Return a hooks object that does something at every event."""
    methods = {name: lambda self, event, n=name: do(n, event) for name in EVENTS}
    return type("Misbehaving", (), methods)()


# ------------------------------------------------------------------------------- misdeeds


def raising(name, event):
    raise RuntimeError(f"no {name} for me")


def exiting(name, event):
    sys.exit(3)


def blocking(name, event):
    time.sleep(0.002)


def spoil(value, depth=0):
    """Overwrite whatever can be reached from an event and can be written."""
    if depth > 8:
        return
    if isinstance(value, np.ndarray):
        try:
            value[...] = 7
        except ValueError:
            value.flags.writeable = False
    elif isinstance(value, dict):
        for item in list(value.values()):
            spoil(item, depth + 1)
        value.clear()
        value["is_success"] = True
    elif isinstance(value, list):
        for item in list(value):
            spoil(item, depth + 1)
        value.clear()
    elif isinstance(value, tuple):
        for item in value:
            spoil(item, depth + 1)
    elif isinstance(value, msgspec.Struct):
        for field in value.__struct_fields__:
            if field not in SPACES:
                spoil(getattr(value, field), depth + 1)
            with pytest.raises(AttributeError):
                setattr(value, field, None)


def mutating(name, event):
    spoil(event)


class Leaking:
    """Keeps every event, opens files and starts threads."""

    def __init__(self):
        self.kept, self.files, self.threads, self.gate = [], [], [], threading.Event()

    def __call__(self, name, event):
        self.kept.append((name, event, bytearray(100_000)))
        if len(self.files) < 100:
            self.files.append(open(os.devnull, "rb"))  # noqa: SIM115, PTH123
            self.threads.append(threading.Thread(target=self.gate.wait, args=(60,), daemon=True))
            self.threads[-1].start()

    def mend(self):
        self.gate.set()
        for file in self.files:
            file.close()
        for thread in self.threads:
            thread.join(10)


class NoTerminal(io.StringIO):
    """A stream that takes nothing."""

    def write(self, text):
        raise BrokenPipeError("nobody reads this")


class NoServer(Tracker):
    """A tracker that fails in all it does."""

    def log_start(self, facts):
        raise OSError("no server")

    def log_episode(self, place, values):
        raise OSError("no server")

    def log_summary(self, values):
        raise OSError("no server")

    def finish(self):
        raise OSError("no server")


# ----------------------------------------------------------------------------------- P10

WAYS = [{}, {"num_envs": 3}]


def told(hooks, way):
    """Run the plan; return trace hash and results. The trace comes first in the chain."""
    trace = TraceHash()
    result = rollmesh.evaluate(
        policy, Env, episodes=EPISODES, base_seed=3, hooks=[trace, *hooks], **way
    )
    episodes = [
        (e.index, e.seed, e.steps, e.total_reward, e.success, e.error) for e in result.episodes
    ]
    return trace.hexdigest(), episodes


@pytest.fixture(scope="module")
def undisturbed():
    return [told([], way) for way in WAYS]


@pytest.mark.parametrize("way", range(len(WAYS)))
@pytest.mark.parametrize("do", [raising, exiting, blocking, mutating])
@pytest.mark.parametrize("in_background", [False, True])
def test_p10_misbehaving_hooks_change_nothing(undisturbed, do, way, in_background, caplog):
    hook = of_all_events(do)
    if in_background:
        with rollmesh.BackgroundHooks(hook) as background:
            assert told([background], WAYS[way]) == undisturbed[way]
    else:
        assert told([hook], WAYS[way]) == undisturbed[way]
    assert ("hooks.failed" in caplog.text) == (do in {raising, exiting})


@pytest.mark.parametrize("way", range(len(WAYS)))
def test_p10_leaking_hooks_change_nothing(undisturbed, way):
    leaking = Leaking()
    try:
        assert told([of_all_events(leaking)], WAYS[way]) == undisturbed[way]
        assert len(leaking.kept) > 100
        events = [event for name, event, _ in leaking.kept if name == "observation_emitted"]
        assert len({event.observation[0].tobytes() for event in events}) > 20, "each its own"
    finally:
        leaking.mend()


def test_p10_hooks_in_the_background_that_hang_for_ever_hold_nothing(undisturbed):
    gate = threading.Event()
    background = rollmesh.BackgroundHooks(of_all_events(lambda *_: gate.wait(60)), max_queue=8)
    try:
        assert told([background], {}) == undisturbed[0]
        assert sum(background.dropped.values()) > 0
    finally:
        gate.set()
        assert background.close()


def test_p10_a_viewer_without_a_terminal_and_a_tracker_without_a_server_change_nothing(
    undisturbed, caplog
):
    tally = Tally(EPISODES)
    tracker = NoServer()
    with watching(tally, notes=NoTerminal(), json_lines=NoTerminal().write) as painter:
        painter.note("a line that nobody takes")
        assert told([tally, tracker], {}) == undisturbed[0]
    tracker.close()
    assert tally.read()[0].done == EPISODES
    assert caplog.text.count("viewer.failed") == 2
    assert caplog.text.count("tracker.failed") == 1


def test_p10_observers_of_other_tools_change_nothing(undisturbed):
    pytest.importorskip("prometheus_client")
    pytest.importorskip("opentelemetry")
    with observers.open("prometheus") as one, observers.open("opentelemetry") as other:
        assert told([one, other], {}) == undisturbed[0]


# ------------------------------------------------------------------------------ what it costs


def seconds_of(hooks):
    """Return the processor time of all threads: what other programs do is not in it."""
    started = time.process_time()
    rollmesh.evaluate("random", "CartPole-v1", episodes=200, base_seed=1, hooks=hooks)
    return time.process_time() - started


def test_p10_what_background_hooks_add_is_measured():
    class Idle(Hooks):
        def episode_completed(self, event):
            del event

    class IdleEveryStep(Hooks):
        def step_completed(self, event):
            del event

    def background(inner):
        with rollmesh.BackgroundHooks(inner) as hooks:
            return seconds_of([hooks])

    kinds = {
        "none": lambda: seconds_of([]),
        "tally": lambda: seconds_of([Tally(200)]),
        "background, episodes": lambda: background(Idle()),
        "background, every step": lambda: background(IdleEveryStep()),
        "the same hook inline, every step": lambda: seconds_of([IdleEveryStep()]),
    }
    seen = {name: [] for name in kinds}
    for _ in range(6):  # in turn, so that the machine's moods fall on all alike
        for name, run in kinds.items():
            seen[name].append(run())
    base = min(seen["none"])
    print()
    for name, values in seen.items():
        print(f"{name:34} {min(values):.4f} s of processor time  {min(values) / base - 1:+.1%}")
    assert all(min(values) > 0 for values in seen.values())
