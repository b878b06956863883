"""What the conformance suite compares: links, subjects and runs.

`LINKS` is the list of transports; another one is a line more.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np

import rollmesh
from rollmesh.endpoint.servers.env_server import EnvServer
from rollmesh.endpoint.servers.model_server import ModelServer
from rollmesh.endpoint.servers.server_options import ServerOptions
from rollmesh.runtime.hooks import Hooks
from rollmesh.runtime.trace import TraceHash
from rollmesh.transport.connection import DEFAULT_OPTIONS, ConnectionOptions

SIDES = ("env", "model", "both")
"""Which endpoints are served."""

_number = itertools.count()


@dataclass(frozen=True, kw_only=True)
class Link:
    """A way to reach a served endpoint.

    Attributes:
        address: Where servers listen; `{}` is a fresh number.
        connection: How the server moves messages.
        environment: Variables that make a client take this way.
    """

    address: str
    connection: ConnectionOptions = DEFAULT_OPTIONS
    environment: tuple[tuple[str, str], ...] = ()

    def options(self, **options: Any) -> ServerOptions:
        """Return a server's options for this link."""
        return ServerOptions(connection=self.connection, **options)

    def place(self) -> str:
        """Return an address to listen at."""
        return self.address.format(next(_number))


LINKS = {
    "memory": Link(address="mem://conformance-{}"),
    "unix": Link(address="rollmesh+unix://", connection=ConnectionOptions(shared_memory=False)),
    "unix_shared": Link(
        address="rollmesh+unix://", connection=ConnectionOptions(shared_threshold_bytes=1)
    ),
    "tcp": Link(address="rollmesh+tcp://127.0.0.1:0"),
    "grpc": Link(address="tcp://127.0.0.1:0", environment=(("ROLLMESH_TRANSPORT", "grpc"),)),
}


# -------------------------------------------------------------------------------------- envs

CAMERA = (160, 160, 3)


class Robot(gymnasium.Env):
    """Every kind of leaf, a camera that is large enough for shared memory, odd infos."""

    observation_space = gymnasium.spaces.Dict(
        {
            "camera": gymnasium.spaces.Box(0, 255, CAMERA, np.uint8),
            "pose": gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float32),
            "count": gymnasium.spaces.Discrete(1000, start=-3),
            "bits": gymnasium.spaces.MultiBinary(5),
            "task": gymnasium.spaces.Text(20, min_length=0),
            "pair": gymnasium.spaces.Tuple(
                (
                    gymnasium.spaces.MultiDiscrete([300, 5]),
                    gymnasium.spaces.Sequence(gymnasium.spaces.Box(0, 9, (2,), np.int16)),
                )
            ),
        }
    )
    action_space = gymnasium.spaces.Dict(
        {
            "grip": gymnasium.spaces.Discrete(2),
            "move": gymnasium.spaces.Box(-1, 1, (3,), np.float64),
        }
    )
    metadata = {"fps": 20, "names": ("left", "right")}

    def __init__(self):
        self.t = 0
        self.length = 3
        self.offset = 0.0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        self.length = 3 + int(self.np_random.integers(4))
        self.offset = 0.0 if options is None else float(options["offset"])
        return self.observe(), {"seeded": seed, "options": options}

    def step(self, action):
        self.t += 1
        assert self.action_space.contains(action)
        self.offset += float(action["move"].sum()) + int(action["grip"])
        over = self.t >= self.length
        info = {
            "t": self.t,
            "array": np.full((2, 2), self.t, np.float32),
            "nothing": None,
            "tuple": (1, (2, b"bytes")),
            "big": 2**70,
            "success": over and self.t % 2 == 0,
        }
        return self.observe(), self.offset / 3, over and self.t < 6, over and self.t >= 6, info

    def observe(self):
        draw = self.np_random
        return {
            "camera": draw.integers(0, 256, CAMERA, np.uint8),
            "pose": np.array([self.t, self.offset, np.inf], np.float32),
            "count": np.int64(self.t - 3),
            "bits": draw.integers(0, 2, 5).astype(np.int8),
            "task": "lift" * (self.t % 3),
            "pair": (
                np.array([self.t, 2]),
                tuple([np.array([n, n], np.int16) for n in range(self.t % 3)]),
            ),
        }


