"""P8: one plan gives the same results, whatever runs it: one trace hash over 12 arrangements.

| | one route, 1 or 8 lanes | three workers, 1 or 8 lanes each, with a retry |
|---|---|---|
| memory | an `EnvServer` on the memory transport | three such servers, a session a lane |
| local | the same on a unix socket | three worker processes |
| gRPC | the same over gRPC on loopback TCP | three such servers, a session a lane |

The retry: a worker process kills itself in the first attempt of one episode; a server is closed and
another one opened at its address while it runs that episode (and its other sessions theirs).
The model is in this process throughout; that it may be served, or have a process of its own, is
shown for one route and for workers.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import signal

import pytest

import rollmesh
from rollmesh.endpoint.models.model_process import ModelProcess
from rollmesh.endpoint.servers.env_server import EnvServer
from rollmesh.endpoint.servers.model_server import ModelServer
from rollmesh.fleet.plan import Plan, Task
from rollmesh.fleet.settings import FleetSettings
from rollmesh.runtime.hooks import Hooks
from rollmesh.runtime.trace import TraceHash
from tests.conformance.links import LINKS, Robot, RobotModel

PLAN = Plan(tasks=(Task(episodes=30, options={"offset": 0.25}),), seed=11)
SEEDS = tuple([one.env_seed for one in PLAN.episodes])
DEADLY = SEEDS[13]
WORKERS = 3
LINK_OF = {"memory": "memory", "local": "unix", "grpc": "grpc"}
MODEL = "tests.conformance.links:RobotModel"


class Mortal(Robot):
    """Kills its process in its second step of one seed, the first time."""

    def __init__(self, *, flag):
        super().__init__()
        self.flag = flag
        self.seed = None

    def reset(self, *, seed=None, options=None):
        self.seed = seed
        return super().reset(seed=seed, options=options)

    def step(self, action):
        if self.t == 1 and self.seed == DEADLY:
            with contextlib.suppress(FileExistsError):
                os.close(os.open(self.flag, os.O_CREAT | os.O_EXCL))
                os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


class ServerLost(Hooks):
    """Has the server of one episode replaced in the first attempt at it."""

    def __init__(self, servers, sessions):
        self.servers, self.sessions = servers, sessions
        self.is_lost = False
        self.id = ""

    def observation_emitted(self, event):
        row = next((row for row, episode in enumerate(event.episode_ids) if episode == self.id), -1)
        if row >= 0 and event.steps[row] == 1 and not self.is_lost:
            self.is_lost = True
            self.servers[event.env_indices[row] // self.sessions].replace()

    def episode_started(self, event):
        if event.seed == DEADLY:
            self.id = event.episode_id


class Replaceable:
    """A server whose place another one can take."""

    def __init__(self, link, sessions):
        self.options = link.options(max_sessions=sessions, drain_timeout_s=0.0)
        self.server = EnvServer(Robot, link.place(), self.options).start()
        self.address = self.server.address

    def replace(self):
        self.server.close()
        self.server = EnvServer(Robot, self.address, self.options).start()

    def close(self):
        self.server.close()


class Outcome:
    """What a run came to."""

    def __init__(self, trace, result):
        self.digest = trace.hexdigest()
        self.episodes = [
            (one.index, one.seed, one.steps, one.total_reward, one.success, one.error)
            for one in result.episodes
        ]
        self.attempts = [one.attempts for one in result.episodes]
        self.width = result.num_envs


def run(model, env, *, hooks=(), **arguments):
    trace = TraceHash()
    result = rollmesh.evaluate(model, env, plan=PLAN, hooks=[trace, *hooks], **arguments)
    return Outcome(trace, result)


@functools.cache
def expected():
    """What comes of the plan in process, env by env."""
    return run(RobotModel(), Robot)


def assert_same(outcome):
    assert outcome.episodes == expected().episodes
    assert outcome.digest == expected().digest


# ------------------------------------------------------------------------------ arrangements


@pytest.fixture
def link(request, monkeypatch):
    """Give the link of a transport, with clients made to take it."""
    link = LINKS[LINK_OF[request.param]]
    for name, value in link.environment:
        monkeypatch.setenv(name, value)
    return link


def one_route(link, num_envs, model):
    with EnvServer(Robot, link.place(), link.options(num_envs=num_envs)) as server:
        return run(model, server.address)


def local_workers(num_envs, model, folder):
    return run(
        model,
        "tests.conformance.test_p08_same_plan:Mortal",
        workers=WORKERS,
        fleet=FleetSettings(lanes_per_worker=num_envs),
        env_kwargs={"flag": str(folder / "died")},
    )


def served_workers(link, num_envs, model):
    with contextlib.ExitStack() as stack:
        servers = [Replaceable(link, num_envs) for _ in range(WORKERS)]
        for server in servers:
            stack.callback(server.close)
        addresses = [server.address for server in servers for _ in range(num_envs)]
        lost = ServerLost(servers, num_envs)
        outcome = run(model, addresses, workers=WORKERS, hooks=[lost])
        assert lost.is_lost
        return outcome


@pytest.mark.parametrize("num_envs", [1, 8])
@pytest.mark.parametrize("link", LINK_OF, indirect=True)
def test_p8_one_route(link, num_envs):
    outcome = one_route(link, num_envs, RobotModel())
    assert_same(outcome)
    assert outcome.width == num_envs
    assert set(outcome.attempts) == {1}


@pytest.mark.slow
@pytest.mark.parametrize("num_envs", [1, 8])
@pytest.mark.parametrize(
    ("name", "link"), [(name, name) for name in LINK_OF], indirect=["link"], ids=list(LINK_OF)
)
def test_p8_three_workers_and_a_retry(name, link, num_envs, tmp_path):
    if name == "local":
        outcome = local_workers(num_envs, RobotModel(), tmp_path)
    else:
        outcome = served_workers(link, num_envs, RobotModel())
    assert_same(outcome)
    assert outcome.width == WORKERS * num_envs
    assert outcome.attempts[SEEDS.index(DEADLY)] == 2


# ----------------------------------------------------------------------------------- the model


@contextlib.contextmanager
def model_in(place):
    if place == "here":
        yield RobotModel()
    elif place == "served":
        with ModelServer(RobotModel, "rollmesh+unix://") as server:
            yield server.address
    else:
        process = ModelProcess(MODEL)
        process.start(60.0)
        try:
            yield process.address
        finally:
            process.close(5.0)


PLACES = ("here", "served", "own process")


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("how", ["one route", "workers"])
def test_p8_wherever_the_model_is(how, place, tmp_path):
    with model_in(place) as model:
        if how == "workers":
            assert_same(local_workers(2, model, tmp_path))
        else:
            assert_same(one_route(LINKS["unix"], 2, model))


def test_the_plan_has_episodes_of_several_lengths_and_outcomes():
    assert len({one[2] for one in expected().episodes}) > 2
    assert {one[4] for one in expected().episodes} == {False, True}
    numbers = list(itertools.chain.from_iterable(one[:2] for one in expected().episodes))
    assert len(set(numbers)) == 2 * len(SEEDS)
