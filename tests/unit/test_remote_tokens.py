"""Tokens given to `RemoteEnv` and its like, and to the registered id: taken, and never told."""

from __future__ import annotations

import copy
import pickle
import warnings

import gymnasium as gym
import pytest

import rollmesh.gymnasium_plugin
from rollmesh import RemoteEnv, RemoteModel, RemoteVectorEnv, TlsClient
from rollmesh.endpoint.clients.client_options import client_options
from rollmesh.endpoint.servers.env_server import EnvServer
from rollmesh.endpoint.servers.model_server import ModelServer
from rollmesh.endpoint.servers.server_options import ServerOptions
from rollmesh.errors import EndpointFault, InvalidSpec
from rollmesh.transport.security import Token
from tests.unit.env_toys import Count
from tests.unit.session_toys import mem_address

ID = rollmesh.gymnasium_plugin.ENV_ID
SECRET = "0123456789abcdef0123456789abcdef"
GUARDED = ServerOptions(token=SECRET)


@pytest.fixture
def served():
    with EnvServer(Count, mem_address(), GUARDED) as server:
        yield server.address


@pytest.fixture
def pair():
    with EnvServer([Count, Count], mem_address(), GUARDED) as server:
        yield server.address


@pytest.fixture
def token_file(tmp_path):
    path = tmp_path / "token"
    path.write_text(SECRET + "\n")
    path.chmod(0o600)
    return path


def told(env):
    """Return all that an env tells of itself."""
    spec = env.spec
    shown = [repr(env), str(env), repr(spec), spec.to_json(), str(vars(spec))]
    shown += [
        str(spec.pprint(disable_print=True, print_all=True)),
        repr(env.unwrapped.__reduce__()),
    ]
    return "\n".join([*shown, pickle.dumps(spec).decode("latin-1")])


# ----------------------------------------------------------------------------------- taken


@pytest.mark.parametrize("token", [SECRET, Token(SECRET)], ids=["text", "token"])
def test_faces_take_a_token(served, pair, token):
    RemoteEnv(served, token=token).close()
    RemoteVectorEnv(pair, token=token).close()
    with EnvServer(Count, mem_address()) as plain:
        RemoteEnv(plain.address, token=None, tls=None).close()


def test_faces_take_a_token_file(served, pair, token_file):
    RemoteEnv(served, token_file=token_file).close()
    RemoteVectorEnv(pair, token_file=str(token_file)).close()


def test_a_model_takes_them_too(token_file):
    with ModelServer("random", mem_address(), GUARDED) as server:
        for given in ({"token": SECRET}, {"token_file": token_file}):
            with RemoteModel(server.address, **given) as model:
                model.configure(Count().observation_space, Count().action_space)
                assert SECRET not in repr(model) + repr(model.__reduce__())


def test_make_and_make_vec_take_them(served, pair, token_file):
    for given in ({"token": SECRET}, {"token_file": str(token_file)}):
        env = gym.make(ID, address=served, **given)
        assert env.reset(seed=4)[0].tolist() == [0.0, 4.0]
        env.close()
        envs = gym.make_vec(ID, num_envs=2, address=pair, **given)
        assert envs.reset(seed=4)[0].tolist() == [[0.0, 4.0], [0.0, 5.0]]
        envs.close()
        lanes = gym.make_vec(ID, num_envs=2, vectorization_mode="sync", address=served, **given)
        lanes.close()


def test_the_other_ways_to_say_how_to_connect_are_those_of_connect(served):
    with RemoteEnv(served, token=SECRET, resume_grace_s=7) as env:
        assert env.port.session.dialer.options.resume_grace_s == 7.0
    with pytest.raises(InvalidSpec, match="speaks"):
        RemoteEnv(served, token=SECRET, transport="grpc")
    with pytest.raises(InvalidSpec, match="tls_ca: cannot read nowhere"):
        RemoteEnv("rollmesh+tcp://127.0.0.1:1", tls=TlsClient(ca="nowhere"))
    with pytest.raises(InvalidSpec, match="in plain text"):
        RemoteEnv("rollmesh+tcp://192.0.2.1:1", token=SECRET)


