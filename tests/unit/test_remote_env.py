"""`RemoteEnv`: a served env as a `gymnasium.Env`; `connect` and the registered id."""

from __future__ import annotations

import copy
import threading

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import rollmesh
import rollmesh.gymnasium_plugin
from rollmesh import RemoteEnv, RemoteModel, RemoteVectorEnv, connect
from rollmesh.endpoint.clients.client_options import client_options
from rollmesh.endpoint.envs.gym_env import GymEnvPort
from rollmesh.endpoint.servers.env_server import EnvServer
from rollmesh.endpoint.servers.model_server import ModelServer
from rollmesh.endpoint.servers.server_options import ServerOptions
from rollmesh.errors import EndpointFault, InvalidSpec, InvalidValue
from rollmesh.limits import Limits
from rollmesh.wire.messages import Kind
from tests.unit.env_toys import Count
from tests.unit.session_toys import ToyServer, mem_address, until

OPTIONS = client_options(resume_grace_s=2.0, environ={})


class Drawing(gym.Env):
    """Renders what it saw last; its observations are a Dict."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 7}

    def __init__(self, render_mode="rgb_array"):
        self.render_mode = render_mode
        self.observation_space = gym.spaces.Dict(
            {
                "picture": gym.spaces.Box(0, 255, (8, 8, 3), np.uint8),
                "says": gym.spaces.Text(5, min_length=0),
                "where": gym.spaces.Box(-1, 1, (2,), np.float32),
            }
        )
        self.action_space = gym.spaces.Box(-1, 1, (2,), np.float32)

    def _observe(self):
        return {
            "picture": self.np_random.integers(0, 256, (8, 8, 3), dtype=np.uint8),
            "says": "hello",
            "where": self.np_random.uniform(-1, 1, 2).astype(np.float32),
        }

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.last = self._observe()
        return self.last, {"options": options}

    def step(self, action):
        self.last = self._observe()
        return self.last, float(action[0]), False, False, {}

    def render(self):
        return self.last["picture"]


@pytest.fixture
def drawing():
    with EnvServer(Drawing, mem_address()) as server, RemoteEnv(server.address) as env:
        yield env


@pytest.fixture
def counting():
    with ToyServer(GymEnvPort(Count(length=2))) as server:
        yield server


# ------------------------------------------------------------------------------ gymnasium


@pytest.mark.parametrize(
    "address", [None, "rollmesh+unix://", "rollmesh+tcp://127.0.0.1:0"], ids=["mem", "unix", "tcp"]
)
def test_check_env_passes(address):
    with (
        EnvServer(Drawing, address or mem_address()) as server,
        RemoteEnv(server.address) as env,
        pytest.warns(UserWarning, match="spec"),
    ):
        check_env(env)


def test_it_is_what_was_served(drawing):
    local = Drawing()
    assert drawing.observation_space == local.observation_space
    assert drawing.action_space == local.action_space
    assert drawing.metadata == local.metadata
    assert drawing.render_mode == "rgb_array"
    theirs, info = local.reset(seed=3, options={"a": (1, None)})
    ours, our_info = drawing.reset(seed=3, options={"a": (1, None)})
    assert our_info == info
    for _ in range(3):
        assert drawing.observation_space.contains(ours)
        for name, value in theirs.items():
            assert np.array_equal(ours[name], value)
        assert np.array_equal(drawing.render(), local.render())
        action = local.action_space.sample()
        theirs, reward, *_ = local.step(action)
        ours, our_reward, terminated, truncated, info = drawing.step(action)
        assert (our_reward, terminated, truncated, info) == (reward, False, False, {})


def test_observations_are_the_callers_own(drawing):
    first, _ = drawing.reset(seed=1)
    kept = copy.deepcopy(first)
    second = drawing.step(np.zeros(2, np.float32))[0]
    assert not np.shares_memory(first["picture"], second["picture"])
    second["picture"][:] = 0
    second["where"] += 1
    drawing.step(np.zeros(2, np.float32))
    assert np.array_equal(first["picture"], kept["picture"])
    assert second["picture"].max() == 0


def test_wrappers_go_around_it(drawing):
    env = gym.wrappers.TimeLimit(
        gym.wrappers.FlattenObservation(gym.wrappers.FilterObservation(drawing, ["where"])), 2
    )
    observation, _ = env.reset(seed=1)
    assert observation.shape == (2,)
    env.step(np.zeros(2, np.float32))
    assert env.step(np.zeros(2, np.float32))[3]


def test_make_knows_the_id():
    with EnvServer(Count, mem_address()) as server:
        env = gym.make("rollmesh/Remote-v0", address=server.address)
        assert isinstance(env.unwrapped, RemoteEnv)
        assert env.spec.id == "rollmesh/Remote-v0"
        assert env.reset(seed=4)[0].tolist() == [0.0, 4.0]
        env.close()
        named = gym.make("rollmesh.gymnasium_plugin:rollmesh/Remote-v0", address=server.address)
        named.close()


def test_registering_again_does_nothing():
    before = gym.registry["rollmesh/Remote-v0"]
    rollmesh.gymnasium_plugin.register()
    assert gym.registry["rollmesh/Remote-v0"] is before


# ------------------------------------------------------------------------------- lifecycle


def test_leaving_the_block_ends_the_session(counting):
    with RemoteEnv(counting.address, options=OPTIONS) as env:
        env.reset()
    assert counting.closed == ["closed by caller"]
    env.close()
    assert counting.closed == ["closed by caller"]


def test_an_env_that_is_dropped_leaves_its_place(counting):
    env = RemoteEnv(counting.address, options=OPTIONS)
    env.reset()
    del env
    until(lambda: counting.closed == ["left"])


def test_a_copy_connects_to_the_same_address():
    with (
        EnvServer(Count, mem_address()) as server,
        RemoteEnv(server.address) as env,
        copy.deepcopy(env) as other,
    ):
        assert other.port is not env.port
        assert other.reset(seed=2)[0].tolist() == env.reset(seed=2)[0].tolist()


def test_a_copy_holds_no_token(counting, monkeypatch):
    secret, other = "0123456789abcdef0123456789abcdef", "f" * 32
    options = client_options(token=secret, environ={})
    with RemoteEnv(counting.address, options=options) as env:
        assert secret not in repr(env.__reduce__())
        monkeypatch.setenv("ROLLMESH_TOKEN", other)
        copy.copy(env).close()
    assert [hello.token for hello in counting.hellos] == [secret, other]


def test_evaluate_takes_it_and_leaves_it_open(counting):
    with RemoteEnv(counting.address, options=OPTIONS) as env:
        for _ in range(2):
            result = rollmesh.evaluate("random", env, episodes=2, base_seed=1)
            assert [e.steps for e in result.episodes] == [2, 2]
        assert counting.closed == []
        env.reset(seed=1)


def test_it_can_be_used_again_after_a_cancelled_run(counting):
    cancel = rollmesh.CancelToken()
    with RemoteEnv(counting.address, options=OPTIONS) as env:
        counting.plan(Kind.STEP, lambda *_: cancel.cancel("enough"))
        with pytest.raises(rollmesh.RouteCancelled):
            rollmesh.evaluate("random", env, episodes=1, cancel=cancel)
        assert env.reset(seed=5)[0].tolist() == [0.0, 5.0]
        assert rollmesh.evaluate("random", env, episodes=1).episodes[0].steps == 2


# ---------------------------------------------------------------------------------- errors


def test_c68_calls_out_of_order_give_one_clear_error():
    with EnvServer(Count(length=2), mem_address()) as server:
        env = RemoteEnv(server.address)
        with pytest.raises(InvalidSpec, match="no episode is under way; call reset"):
            env.step(1)
        with pytest.raises(rollmesh.EnvFailed, match=r"env\.render failed"):
            env.render()
        env.reset(seed=1)
        assert env.reset(seed=2)[0].tolist() == [0.0, 2.0]
        assert env.step(1)[0].tolist() == [1.0, 2.0]
        assert env.step(1)[2]
        assert env.step(1)[0].tolist() == [3.0, 2.0]  # the env's own behaviour
        env.close()
        for call in (lambda: env.step(1), env.reset, env.render):
            with pytest.raises(InvalidSpec, match="this env is closed"):
                call()
        env.close()
        with RemoteEnv(server.address) as other:
            with pytest.raises(InvalidSpec, match="call reset"):
                other.step(1)
            assert other.reset(seed=3)[0].tolist() == [0.0, 3.0]


@pytest.mark.parametrize("seed", [-1, 1.5, "7", True, 2**63])
def test_a_bad_seed_is_refused_here(drawing, seed):
    with pytest.raises(InvalidSpec, match="seed"):
        drawing.reset(seed=seed)


def test_a_numpy_seed_and_the_largest_one_are_taken(drawing):
    drawing.reset(seed=np.int64(3))
    drawing.reset(seed=2**63 - 1)


def test_a_bad_action_is_refused_here(drawing):
    drawing.reset(seed=1)
    for action in (np.zeros(3, np.float32), "up", np.array([np.nan, 0], np.float32)):
        with pytest.raises(InvalidValue, match="action"):
            drawing.step(action)
    drawing.step(np.zeros(2, np.float32))


def test_a_second_thread_is_told(counting):
    errors = []

    def other():
        try:
            env.step(1)
        except InvalidSpec as error:
            errors.append(str(error))

    def hold(connection, message):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join(5)
        connection.send(counting._execute(message))

    with RemoteEnv(counting.address, options=OPTIONS) as env:
        env.reset()
        counting.plan(Kind.STEP, hold)
        env.step(1)
    assert "another thread is in step() of Count" in errors[0]


def test_any_thread_may_use_it_in_turn(counting):
    with RemoteEnv(counting.address, options=OPTIONS) as env:
        env.reset()
        seen = []
        thread = threading.Thread(target=lambda: seen.append(env.step(1)[0].tolist()))
        thread.start()
        thread.join(5)
        assert seen == [[1.0, -1.0]]


def test_a_fault_names_operation_step_address_and_the_other_side():
    class Broken(Count):
        def step(self, action):
            raise ValueError("the arm is stuck")

    with EnvServer(Broken, "rollmesh+unix://") as server, RemoteEnv(server.address) as env:
        env.reset()
        with pytest.raises(rollmesh.EnvFailed) as caught:
            env.step(1)
        for part in ("Broken", "env.step failed at step 1", "the arm is stuck", server.address):
            assert part in str(caught.value)
        assert caught.value.error_class == "ValueError"
        assert "in step" in caught.value.traceback_text


def test_a_late_step_is_told_and_the_next_reset_connects_again(counting):
    with RemoteEnv(counting.address, options=OPTIONS, limits=Limits(env_step_s=0.1)) as env:
        env.reset()
        counting.plan(Kind.STEP, "silent")
        with pytest.raises(rollmesh.OperationTimeout, match=r"env\.step timed out at step 1") as e:
            env.step(1)
        assert e.value.timeout_s == 0.1
        with pytest.raises(InvalidSpec, match="call reset"):
            env.step(1)
        assert env.reset(seed=6)[0].tolist() == [0.0, 6.0]
        assert env.step(1)[0].tolist() == [1.0, 6.0]


def test_a_lost_session_is_told_and_the_next_reset_connects_again(counting):
    with RemoteEnv(counting.address, options=OPTIONS) as env:
        env.reset()
        counting.session_id = None
        counting.drop_connections()
        with pytest.raises(rollmesh.EnvFailed, match="is lost") as caught:
            env.step(1)
        assert caught.value.is_session_lost
        with pytest.raises(InvalidSpec, match="call reset"):
            env.step(1)
        assert env.reset(seed=6)[0].tolist() == [0.0, 6.0]


def test_an_env_of_several_lanes_is_refused():
    with (
        EnvServer([Count, Count], mem_address()) as server,
        pytest.raises(InvalidSpec, match="has 2 lanes; use RemoteVectorEnv"),
    ):
        RemoteEnv(server.address)


@pytest.mark.parametrize("address", [None, 5000])
def test_what_is_no_address_is_refused(address):
    with pytest.raises(InvalidSpec, match="address: wants a text"):
        RemoteEnv(address)
    with pytest.raises(InvalidSpec, match="address: wants a text"):
        EnvServer(Count, address)


def test_what_are_no_options_of_a_server_is_refused():
    with pytest.raises(InvalidSpec, match="options: wants ServerOptions or None"):
        EnvServer(Count, mem_address(), {"num_envs": 2})


def test_another_render_mode_is_refused():
    with EnvServer(Drawing, mem_address()) as server:
        RemoteEnv(server.address, render_mode="rgb_array").close()
        with pytest.raises(InvalidSpec, match="render_mode: wants 'human'"):
            RemoteEnv(server.address, render_mode="human")
        with pytest.raises(InvalidSpec, match=r"^render_mode: wants 'ansi'.*environment creator"):
            gym.make("rollmesh/Remote-v0", address=server.address, render_mode="ansi")


def test_gymnasium_does_not_warn_of_a_mode_that_the_served_env_has():
    with EnvServer(Drawing, mem_address()) as server:
        env = gym.make("rollmesh/Remote-v0", address=server.address, render_mode="rgb_array")
        env.reset(seed=1)
        assert env.render().dtype == np.uint8
        env.close()


def test_who_asks_every_env_for_a_render_mode_may_try_again_without():
    make_vec_env = pytest.importorskip("stable_baselines3.common.env_util").make_vec_env
    with EnvServer(Count, mem_address()) as server:
        envs = make_vec_env(
            "rollmesh/Remote-v0", n_envs=2, seed=4, env_kwargs={"address": server.address}
        )
        assert envs.reset().tolist() == [[0.0, 4.0], [0.0, 5.0]]
        envs.close()


@pytest.mark.parametrize("value", [0, -1, float("nan"), "5"])
def test_c64_limits_that_are_none_are_refused(value):
    with pytest.raises(InvalidSpec, match="env_step_s"):
        RemoteEnv("mem://nobody", limits=Limits(env_step_s=value))


@pytest.mark.parametrize("value", [float("inf"), None, 1e12])
def test_c64_long_limits_are_none(counting, value):
    with RemoteEnv(counting.address, options=OPTIONS, limits=Limits(env_step_s=value)) as env:
        env.reset()
        env.step(1)


def test_c64_a_short_limit_is_told_apart_from_no_server(counting):
    with RemoteEnv(counting.address, options=OPTIONS, limits=Limits(env_step_s=1e-9)) as env:
        env.reset()
        counting.plan(Kind.STEP, "silent")
        with pytest.raises(rollmesh.OperationTimeout):
            env.step(1)
    with pytest.raises(EndpointFault, match="gave up") as caught:
        RemoteEnv("mem://nobody", limits=Limits(env_connect_s=1e-9))
    assert caught.value.error_class == "ConnectFailed"


# --------------------------------------------------------------------------------- connect


def test_connect_finds_out_what_is_served():
    with (
        EnvServer(Count, mem_address()) as env,
        EnvServer([Count, Count], mem_address()) as lanes,
        ModelServer("random", mem_address()) as model,
    ):
        with connect(env.address) as found:
            assert isinstance(found, RemoteEnv)
        with connect(lanes.address) as found:
            assert isinstance(found, RemoteVectorEnv)
        with connect(model.address) as found:
            assert isinstance(found, RemoteModel)
        with pytest.raises(EndpointFault, match="serves a model, the client wants an env"):
            connect(model.address, service="env")


def test_connect_takes_options_and_the_environment(monkeypatch, tmp_path):
    secret = "0123456789abcdef0123456789abcdef"
    with EnvServer(Count, mem_address(), ServerOptions(token=secret)) as server:
        with pytest.raises(EndpointFault, match="ROLLMESH_TOKEN"):
            connect(server.address)
        connect(server.address, token=secret).close()
        file = tmp_path / "token"
        file.write_text(secret + "\n")
        file.chmod(0o600)
        connect(server.address, token_file=file).close()
        monkeypatch.setenv("ROLLMESH_TOKEN_FILE", str(file))
        connect(server.address).close()
        assert rollmesh.evaluate("random", server.address, episodes=1).episodes


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("service", {"service": "both"}),
        ("transport", {"transport": "pigeon"}),
        ("resume_grace_s", {"resume_grace_s": -1}),
        ("limits", {"limits": 5}),
        ("token", {"token": ""}),
    ],
)
def test_connect_refuses_what_is_wrong(field, options):
    with pytest.raises(InvalidSpec, match=field):
        connect("mem://nobody", **options)
