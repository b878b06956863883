"""Vector envs as a port: each autoreset mode, masked resets, infos per lane."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import DictInfoToList, NormalizeObservation, RecordEpisodeStatistics

from rollmesh import ports
from rollmesh.endpoint.envs.vector_env import VectorEnvPort
from rollmesh.endpoint.reporting import OnceReporter
from rollmesh.errors import EndpointFault, InvalidSpec
from rollmesh.ports import NO_INFO, PARTIAL_RESET
from rollmesh.spaces.conformance import Checker
from tests.unit.env_toys import Count, observations, reset_request, step_request

# Python 3.12 and later warn of fork where other threads are alive; the workers touch none.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

MODES = list(AutoresetMode)


def sync(*lengths, mode=AutoresetMode.DISABLED, cls=Count, **kw):
    makers = [lambda i=i, n=n: cls(n, lane=i) for i, n in enumerate(lengths)]
    return SyncVectorEnv(makers, autoreset_mode=mode, **kw)


@pytest.fixture
def async_envs():
    made = []

    def make(*lengths, mode=AutoresetMode.DISABLED, cls=Count, **kw):
        makers = [lambda i=i, n=n: cls(n, lane=i) for i, n in enumerate(lengths)]
        made.append(AsyncVectorEnv(makers, autoreset_mode=mode, context="fork", **kw))
        return made[-1]

    yield make
    for env in made:
        if not env.closed:
            env.close(terminate=True)


class Fresh(Count):
    def _obs(self):
        return super()._obs().copy()


def step(port, n=2):
    return port.step(step_request(port, *[1] * n))


def ends(reply):
    return {end.env_index: (end.terminated, end.truncated) for end in reply.completions}


# ------------------------------------------------------------------------------ contract


@pytest.mark.parametrize("mode", MODES)
def test_the_contract_is_one_lanes(mode):
    port = VectorEnvPort(sync(2, 3, mode=mode))
    contract = port.contract
    assert contract.num_envs == 2
    assert contract.autoreset_mode.name == mode.name
    assert contract.observation_space.codec.row_bytes == 8
    assert (PARTIAL_RESET in port.capabilities) == (mode is not AutoresetMode.SAME_STEP)
    port.close(1.0)


@pytest.mark.parametrize(
    "name", ["NextStep", "next_step", "NEXT_STEP", ports.AutoresetMode.NEXT_STEP]
)
def test_modes_are_read_in_every_spelling(name):
    env = sync(1)
    env.metadata["autoreset_mode"] = name
    assert VectorEnvPort(env).contract.autoreset_mode is ports.AutoresetMode.NEXT_STEP


def test_an_undeclared_mode_is_next_step_and_reported():
    env, seen = sync(1), []
    del env.metadata["autoreset_mode"], env.autoreset_mode
    port = VectorEnvPort(env, reporter=OnceReporter(lambda p, d: seen.append(d)))
    assert port.contract.autoreset_mode is ports.AutoresetMode.NEXT_STEP
    assert "declares none; taken as NEXT_STEP" in seen[0]


def test_an_unknown_mode_is_refused():
    env = sync(1)
    env.metadata["autoreset_mode"] = "sometimes"
    with pytest.raises(InvalidSpec, match="wants NEXT_STEP, SAME_STEP or DISABLED, got 'some"):
        VectorEnvPort(env)


# --------------------------------------------------------------------------------- modes


def test_c01_c04_disabled_reports_the_end_and_resets_named_lanes_only():
    env = sync(2, 5)
    port = VectorEnvPort(env)
    first = port.reset(reset_request(2, seeds=(7, 8)))
    assert observations(port, first, 2) == [[0, 7], [0, 8]]
    step(port)
    reply = step(port)
    assert ends(reply) == {0: (True, False)}
    assert reply.completions[0].final_observation is None
    assert reply.completions[0].final_info == {"t": 2, "is_success": True}
    assert observations(port, reply, 2) == [[2, 7], [2, 8]]
    again = port.reset(reset_request(1, env_indices=(0,), seeds=(9,)))
    assert observations(port, again, 1) == [[0, 9]]
    assert again.infos == ({"lane": 0},)
    assert again.response_bytes == 8
    assert observations(port, step(port), 2) == [[1, 9], [3, 8]]


def test_c01_next_step_rolls_by_stepping():
    port = VectorEnvPort(sync(2, 5, mode=AutoresetMode.NEXT_STEP))
    port.reset(reset_request(2))
    step(port)
    assert ends(step(port)) == {0: (True, False)}
    roll = step(port)
    assert roll.rewards == (0.0, 1.0)
    assert ends(roll) == {}
    assert observations(port, roll, 2) == [[0, -1], [3, -1]]


def test_c13_next_step_a_masked_reset_takes_the_place_of_the_roll():
    port = VectorEnvPort(sync(2, 5, mode=AutoresetMode.NEXT_STEP))
    port.reset(reset_request(2))
    step(port)
    step(port)
    port.reset(reset_request(1, env_indices=(0,), seeds=(4,)))
    reply = step(port)
    assert reply.rewards == (1.0, 1.0)
    assert observations(port, reply, 2) == [[1, 4], [3, -1]]


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_c02_c04_same_step_tells_how_the_episode_ended(kind, async_envs):
    # Count reuses its buffer, which Gymnasium overwrites before a worker has sent it.
    make, cls = (sync, Count) if kind == "sync" else (async_envs, Fresh)
    port = VectorEnvPort(make(2, 3, mode=AutoresetMode.SAME_STEP, cls=cls))
    port.reset(reset_request(2))
    assert step(port).completions == ()
    reply = step(port)
    (end,) = reply.completions
    assert end.env_index == 0
    assert port.contract.observation_space.codec.decode(end.final_observation).tolist() == [2, -1]
    assert end.final_info == {"t": 2, "is_success": True}
    assert observations(port, reply, 2) == [[0, -1], [2, -1]]
    assert reply.infos == ({"lane": 0}, {"t": 2})
    (end,) = step(port).completions
    assert end.env_index == 1
    assert end.final_info == {"t": 3, "is_success": False}


def test_c04_same_step_tells_the_end_where_infos_are_a_list_of_dicts_too():
    port = VectorEnvPort(DictInfoToList(sync(2, 3, mode=AutoresetMode.SAME_STEP)))
    port.reset(reset_request(2))
    assert step(port).completions == ()
    reply = step(port)
    (end,) = reply.completions
    assert port.contract.observation_space.codec.decode(end.final_observation).tolist() == [2, -1]
    assert end.final_info == {"t": 2, "is_success": True}
    assert reply.infos == ({"lane": 0}, {"t": 2})


@pytest.mark.parametrize("mode", [AutoresetMode.DISABLED, AutoresetMode.NEXT_STEP])
def test_async_masked_resets(async_envs, mode):
    port = VectorEnvPort(async_envs(1, 5, mode=mode))
    port.reset(reset_request(2, seeds=(1, 2)))
    assert ends(step(port)) == {0: (True, False)}
    again = port.reset(reset_request(1, env_indices=(0,), seeds=(6,)))
    assert observations(port, again) == [[0, 6]]
    reply = step(port)
    assert observations(port, reply, 2) == [[1, 6], [2, 2]]
    assert reply.rewards == (1.0, 1.0)
    port.close(1.0)


def test_async_without_shared_memory_is_not_masked_in_next_step(async_envs):
    env = async_envs(2, 2, mode=AutoresetMode.NEXT_STEP, shared_memory=False)
    assert VectorEnvPort(env).capabilities == frozenset()
    env = async_envs(2, 2, mode=AutoresetMode.DISABLED, shared_memory=False)
    assert VectorEnvPort(env).capabilities == {PARTIAL_RESET}


def test_observations_are_copies_where_the_env_reuses_its_buffers():
    port = VectorEnvPort(sync(5, 5, copy=False))
    first = port.reset(reset_request(2))
    step(port)
    assert observations(port, first, 2) == [[0, -1], [0, -1]]


class Frames(Count):
    """Shows a large image that tells its steps."""

    def __init__(self, length, **kw):
        super().__init__(length, **kw)
        self.observation_space = gym.spaces.Box(0, 255, (200, 200), np.uint8)

    def reset(self, *, seed=None, options=None):
        info = super().reset(seed=seed, options=options)[1]
        return np.zeros((200, 200), np.uint8), info

    def step(self, action):
        seen = super().step(action)
        return np.full((200, 200), 1 + seen[0][0], np.uint8), *seen[1:]


def test_observations_of_steps_are_lent_only_to_whoever_asks():
    port = VectorEnvPort(sync(50, 50, cls=Frames, copy=False))
    port.lend_observations()
    first = port.reset(reset_request(2)).observation[0]
    lent = step(port).observation[0]
    seen = lent.max()
    again = step(port).observation[0]
    assert np.shares_memory(lent, again)
    assert lent.max() == seen + 1
    assert not lent.flags.writeable
    assert first.max() == 0


# -------------------------------------------------------------------------------- resets


def test_seeds_are_exact_and_in_lane_order():
    env = sync(5, 5, 5)
    port = VectorEnvPort(env)
    port.reset(reset_request(3, seeds=(1, 2, 3)))
    port.reset(reset_request(2, env_indices=(0, 2), seeds=(2**40, 5)))
    assert [e.seed for e in env.envs] == [2**40, 2, 5]
    assert type(env.envs[0].seed) is int


def test_what_a_lane_does_to_its_options_reaches_no_later_reset():
    port = VectorEnvPort(sync(2, 3))
    port.reset(reset_request(2, options=(given := {"goal": [1]}, given)))
    port.env.envs[0].options["goal"].append(2)
    assert given == {"goal": [1]}


def test_equal_options_are_one_reset():
    env = sync(5, 5)
    port = VectorEnvPort(env)
    given = ({"level": 1}, {"level": 1})
    port.reset(reset_request(2, options=given))
    assert [e.options for e in env.envs] == [{"level": 1}] * 2
    port.reset(reset_request(2, options=(None, None)))
    assert [e.options for e in env.envs] == [None, None]


@pytest.mark.parametrize("first", [True, False])
def test_options_that_differ_are_several_masked_resets(first):
    env = sync(5, 5, 5)
    port = VectorEnvPort(env)
    if not first:
        port.reset(reset_request(3))
    options = ({"level": 1}, None, {"level": 1, "map": np.zeros(2)})
    reply = port.reset(reset_request(3, options=options, seeds=(4, 5, 6)))
    assert observations(port, reply, 3) == [[0, 4], [0, 5], [0, 6]]
    assert [(e.options or {}).get("level") for e in env.envs] == [1, None, 1]
    assert not any("reset_mask" in (e.options or {}) for e in env.envs)
    assert [info["lane"] for info in reply.infos] == [0, 1, 2]


class Listing(Count):
    """Keeps the options of every reset."""

    def reset(self, *, seed=None, options=None):
        self.__dict__.setdefault("seen", []).append(options)
        return super().reset(seed=seed, options=options)


@pytest.mark.parametrize(
    ("options", "seen"),
    [
        (({"a": 1}, None), [[None, {"a": 1}], [None]]),
        (({"a": 1}, {"b": 2}), [[None, {"a": 1}], [None, {"b": 2}]]),
    ],
)
def test_no_lane_is_reset_with_the_options_of_another(options, seen):
    env = sync(5, 5, cls=Listing)
    VectorEnvPort(env).reset(reset_request(2, options=options))
    assert [e.seen for e in env.envs] == seen


def test_an_env_without_masked_resets_says_so():
    class Own(SyncVectorEnv):
        supports_reset_mask = False

    port = VectorEnvPort(Own([Count, Count], autoreset_mode=AutoresetMode.DISABLED))
    assert port.capabilities == frozenset()
    port.reset(reset_request(2))
    for request in (
        reset_request(1, env_indices=(1,)),
        reset_request(2, options=({"a": 1}, {"a": 2})),
    ):
        with pytest.raises(EndpointFault, match="it takes no reset_mask") as info:
            port.reset(request)
        assert info.value.outcome == "not_done"


def test_wrappers_are_seen_through_and_refusing_ones_respected():
    assert PARTIAL_RESET in VectorEnvPort(RecordEpisodeStatistics(sync(2, 2))).capabilities
    refusing = NormalizeObservation(sync(2, 2, mode=AutoresetMode.NEXT_STEP))
    assert VectorEnvPort(refusing).capabilities == frozenset()


def test_episode_statistics_belong_to_their_lane():
    port = VectorEnvPort(RecordEpisodeStatistics(sync(1, 3)))
    port.reset(reset_request(2))
    reply = step(port)
    assert reply.infos[0]["episode"]["r"] == 1.0
    assert reply.infos[0]["episode"]["l"] == 1
    assert "episode" not in reply.infos[1]


# --------------------------------------------------------------------------------- infos


class Keys(Count):
    """Case C37: keys and types differ between lanes and over time."""

    def step(self, action):
        o, r, te, tr, _ = super().step(action)
        info = {"a": [1, None, 0.5][self.t % 3]} if self.lane == 0 else {"b": "text"}
        if te and self.lane == 0:
            info["is_success"] = True
        return o, r, te, tr, info


@pytest.mark.parametrize("mode", MODES)
def test_c37_each_info_holds_its_own_lanes_values(mode):
    port = VectorEnvPort(sync(2, 4, mode=mode, cls=Keys))
    port.reset(reset_request(2))
    assert step(port).infos == ({"a": None}, {"b": "text"})
    reply = step(port)
    assert reply.infos[1] == {"b": "text"}
    (end,) = reply.completions
    assert end.final_info == {"a": 0.5, "is_success": True}
    assert end.final_info["is_success"] is True


def test_no_infos_cost_nothing():
    class Silent(Count):
        def reset(self, **kw):
            return super().reset(**kw)[0], {}

    port = VectorEnvPort(sync(2, 2, cls=Silent))
    assert port.reset(reset_request(2)).infos == (NO_INFO, NO_INFO)


# --------------------------------------------------------------- rewards, flags, spaces


class Replies:
    """A vector env of the bare shape that says what it is told."""

    num_envs = 2
    metadata = {"autoreset_mode": AutoresetMode.DISABLED}
    single_observation_space = spaces.Box(-9, 9, (1,), np.float32)
    single_action_space = spaces.Discrete(2)

    def __init__(self, **says):
        self.says = {
            "obs": np.zeros((2, 1), np.float32),
            "rewards": np.ones(2),
            "terminated": np.zeros(2, bool),
            "truncated": np.zeros(2, bool),
            "infos": {},
            **says,
        }

    def reset(self, *, seed=None, options=None):
        return np.zeros((2, 1), np.float32), {}

    def step(self, action):
        return tuple(self.says.values())


@pytest.mark.parametrize(
    "rewards", [np.float32([1, 2]), [1, 2], (1.0, 2.0), np.array([1, 2]), np.array([1, 2], object)]
)
def test_c25_rewards_become_floats(rewards):
    got = step(VectorEnvPort(Replies(rewards=rewards))).rewards
    assert got == (1.0, 2.0)
    assert all(type(reward) is float for reward in got)


@pytest.mark.parametrize("flags", [[1, 0], np.array([1, 0], np.uint8), (np.bool_(1), np.bool_(0))])
def test_c23_flags_become_bools(flags):
    (end,) = step(VectorEnvPort(Replies(truncated=flags))).completions
    assert (end.env_index, end.terminated, end.truncated) == (0, False, True)
    assert end.truncated is True


@pytest.mark.parametrize(
    ("says", "match"),
    [
        ({"rewards": np.ones((2, 1))}, r"rewards: wants shape \(2,\).*got shape \(2, 1\)"),
        ({"rewards": 1.0}, r"rewards: wants one entry per lane, got float 1.0"),
        ({"terminated": np.zeros(3, bool)}, r"terminated: wants shape \(2,\).*got shape \(3,\)"),
        ({"truncated": [0.5, 0]}, "truncated: wants a bool.*got float 0.5"),
        ({"obs": np.zeros((3, 1), np.float32)}, "observation"),
        ({"infos": [{}]}, "info: wants a dict or 2 dicts"),
    ],
)
def test_nonsense_is_one_clear_error(says, match):
    with pytest.raises(EndpointFault, match=match) as info:
        step(VectorEnvPort(Replies(**says), checker=Checker()))
    assert info.value.outcome == "done"


def test_c34_a_nan_reward_is_kept_and_reported_once():
    seen = []
    port = VectorEnvPort(
        Replies(rewards=np.array([1, np.nan])), reporter=OnceReporter(lambda p, d: seen.append(p))
    )
    step(port)
    assert np.isnan(step(port).rewards[1])
    assert seen == ["reward"]


def test_a_batched_final_observation_is_read_too():
    env = Replies(
        terminated=np.array([False, True]),
        infos={"final_observation": np.float32([[3], [4]]), "final_info": [None, {"x": 1}]},
    )
    env.metadata = {"autoreset_mode": "same_step"}
    port = VectorEnvPort(env)
    (end,) = step(port).completions
    assert port.contract.observation_space.codec.decode(end.final_observation).tolist() == [4]
    assert end.final_info == {"x": 1}


def test_a_same_step_env_that_tells_no_end_leaves_it_empty():
    env = Replies(terminated=np.array([False, True]))
    env.metadata = {"autoreset_mode": "same_step"}
    (end,) = step(VectorEnvPort(env)).completions
    assert end.final_observation is None
    assert end.final_info is None


class Nested(Count):
    """Observations of every batching kind."""

    def __init__(self, length=3, lane=0):
        super().__init__(length, lane)
        self.observation_space = spaces.Dict(
            {
                "text": spaces.Text(8),
                "pair": spaces.Tuple((spaces.Discrete(9), spaces.MultiBinary(2))),
                "list": spaces.Sequence(spaces.Discrete(5)),
            }
        )
        self.action_space = spaces.Dict({"go": spaces.Box(-1, 1, (2,)), "say": spaces.Text(4)})

    def _obs(self):
        pair = (np.int64(self.t), np.array([1, 0], np.int8))
        return {"text": f"at{self.lane}", "pair": pair, "list": (1,) * self.lane}


@pytest.mark.parametrize("mode", MODES)
def test_nested_spaces_go_through_in_every_mode(mode):
    env = sync(2, 3, mode=mode, cls=Nested)
    port = VectorEnvPort(env, checker=Checker("observation", "strict"))
    port.reset(reset_request(2))
    action = {"go": np.float32([0.5, -0.5]), "say": "hi"}
    port.step(step_request(port, action, action))
    reply = port.step(step_request(port, action, action))
    codec = port.contract.observation_space.codec
    rows = [codec.decode(reply.observation, row) for row in range(2)]
    assert [row["text"] for row in rows] == ["at0", "at1"]
    assert [len(row["list"]) for row in rows] == [0, 1]
    over = mode is AutoresetMode.SAME_STEP
    assert [int(row["pair"][0]) for row in rows] == [0 if over else 2, 2]
    if over:
        final = codec.decode(reply.completions[0].final_observation)
        assert int(final["pair"][0]) == 2
    assert env.envs[0].actions[0]["say"] == "hi"


def test_real_cartpoles_equal_the_vector_env():
    makers = [lambda: gym.make("CartPole-v1")] * 3
    port = VectorEnvPort(SyncVectorEnv(makers, autoreset_mode=AutoresetMode.NEXT_STEP))
    bare = SyncVectorEnv(makers, autoreset_mode=AutoresetMode.NEXT_STEP)
    want, _ = bare.reset(seed=[1, 2, 3])
    reply = port.reset(reset_request(3, seeds=(1, 2, 3)))
    for _ in range(60):
        assert observations(port, reply, 3) == want.tolist()
        want, rewards, terminated, truncated, _ = bare.step(np.array([0, 1, 0]))
        reply = port.step(step_request(port, 0, 1, 0))
        assert reply.rewards == tuple(rewards)
        assert sorted(ends(reply)) == np.flatnonzero(terminated | truncated).tolist()
    port.close(1.0)
    bare.close()
