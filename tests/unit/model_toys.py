"""A model port, and what it is asked, for the tests of clients of served models."""

from __future__ import annotations

import numpy as np

from rollmesh.endpoint.clients.client_options import client_options
from rollmesh.endpoint.clients.model_route import ModelRoute
from rollmesh.ports import (
    AdapterContext,
    EnvContract,
    EpisodeInfo,
    PredictReply,
    PredictRequest,
    ReleaseAdapterRequest,
)
from rollmesh.spaces.space import Box, Discrete

OBSERVATIONS, ACTIONS = Box((2,), np.float32, -1e9, 1e9), Discrete(3)
CONTRACT = EnvContract(id="toy", observation_space=OBSERVATIONS, action_space=ACTIONS)
OPTIONS = client_options(resume_grace_s=2.0, environ={})


class EchoPort:
    """A model port whose action is the observation's first number."""

    contract = CONTRACT

    def __init__(self):
        self.asked, self.forgotten, self.released = [], [], []

    def predict(self, request):
        rows = len(request.episode_info)
        self.asked.append([one.episode_id for one in request.episode_info])
        values = [int(OBSERVATIONS.codec.decode(request.observation, i)[0]) for i in range(rows)]
        return PredictReply(context=request.context, frames=(ACTIONS.codec.encode_many(values),))

    def reset_adapter(self, request):
        self.forgotten.extend(request.episode_ids)

    def release_adapter(self, request):
        self.released.append(request.reason)


def route(**fields):
    return ModelRoute(contract=CONTRACT, session_id="run", env_id="env-1", **fields)


def context(phase="predict", env_id="env-1"):
    return AdapterContext("run", env_id, f"{env_id}:{phase}:1")


def ask(value, episode="e0", **fields):
    return PredictRequest(
        context=context(),
        observation=OBSERVATIONS.codec.encode(np.array([value, 0], np.float32)),
        episode_info=(EpisodeInfo(episode, 1),),
        **fields,
    )


def action(reply):
    return int(ACTIONS.codec.decode(reply.frames[0], 0))


def release():
    return ReleaseAdapterRequest(context("release"), "done", 1.0)
