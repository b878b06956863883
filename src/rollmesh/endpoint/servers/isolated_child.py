"""The process of an isolated env (layer 6).

Run as `python -m rollmesh.endpoint.servers.isolated_child FD`.

Started by `isolation.py` and by nobody else. It reads one line of JSON from its standard input,
builds the env on its main thread, and serves it over the socket it was given until that is closed.
When its standard input ends, its parent is gone, and so is it.
"""

from __future__ import annotations

import socket
import sys

from rollmesh.endpoint.child_process import begin, load_main
from rollmesh.endpoint.error_bodies import error, error_body
from rollmesh.endpoint.servers.env_place import EnvPlace
from rollmesh.endpoint.servers.env_session import EnvSession
from rollmesh.endpoint.servers.env_supply import EnvSupply
from rollmesh.endpoint.servers.server_options import ServerOptions
from rollmesh.endpoint.servers.serving import true_capabilities
from rollmesh.endpoint.servers.sessions import Arrival, Terms
from rollmesh.endpoint.servers.watchdog import Watchdog, Watched
from rollmesh.transport.native import NativeConnection
from rollmesh.transport.security import Peer
from rollmesh.wire.contract import encode_contract
from rollmesh.wire.messages import GENERATION, Kind, Message, Welcome
from rollmesh.wire.metadata import map_from_text


def main() -> None:
    """Serve one env to one parent."""
    sock = socket.socket(fileno=int(sys.argv[1]))
    sock.set_inheritable(False)
    config = begin()
    connection = NativeConnection(sock, "isolated env")
    connection.admit()
    options = ServerOptions(
        num_envs=config["num_envs"],
        conformance=config["conformance"],
        env_kwargs=map_from_text(config["env_kwargs"]) or None,
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
        announce=_announce,
        welcome=welcome,
        refuse=_refuse,
        close_timeout_s=None,
    )
    place.build()
    terms = Terms(options=options, watchdog=_NoWatchdog("none"), ask_shutdown=lambda _: None)
    arrival = Arrival(connection=connection, request_id=1, peer=Peer.SAME_USER)
    place.give(EnvSession(arrival, terms, num_envs=place.port.contract.num_envs))
    place.work()


class _NoWatchdog(Watchdog):
    """Looks at nothing: deadlines are the parent's, which kills this process where one is over.

    Were they looked at here too, this end could be the first: the env would then be taken for hung
    on a session that nobody ends.
    """

    def watch(self, watched: Watched) -> None:
        del watched


def _announce(session: EnvSession) -> None:
    """Do nothing: the env is there before the session is."""
    del session


def _refuse(session: EnvSession, error: BaseException) -> None:
    """Do nothing: this process serves one session, which hears of the error itself."""
    del session, error


if __name__ == "__main__":
    main()
