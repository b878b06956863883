"""What the tests of frames and transports share: spaces, values, and a message of every kind."""

from __future__ import annotations

import contextlib
import threading

import numpy as np

from rollmesh.ports import (
    AdapterContext,
    Completion,
    EpisodeInfo,
    OddValue,
    PredictReply,
    PredictRequest,
    ReleaseAdapterRequest,
    ResetAdapterRequest,
    ResetReply,
    ResetRequest,
    StepReply,
    StepRequest,
)
from rollmesh.spaces.space import Box, Discrete, MultiBinary, Text
from rollmesh.spaces.space import Dict as DictSpace
from rollmesh.wire.messages import (
    GENERATION,
    Cancel,
    Close,
    Configure,
    Done,
    ErrorBody,
    Hello,
    Kind,
    Message,
    Probe,
    ProbeReply,
    Rebuild,
    Render,
    RenderReply,
    Resolve,
    ResolveReply,
    Shutdown,
    ShutdownReply,
    Welcome,
)

SMALL = Box((4,), np.float32, -np.inf, np.inf)
BUTTON = Discrete(2)
ARM = Box((7,), np.float32, -1, 1)
ROBOT = DictSpace(
    (
        ("image", Box((8, 8, 3), np.uint8, 0, 255)),
        ("says", Text(0, 100, None)),
        ("state", Box((5,), np.float32, -np.inf, np.inf)),
        ("touch", MultiBinary((3,))),
    )
)
CAMERA = Box((256, 256, 3), np.uint8, 0, 255)
CONTEXT = AdapterContext("session", "env", "env:step_observation:000007")


def robot_value(row=0):
    """Return an observation of ROBOT."""
    return {
        "image": np.full((8, 8, 3), row, np.uint8),
        "says": "pick up the cup" + "!" * row,
        "state": np.arange(5, dtype=np.float32) + row,
        "touch": np.array([1, 0, 1], np.int8),
    }


def robot_leaves(rows=1):
    """Return a batch of ROBOT."""
    return ROBOT.codec.encode_many([robot_value(row) for row in range(rows)])


def arm_leaves(rows=1):
    """Return a batch of ARM."""
    return ARM.codec.encode_many([np.full(7, row / 8, np.float32) for row in range(rows)])


def step_request(request_id=1, *, ids=("ep-1",), rows=1, **fields):
    """Return the request of a step with ARM actions."""
    body = StepRequest(action=arm_leaves(rows), episode_ids=ids, timeout_ms=250, **fields)
    return Message(Kind.STEP, request_id, body)


def step_reply(request_id=1, *, rows=1, infos=None, completions=(), odd=()):
    """Return the reply of a step with ROBOT observations."""
    body = StepReply(
        observation=robot_leaves(rows),
        rewards=tuple(0.5 * row - 1 for row in range(rows)),
        infos=({},) * rows if infos is None else infos,
        completions=completions,
        odd=odd,
        endpoint_total_ns=1234,
    )
    return Message(Kind.STEP, request_id, body)


ODD = (OddValue(0, "nan", "observation['state']"), OddValue(1, "bounds", "observation", True))
COMPLETION = Completion(
    env_index=1,
    terminated=True,
    truncated=False,
    final_info={"is_success": True, "pose": np.arange(3.0)},
    final_observation=robot_leaves(),
    episode_id="ep-2",
    step_count=17,
    cumulative_reward=-2.5,
)