class Arm(gymnasium.Env):
    """A small env that only counts; its episodes end by its seed."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float64)
    action_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        self.length = 3 + int(self.np_random.integers(5))
        self.sum = 0.0
        return np.array([0.0, self.sum, self.length]), {"length": self.length}

    def step(self, action):
        self.t += 1
        self.sum += float(action.sum())
        observation = np.array([self.t, self.sum, self.length])
        return observation, self.sum, self.t >= self.length, False, {"t": self.t}


class OwnSeeds(Arm):
    """Gives its episodes seeds of its own, as nobody else can where it resets itself."""

    def __init__(self, lane):
        self.next_seed = 100 * lane

    def reset(self, *, seed=None, options=None):
        self.next_seed += 1
        return super().reset(seed=self.next_seed if seed is None else seed, options=options)


def vector_of(mode):
    """Return a factory of a vector env with three arms in an autoreset mode."""

    def make():
        lanes = [functools.partial(OwnSeeds, lane) for lane in range(3)]
        return gymnasium.vector.SyncVectorEnv(lanes, autoreset_mode=mode)

    return make


# ------------------------------------------------------------------------------------ models


class RobotModel(rollmesh.Model):
    """Acts on what it sees and on the episode's own policy seed."""

    def predict(self, observation, context):
        total = float(observation["camera"].sum() % 97) / 97 + context.policy_seed % 7 / 10
        move = np.array([total / 2, observation["pose"][0] / 10, len(observation["task"]) / 20])
        return {"grip": int(observation["bits"][0]), "move": np.clip(move, -1, 1)}


class ArmModel(rollmesh.Model):
    """Has a batch corner: a row's action does not depend on its batch."""

    def predict_batch(self, observations):
        return np.stack([observations[:, 1] + 1, observations[:, 0]], axis=1)


class ChunkModel(rollmesh.Model):
    """Returns three frames at once."""

    def predict_chunk(self, observation, horizon):
        del horizon
        return np.array([[observation[0] + k, observation[1]] for k in range(3)])


# ---------------------------------------------------------------------------------- subjects


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A model, an env and a plan.

    Attributes:
        model: Makes the model.
        env: Makes the env, or the envs of lanes.
        served: Options of its server, beside the link's.
        plan: Arguments of `evaluate`; `num_envs` is left out where the env is served.
    """

    model: Callable[[], Any]
    env: Any
    served: tuple[tuple[str, Any], ...] = ()
    plan: tuple[tuple[str, Any], ...] = ()


_SEEDS = tuple(range(40, 47))
_MODES = gymnasium.vector.AutoresetMode

SUBJECTS = {
    "scalar": Subject(
        model=RobotModel,
        env=Robot,
        plan=(("seeds", _SEEDS[:4]), ("options", [None, {"offset": 0.5}, None, {"offset": 1}])),
    ),
    "vector": Subject(model=ArmModel, env=vector_of(_MODES.DISABLED), plan=(("seeds", _SEEDS),)),
    "vector_next_step": Subject(
        model=ArmModel,
        env=vector_of(_MODES.NEXT_STEP),
        plan=(("episodes", 7), ("base_seed", 5)),
    ),
    "vector_same_step": Subject(
        model=ArmModel, env=vector_of(_MODES.SAME_STEP), plan=(("episodes", 7),)
    ),
    "lanes": Subject(
        model=ArmModel,
        env=Arm,
        served=(("num_envs", 3),),
        plan=(("seeds", _SEEDS), ("num_envs", 3)),
    ),
    "chunked": Subject(
        model=ChunkModel, env=Arm, plan=(("seeds", _SEEDS), ("execution_horizon", 2))
    ),
    "capped": Subject(model=ArmModel, env=Arm, plan=(("seeds", _SEEDS), ("max_episode_steps", 4))),
}


# --------------------------------------------------------------------------------------- runs


class Infos(Hooks):
    """Keeps every step's infos by episode."""

    def __init__(self):
        self.by_episode = {}
        self._open = {}

    def step_completed(self, event):
        for episode_id, info in zip(event.episode_ids, event.infos, strict=True):
            self._open.setdefault(episode_id, []).append(repr(dict(info)))

    def episode_completed(self, event):
        self.by_episode[event.episode_index] = self._open.pop(event.episode_id)


@dataclass(frozen=True)
class Outcome:
    """What a run came to, in what must not depend on the link."""

    digest: str
    infos: tuple[tuple[int, tuple[str, ...]], ...]
    episodes: tuple[tuple[Any, ...], ...]


def local(subject):
    """Run a subject in this process."""
    return evaluate(subject, subject.model(), subject.env, dict(subject.plan))


def remote(subject, link, side):
    """Run a subject with one or both endpoints served over a link."""
    plan = dict(subject.plan)
    model, env = subject.model(), subject.env
    with contextlib.ExitStack() as stack:
        if side in ("env", "both"):
            plan.pop("num_envs", None)
            options = link.options(**dict(subject.served))
            env = stack.enter_context(EnvServer(env, link.place(), options)).address
        if side in ("model", "both"):
            model = stack.enter_context(ModelServer(model, link.place(), link.options())).address
        return evaluate(subject, model, env, plan)


def evaluate(subject, model, env, plan):
    """Run a plan and return what came of it."""
    del subject
    trace, infos = TraceHash(), Infos()
    result = rollmesh.evaluate(model, env, hooks=[trace, infos], **plan)
    return Outcome(
        trace.hexdigest(),
        tuple([(index, tuple(infos.by_episode[index])) for index in sorted(infos.by_episode)]),
        tuple(
            [
                (one.index, one.seed, one.steps, one.total_reward, one.success, one.attempts)
                for one in result.episodes
            ]
        ),
    )
