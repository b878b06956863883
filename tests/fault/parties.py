"""What the fault tests serve and how they reach it: toys, children, ports.

`ADDRESSES` is the list of transports that promises are tested over; another one is a line more.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path

import gymnasium
import numpy as np

from rollmesh.endpoint.clients.client_options import ClientOptions
from rollmesh.endpoint.clients.env_client import connect_env
from rollmesh.endpoint.clients.model_client import connect_model
from rollmesh.endpoint.clients.model_route import ModelRoute
from rollmesh.endpoint.servers.env_server import EnvServer
from rollmesh.endpoint.servers.model_server import ModelServer
from rollmesh.endpoint.servers.server_options import ServerOptions
from rollmesh.ids import MINT
from rollmesh.limits import Limits, timeout_ms
from rollmesh.ports import (
    AdapterContext,
    EnvContract,
    EpisodeInfo,
    PredictReply,
    PredictRequest,
    ReleaseAdapterRequest,
    ResetAdapterRequest,
    ResetRequest,
    StepRequest,
)
from rollmesh.spaces.space import Box
from rollmesh.testing.faults import Child
from rollmesh.transport.address import parse_address

NATIVE = {
    "unix": "rollmesh+unix://",
    "tcp": "rollmesh+tcp://127.0.0.1:0",
}
ADDRESSES = {
    **NATIVE,
    "grpc": "tcp://127.0.0.1:0",
}
"""Where a server of a process of its own listens, by transport."""

LIMIT_S = 20.0
"""How long a test waits for what always comes."""

OBSERVATION = Box(shape=(4,), dtype="float64")
ACTION = Box(shape=(1,), dtype="float64")
CONTRACT = EnvContract(id="JournalEnv", observation_space=OBSERVATION, action_space=ACTION)
CONTEXT = AdapterContext("session", "route", "route:predict:000001")


# --------------------------------------------------------------------------------------- time


class Lag:
    """Measures how late this machine wakes a thread up: no promise can be better than that.

    Attributes:
        longest_s: The longest delay while it was entered.
    """

    def __enter__(self):
        self.longest_s = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()

    def _run(self):
        pause_s = 0.01
        while not self._stop.is_set():
            begun = time.monotonic()
            time.sleep(pause_s)
            self.longest_s = max(self.longest_s, time.monotonic() - begun - pause_s)


# -------------------------------------------------------------------------------------- envs


class JournalEnv(gymnasium.Env):
    """Writes down every reset and step before it does it; naps where its options say so.

    Observes seed, step, last action and the sum of all actions of the episode.
    """

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float64)
    action_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float64)

    def __init__(self, journal=None, length=None):
        self.length = length
        self.seed = self.t = self.last = self.sum = 0.0
        self.naps = {}
        self.journal = None
        if journal is not None:
            self.journal = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def reset(self, *, seed=None, options=None):
        self.naps = (options or {}).get("naps", {})
        self.seed, self.t, self.last, self.sum = float(seed or 0), 0.0, 0.0, 0.0
        self._write(f"reset {seed}")
        self._nap("reset")
        return self._observe(), {}

    def step(self, action):
        self.last = float(action[0])
        self._write(f"step {self.last:g}")
        self._nap("step")
        self.t += 1
        self.sum += self.last
        return self._observe(), self.last, self.t == self.length, False, {"t": int(self.t)}

    def render(self):
        self._nap("render")
        return "a picture"

    def close(self):
        self._nap("close")
        if self.journal is not None:
            os.close(self.journal)
            self.journal = None

    def _observe(self):
        return np.array([self.seed, self.t, self.last, self.sum])

    def _nap(self, operation):
        time.sleep(self.naps.get(operation, 0.0))

    def _write(self, line):
        if self.journal is not None:
            os.write(self.journal, f"{line}\n".encode())


def journal_of(path):
    """Return the lines of a journal."""
    return Path(path).read_text().splitlines()


class NapModel:
    """Answers with the sum of its observation; naps for the seconds that its last number says."""

    def predict(self, observation):
        self.nap_s = min(5.0, max(0.0, float(observation[3])))
        time.sleep(self.nap_s)
        return np.array([observation[:3].sum()])

    def on_episode_end(self, context):
        time.sleep(self.nap_s)


class SumModel:
    """A model port whose action is the sum of seed and step of the row."""

    def predict(self, request):
        total = np.asarray(request.observation[0])[:, :2].sum(axis=1, keepdims=True)
        return PredictReply(context=request.context, frames=([total],))

    def reset_adapter(self, request):
        """Forget nothing."""

    def release_adapter(self, request):
        """Forget nothing."""


# ---------------------------------------------------------------------------------- children


def serve_env(tell, *, address, journal=None, length=None, instance=False, **options):
    """Serve journal envs until SIGTERM; tells the address, then `ended`."""

    def make():
        return JournalEnv(journal, length)

    _serve(tell, lambda o: EnvServer(make() if instance else make, address, o), options)


def serve_model(tell, *, address, **options):
    """Serve a model until SIGTERM; tells the address, then `ended`."""
    _serve(tell, lambda o: ModelServer(NapModel(), address, o), options)


def _serve(tell, make, options):
    reading, writing = os.pipe()
    threading.Thread(
        target=lambda: tell(os.read(reading, 4096).decode().partition("\n")[0]), daemon=True
    ).start()
    make(ServerOptions(ready_fd=writing, **options)).serve()
    os.close(reading)
    tell("ended")


def child_of(side, transport, **kwargs):
    """Return a child that serves an env or a model; its `ready` is the address."""
    return Child(f"tests.fault.parties:serve_{side}", address=ADDRESSES[transport], **kwargs)


# ------------------------------------------------------------------------------------- ports


def step_once(tell, *, address, nap_s):
    """Be a client that resets and steps once; tells the observation of the step, or the error."""
    with closing(env_port(address)) as port:
        reset(port, 7, naps={"step": nap_s}, timeout_s=LIMIT_S)
        tell("stepping")
        try:
            observation = step(port, 1, timeout_s=LIMIT_S)
        except Exception as error:  # noqa: BLE001 - told to the test
            tell(f"{type(error).__name__}: {error}")
        else:
            tell(str(observation[0].tolist()))


def env_port(address, *, connect_s=LIMIT_S, lanes=None, **options):
    """Return a port of a served env."""
    limits = Limits(env_connect_s=connect_s)
    return connect_env(str(address), _client(address, options), limits=limits, lanes=lanes)


def model_port(address, *, connect_s=LIMIT_S, **options):
    """Return a port of a served model."""
    route = ModelRoute(contract=CONTRACT, session_id="session", env_id="route")
    limits = Limits(model_connect_s=connect_s, close_s=0.5)
    return connect_model(str(address), route, _client(address, options), limits=limits)


def _client(address, options):
    """Return the options of a client that stays with the transport of the address."""
    is_grpc = parse_address(str(address)).protocol == "grpc"
    return ClientOptions(**{"transport": "grpc" if is_grpc else "auto", **options})


def reset(port, seed=1, *, naps=None, timeout_s=None, lanes=()):
    """Reset a port and return the observation."""
    request = ResetRequest(
        episode_ids=tuple([f"episode-{lane}" for lane in lanes or (0,)]),
        seeds=(seed,) * len(lanes or (0,)),
        options=({"naps": naps},) * len(lanes or (0,)) if naps else (),
        timeout_ms=timeout_ms(timeout_s),
        env_indices=lanes,
    )
    return port.reset(request).observation[0]


def step(port, action, *, timeout_s=None, lanes=()):
    """Step a port and return the observation."""
    request = StepRequest(
        action=[np.full((len(lanes) or 1, 1), float(action))],
        episode_ids=tuple([f"episode-{lane}" for lane in lanes or (0,)]),
        timeout_ms=timeout_ms(timeout_s),
        env_indices=lanes,
    )
    return port.step(request).observation[0]


def predict(port, values, *, timeout_s=None):
    """Ask a model and return the action."""
    request = PredictRequest(
        context=CONTEXT,
        observation=[np.array([values], np.float64)],
        episode_info=(EpisodeInfo(_episode_of(port), 1),),
        timeout_ms=timeout_ms(timeout_s),
    )
    return float(port.predict(request).frames[0][0][0, 0])


def evict(port):
    """Have a model forget the episode."""
    port.reset_adapter(ResetAdapterRequest(CONTEXT, (_episode_of(port),)))


def _episode_of(port):
    """Return the id of a port's one episode; a server knows an id from one client only."""
    return vars(port).setdefault("episode_of_test", MINT.mint())


def release(port, timeout_s):
    """Have a model forget the route."""
    port.release_adapter(ReleaseAdapterRequest(CONTEXT, "done", timeout_s))


@contextlib.contextmanager
def closing(port):
    """Close a port at the end, whatever state it is in."""
    try:
        yield port
    finally:
        with contextlib.suppress(Exception):
            port.close(1.0)