# ------------------------------------------------------------------------------------- kept


def test_what_is_told_of_an_env_has_no_token_in_it(served):
    for given in (
        {"token": SECRET},
        {"token": Token(SECRET)},
        {"options": client_options(token=SECRET, environ={})},
    ):
        env = gym.make(ID, address=served, **given)
        assert SECRET not in told(env)
        assert env.spec.kwargs["address"] == served
        env.close()


def test_what_is_told_of_a_vector_env_has_no_token_in_it(pair):
    envs = gym.make_vec(ID, num_envs=2, address=pair, token=SECRET)
    assert SECRET not in told(envs)
    envs.close()


def test_an_env_is_made_again_with_the_token_of_the_environment(served, monkeypatch):
    env = gym.make(ID, address=served, token=SECRET)
    with pytest.raises(EndpointFault, match="no token was given"):
        gym.make(env.spec)
    monkeypatch.setenv("ROLLMESH_TOKEN", SECRET)
    gym.make(env.spec).close()
    copy.copy(env.unwrapped).close()
    env.close()


def test_an_env_is_made_again_with_the_token_file_that_its_spec_names(served, token_file):
    env = gym.make(ID, address=served, token_file=str(token_file))
    gym.make(gym.envs.registration.EnvSpec.from_json(env.spec.to_json())).close()
    env.close()


def test_a_spec_without_a_token_is_kept_as_it_is():
    with EnvServer(Count, mem_address()) as server, RemoteEnv(server.address) as env:
        assert env.spec is None
        spec = gym.envs.registration.EnvSpec(ID, kwargs={"address": server.address})
        env.spec = spec
        assert env.spec is spec


# ----------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    "wrong",
    [
        {"adress": "mem://nobody"},
        {"address": "mem://nobody", "tokn": SECRET},
        {"render_mode": "human"},
        {"address": None},
        {"address": "mem://nobody", "options": client_options(environ={})},
        {"address": "mem://nobody", "token_file": "nowhere"},
        {"address": "mem://nobody", "token": SECRET + "\n"},
        {"address": "mem://nobody", "tls": "ca.pem"},
    ],
)
def test_an_error_tells_no_token(served, wrong):
    given = {"address": served, "token": SECRET, **wrong}
    if "adress" in wrong:
        del given["address"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(InvalidSpec) as caught:
            gym.make(ID, **given)
    error = caught.value
    while error is not None:
        assert SECRET not in str(error)
        error = error.__cause__ or error.__context__


def test_a_refused_token_is_not_told(served):
    with pytest.raises(EndpointFault, match="the token given was refused") as caught:
        gym.make(ID, address=served, token="f" * 32)
    assert "f" * 32 not in str(caught.value)


@pytest.mark.parametrize("face", [RemoteEnv, RemoteVectorEnv, RemoteModel])
def test_an_argument_that_there_is_not_is_told_by_name_with_those_there_are(face):
    with pytest.raises(
        TypeError, match=r"^tokn: is no argument here, did you mean token\?.*token, token_file"
    ):
        face("mem://nobody", tokn=SECRET)


def test_an_address_that_is_misspelt_is_guessed_and_no_token_told():
    with pytest.raises(
        TypeError, match=r"^adress: .*did you mean address\?; there are address"
    ) as e:
        gym.make(ID, adress="mem://nobody", token=SECRET)
    assert SECRET not in str(e.value)


@pytest.mark.parametrize("face", [RemoteEnv, RemoteVectorEnv, RemoteModel])
def test_options_as_a_whole_and_one_by_one_are_refused(face):
    with pytest.raises(InvalidSpec, match=r"^options: give options or token, not both"):
        face("mem://nobody", options=client_options(environ={}), token=SECRET)


@pytest.mark.parametrize("face", [RemoteEnv, RemoteVectorEnv])
def test_an_address_left_out_is_told(face):
    with pytest.raises(InvalidSpec, match="address: is missing: host:port or unix"):
        face()
