"""The process of an isolated env (layer 6).

Run as `python -m rollmesh.endpoint.servers.isolated_child FD`.

Started by `isolation.py` and by nobody else. It reads one line of JSON from its standard input,
builds the env on its main thread, and serves it over the socket it was given until that is closed.
When its standard input ends, its parent is gone, and so is it.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import signal
import socket
import sys
import threading
from typing import Any

from rollmesh.endpoint.error_bodies import error, error_body
from rollmesh.endpoint.servers.env_place import EnvPlace
from rollmesh.endpoint.servers.env_session import EnvSession
from rollmesh.endpoint.servers.env_supply import EnvSupply
from rollmesh.endpoint.servers.isolation import MAIN_NAME
from rollmesh.endpoint.servers.server_options import ServerOptions
from rollmesh.endpoint.servers.serving import true_capabilities
from rollmesh.endpoint.servers.sessions import Arrival, Terms
from rollmesh.endpoint.servers.watchdog import Watchdog
from rollmesh.transport.native import NativeConnection
from rollmesh.transport.security import Peer
from rollmesh.wire.contract import encode_contract
from rollmesh.wire.messages import GENERATION, Kind, Message, Welcome
from rollmesh.wire.metadata import decode_map

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Serve one env to one parent."""
    sock = socket.socket(fileno=int(sys.argv[1]))
    sock.set_inheritable(False)
    config: dict[str, Any] = json.loads(sys.stdin.buffer.readline())
    die_with_parent(config["parent"])
    sys.path[:] = config["path"]
    connection = NativeConnection(sock, "isolated env")
    connection.admit()
    options = ServerOptions(
        num_envs=config["num_envs"],
        conformance=config["conformance"],
        env_kwargs=decode_map(base64.b64decode(config["env_kwargs"])) or None,
        resume_grace_s=0.0,
        expose_tracebacks=True,
    )
    try:
        if config["main_file"]:
            load_main(config["main_file"])
        serve(connection, EnvSupply(config["target"], options), options)
    except BaseException as exc:  # noqa: BLE001 - told to the parent
        body = error_body(exc, where="building the env", is_trusted=True)
        connection.send(error(1, body))
    connection.close()


def serve(connection: NativeConnection, supply: EnvSupply, options: ServerOptions) -> None:
    """Build the env, say welcome, and serve until the connection is closed."""

    def welcome(session: EnvSession, place: EnvPlace) -> None:
        contract = place.port.contract
        connection.send(
            Message(
                Kind.WELCOME,
                1,
                Welcome(
                    generation=GENERATION,
                    session_id=session.id,
                    contract=encode_contract(contract),
                    capabilities=true_capabilities(place.port.capabilities),
                ),
            )
        )
        connection.framing.bind(
            contract.observation_space.codec, contract.action_space.codec, contract.num_envs
        )

    place = EnvPlace(
        0,
        supply,
        freed=EnvPlace.stop,
        welcome=welcome,
        refuse=lambda *_: None,
        close_timeout_s=None,
    )
    place.build()
    terms = Terms(
        options=options, watchdog=Watchdog("rollmesh-watchdog"), ask_shutdown=lambda _: None
    )
    arrival = Arrival(connection=connection, request_id=1, peer=Peer.SAME_USER)
    place.give(EnvSession(arrival, terms, num_envs=place.port.contract.num_envs))
    place.work()


def load_main(path: str) -> None:
    """Load the parent's main script as a module: what is under `if __name__ == …` does not run."""
    spec = importlib.util.spec_from_file_location(MAIN_NAME, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot load {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[MAIN_NAME] = module
    spec.loader.exec_module(module)


def die_with_parent(parent: int) -> None:
    """End this process, and what it started, when its parent is gone."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        _end()
    threading.Thread(target=_watch_parent, name="rollmesh-parent", daemon=True).start()


def _watch_parent() -> None:
    while os.read(0, 4096):
        pass
    _end()


def _end() -> None:
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
