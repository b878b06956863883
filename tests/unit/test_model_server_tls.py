"""A served model over TLS: who gets in, over our own frames and over gRPC."""

from __future__ import annotations

import re

import gymnasium
import numpy as np
import pytest
import trustme

import rollmesh
from rollmesh.endpoint.clients.client_options import client_options
from rollmesh.endpoint.clients.probing import probe
from rollmesh.endpoint.clients.remote_model import RemoteModel
from rollmesh.endpoint.servers.model_server import ModelServer
from rollmesh.endpoint.servers.server_options import ServerOptions
from rollmesh.errors import ModelFailed
from rollmesh.limits import Limits
from rollmesh.transport.security import TlsClient, TlsServer, Token

SECRET = Token("s" * 32)
LIMIT_S, SHORT_S = 30.0, 0.5


class Env(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1e9, 1e9, (1,), np.float64)
    action_space = gymnasium.spaces.Box(-1e9, 1e9, (1,), np.float64)

    def reset(self, *, seed=None, options=None):
        return np.array([float(seed)]), {}

    def step(self, action):
        return np.zeros(1), float(action[0]), True, False, {}


def double(observation):
    return observation * 2


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Give the files of an authority, of a server, of a client, and of another authority."""
    folder = tmp_path_factory.mktemp("tls")
    ca, stranger = trustme.CA(), trustme.CA()
    server, client = ca.issue_cert("127.0.0.1"), ca.issue_cert("client@example.org")
    unknown = stranger.issue_cert("client@example.org")
    parts = {
        "ca": [ca.cert_pem],
        "stranger": [stranger.cert_pem],
        "server": server.cert_chain_pems,
        "server_key": [server.private_key_pem],
        "client": client.cert_chain_pems,
        "client_key": [client.private_key_pem],
        "stranger_client": unknown.cert_chain_pems,
        "stranger_key": [unknown.private_key_pem],
    }
    for name, blobs in parts.items():
        (folder / f"{name}.pem").write_bytes(b"".join([blob.bytes() for blob in blobs]))
    return {name: str(folder / f"{name}.pem") for name in parts}


@pytest.fixture(params=["rollmesh+tcp", "tcp"])
def scheme(request):
    return request.param


@pytest.fixture
def serve(scheme, files):
    """Give a function that starts a server of a scheme with TLS and a token."""
    servers = []

    def start(**options):
        tls = TlsServer(certificate=files["server"], key=files["server_key"], **options)
        options = ServerOptions(tls=tls, token=SECRET, native=False)
        server = ModelServer(double, f"{scheme}://127.0.0.1:0", options)
        servers.append(server.start())
        return server.address

    yield start
    for server in servers:
        server.close()


def play(address, *, token=SECRET, tls=None, transport="auto", limit_s=LIMIT_S):
    """Drive the model and return the returns of two episodes."""
    limits = Limits(model_connect_s=limit_s)
    options = client_options(token=token, tls=tls, transport=transport, environ={})
    model = RemoteModel(address, options=options, limits=limits)
    result = rollmesh.evaluate(model, Env, seeds=[3, 4], limits=limits)
    return [one.total_reward for one in result.episodes]


def test_a_model_is_driven_through_tls(serve, files):
    assert play(serve(), tls=TlsClient(ca=files["ca"])) == [6.0, 8.0]


def test_a_grpc_address_leads_to_native_frames_with_the_same_tls(files):
    tls = TlsServer(certificate=files["server"], key=files["server_key"])
    addresses = ["tcp://127.0.0.1:0", "rollmesh+tcp://127.0.0.1:0"]
    with ModelServer(double, addresses, ServerOptions(tls=tls, token=SECRET)) as server:
        trusting = TlsClient(ca=files["ca"])
        assert play(server.address, tls=trusting, transport="native") == [6.0, 8.0]
        assert play(server.address, tls=trusting, transport="grpc") == [6.0, 8.0]


@pytest.mark.parametrize("token", [None, Token("t" * 32)])
def test_nobody_gets_in_without_the_token(serve, files, token):
    with pytest.raises(ModelFailed, match="unauthenticated"):
        play(serve(), token=token, tls=TlsClient(ca=files["ca"]))


def refusal(address, tls, limits=None):
    """Return how connecting ends; by itself only where waiting would not help."""
    options = client_options(token=SECRET, tls=tls, environ={})
    model = RemoteModel(address, options=options, limits=limits)
    with model, pytest.raises(ModelFailed) as caught:
        model.configure(Env.observation_space, Env.action_space)
    return str(caught.value)


@pytest.mark.parametrize(
    ("ca", "name", "reason"),
    [
        ("stranger", None, "self-signed certificate|unable to get local issuer"),
        (None, None, "self-signed certificate|unable to get local issuer"),
        ("ca", "elsewhere.test", "Hostname mismatch"),
    ],
)
def test_a_certificate_that_is_not_believed_is_told_at_once(serve, files, ca, name, reason):
    tls = TlsClient(ca=None if ca is None else files[ca], server_name=name)
    text = refusal(serve(), tls)
    assert re.search(f"the server's certificate was refused: ({reason}).*give the CA", text), text


def test_a_server_without_tls_is_told_at_once(scheme, files):
    options = ServerOptions(token=SECRET, native=False)
    with ModelServer(double, f"{scheme}://127.0.0.1:0", options) as server:
        text = refusal(server.address, TlsClient(ca=files["ca"]))
    assert "does the server use TLS?" in text


@pytest.mark.parametrize("tls", ["none", "no certificate", "a stranger's"])
def test_a_server_that_wants_tls_or_a_certificate_is_asked_about_it(serve, files, tls):
    options = {
        "none": None,
        "no certificate": TlsClient(ca=files["ca"]),
        "a stranger's": TlsClient(
            ca=files["ca"], certificate=files["stranger_client"], key=files["stranger_key"]
        ),
    }[tls]
    address = serve(client_ca=files["ca"])
    text = refusal(address, options, Limits(model_connect_s=SHORT_S))
    report = probe(address, client_options(token=SECRET, tls=options, environ={}))
    wanted = "want TLS" if options is None else "a certificate of ours (tls_client_cert)"
    assert wanted in text
    wanted = "TLS (--tls-ca)" if options is None else "a certificate of ours (--tls-client-cert)"
    assert wanted in report.detail


def test_a_client_without_tls_gets_nothing(serve):
    with pytest.raises(ModelFailed, match="TLS"):
        play(serve(), limit_s=SHORT_S)


def test_a_client_shows_its_certificate_where_one_is_wanted(serve, files):
    address = serve(client_ca=files["ca"])
    known = TlsClient(ca=files["ca"], certificate=files["client"], key=files["client_key"])
    assert play(address, tls=known) == [6.0, 8.0]
    with pytest.raises(ModelFailed, match="connecting to it failed"):
        play(address, tls=TlsClient(ca=files["ca"]), limit_s=SHORT_S)