def every_message(rows=2):
    """Return a message of every kind and direction, for ROBOT observations and ARM actions."""
    ids = tuple(f"ep-{row}" for row in range(rows))
    episodes = tuple(EpisodeInfo(i, None if k else 2**80) for k, i in enumerate(ids))
    info = {"reward_ctrl": np.float64(-0.5), "names": ("a", "b")}
    bare = Completion(env_index=0, terminated=False, truncated=True)
    bodies = [
        (Kind.HELLO, Hello(generation=GENERATION, service="env", token="t" * 32)),
        (Kind.WELCOME, Welcome(generation=GENERATION, session_id="s", contract=b"\0\1")),
        (Kind.CONFIGURE, Configure(edition="2026.06", settings={"a": "b"})),
        (Kind.CONFIGURE, Done()),
        (Kind.RESET, ResetRequest(episode_ids=ids, seeds=(1, 2**90), options=(None, {"a": 1}))),
        (Kind.RESET, ResetReply(observation=robot_leaves(rows), infos=({},) * rows)),
        (Kind.RESET, ResetReply(observation=robot_leaves(rows), infos=(info, {}))),
        (Kind.STEP, step_request(ids=ids, rows=rows).body),
        (Kind.STEP, step_request(env_indices=(5,)).body),
        (Kind.STEP, step_request(ids=ids, rows=rows, env_indices=(1, 3)).body),
        (Kind.STEP, step_reply(rows=rows).body),
        (Kind.STEP, step_reply(rows=rows, infos=(info, {}), completions=(bare, COMPLETION)).body),
        (Kind.RENDER, Render(env_indices=(0,), timeout_ms=5)),
        (Kind.RENDER, RenderReply(frame=np.zeros((4, 4, 3), np.uint8))),
        (Kind.CLOSE, Close(reason="client close", timeout_ms=5)),
        (Kind.CLOSE, Done()),
        (Kind.RESOLVE, Resolve(context=CONTEXT, contract=b"xyz", execution_horizon=3)),
        (Kind.RESOLVE, ResolveReply(context=CONTEXT, native_chunk=4)),
        (
            Kind.PREDICT,
            PredictRequest(
                context=CONTEXT,
                observation=robot_leaves(rows),
                episode_info=episodes,
                timeout_ms=9,
                execution_horizon=2,
            ),
        ),
        (Kind.PREDICT, PredictReply(context=CONTEXT, frames=(arm_leaves(rows), arm_leaves(rows)))),
        (Kind.PREDICT, PredictReply(context=CONTEXT, frames=())),
        (Kind.RESET_ADAPTER, ResetAdapterRequest(CONTEXT, ids)),
        (Kind.RESET_ADAPTER, Done()),
        (Kind.RELEASE_ADAPTER, ReleaseAdapterRequest(CONTEXT, "done", None)),
        (Kind.RELEASE_ADAPTER, Done()),
        (Kind.CANCEL, Cancel(reason="late")),
        (Kind.PING, None),
        (Kind.PONG, None),
        (Kind.ERROR, ErrorBody(code="internal", message="broke", env_index=3, outcome="done")),
        (Kind.PROBE, Probe(b"x" * 100)),
        (Kind.PROBE, ProbeReply(b"y" * 100)),
        (Kind.SHUTDOWN, Shutdown(reason="enough")),
        (Kind.SHUTDOWN, ShutdownReply(is_accepted=False, detail="no")),
        (Kind.REBUILD, Rebuild(env_indices=(1,))),
        (Kind.REBUILD, Done()),
        (Kind.RESET, ResetReply(observation=robot_leaves(), infos=({},), odd=(ODD[0],))),
        (Kind.STEP, step_reply(odd=(ODD[0],)).body),
        (Kind.STEP, step_reply(rows=rows, completions=(COMPLETION,), odd=ODD).body),
    ]
    return [Message(kind, number, body) for number, (kind, body) in enumerate(bodies, 1)]


def same(one, other):
    """Tell whether two values are equal, arrays and all, with equal types."""
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return _same_arrays(one, other)
    if hasattr(one, "__struct_fields__"):
        names = set(one.__struct_fields__) - {"request_bytes", "response_bytes"}
        is_same_type = type(one) is type(other)
        return is_same_type and all(same(getattr(one, n), getattr(other, n)) for n in names)
    if hasattr(one, "items"):  # NO_INFO stands for an empty dict
        kinds = [type(key) for key in one] == [type(key) for key in other]
        return kinds and list(one) == list(other) and all(same(one[k], other[k]) for k in one)
    is_list = isinstance(one, list) and isinstance(other, list)  # leaves that were given away, too
    if type(one) is not type(other) and not is_list:
        return False
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    return one == other or repr(one) == repr(other)  # NaN, alone or in a complex number


def _same_arrays(one, other):
    if type(one) is not type(other) or one.dtype != other.dtype or one.shape != other.shape:
        return False
    if one.dtype == object:
        return all(same(a, b) for a, b in zip(one.flat, other.flat, strict=True))
    return one.tobytes() == other.tobytes()


@contextlib.contextmanager
def on_thread(function, *args):
    """Run a function on a thread for as long as the block; what it raised is raised after it."""
    failures = []

    def run():
        try:
            function(*args)
        except BaseException as error:  # noqa: BLE001 - raised below
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield thread
    thread.join(20)
    assert not thread.is_alive(), "the thread did not end"
    if failures:
        raise failures[0]
