"""An env in a process of its own, that can be killed (layer 6).

The child is started afresh (never forked), speaks our own frames over a socket pair, and is the
leader of its own process group, so that whatever it starts goes with it. It ends when its parent
does, however that ended. Nothing is pickled: the child imports what builds the env by name.

A child that died is built anew by the next reset.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import subprocess
from pathlib import Path
from typing import Any

from rollmesh.endpoint.child_process import how_it_ended, kill_group, outwait, spawn
from rollmesh.endpoint.envs.contracts import contract_difference
from rollmesh.endpoint.error_bodies import PROCESS_DIED, fault_of
from rollmesh.endpoint.named_targets import find_target
from rollmesh.endpoint.servers.server_options import ServerOptions
from rollmesh.errors import ConnectionLost, EndpointFault, TransportTimeout, WireError
from rollmesh.ports import EnvContract, ResetReply, ResetRequest, StepReply, StepRequest
from rollmesh.transport.connection import Connection
from rollmesh.transport.native import NativeConnection
from rollmesh.wire.contract import decode_contract
from rollmesh.wire.messages import Close, ErrorBody, Kind, Message, Render, Welcome
from rollmesh.wire.metadata import map_to_text

_logger = logging.getLogger(__name__)

CHILD_MODULE = "rollmesh.endpoint.servers.isolated_child"


class IsolatedEnv:
    """An env port whose env lives in a child process.

    Args:
        env: What builds the env: an id, `module:callable`, or a factory that a module holds.
        options: Of the server.

    Raises:
        EndpointFault: The child or its env could not be started.
        InvalidSpec: It is no env, or cannot be found by name.
    """

    def __init__(self, env: Any, options: ServerOptions) -> None:
        self._options = options
        self._target = find_target(env)
        self._cwd = Path.cwd()
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._was_killed = False
        self.contract: EnvContract
        self.capabilities: frozenset[str]
        self.contract, self.capabilities = self._start()

    # ------------------------------------------------------------------------------ EnvPort

    def reset(self, request: ResetRequest) -> ResetReply:
        """Reset the env; a process that died is started anew before that."""
        if self._connection is None or self._was_killed:
            self.rebuild(())
        return self._call(Kind.RESET, request, "env.reset")

    def step(self, request: StepRequest) -> StepReply:
        """Apply one action per lane."""
        return self._call(Kind.STEP, request, "env.step")

    def render(self, env_indices: tuple[int, ...]) -> Any:
        """Return what the env renders."""
        return self._call(Kind.RENDER, Render(env_indices=env_indices), "env.render").frame

    def rebuild(self, env_indices: tuple[int, ...]) -> None:
        """Start another process; the env is one group, whatever lanes are named.

        Raises:
            EndpointFault: It could not be started, or its env has another contract.
        """
        del env_indices
        self._end(0.0)
        contract, self.capabilities = self._start()
        if other := contract_difference(self.contract, contract):
            self._end(0.0)
            raise EndpointFault(f"the env built anew differs from before: {other}")

    def close(self, timeout_s: float | None) -> None:
        """Close the env and end its process; one that does not end in time is killed.

        Raises:
            TimeoutError: It was killed.
        """
        if self._process is None:
            return
        connection = self._connection
        if connection is not None:
            with contextlib.suppress(ConnectionLost, TransportTimeout, WireError):
                connection.send(Message(Kind.CLOSE, connection.next_id(), Close(close_env=True)))
        if not self._end(timeout_s):
            raise TimeoutError(f"env.close did not come back within {timeout_s} s; killed")

    def kill(self) -> None:
        """Kill the process: a call under way raises at once. Any thread may."""
        process = self._process
        if process is not None:
            self._was_killed = True
            kill_group(process)

    # ------------------------------------------------------------------------------- inside

    def _start(self) -> tuple[EnvContract, frozenset[str]]:
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self._process = self._spawn(theirs)
            self._was_killed = False
            self._connection = NativeConnection(ours, "isolated env", self._options.connection)
            self._connection.admit()
            welcome = self._wait_for_welcome(self._connection)
        except BaseException:
            ours.close()
            self._end(0.0)
            raise
        contract = decode_contract(welcome.contract)
        self._connection.framing.bind(
            contract.observation_space.codec, contract.action_space.codec, contract.num_envs
        )
        return contract, frozenset(welcome.capabilities)

    def _spawn(self, theirs: socket.socket) -> subprocess.Popen[bytes]:
        options = self._options
        config = {
            "target": self._target.text,
            "main_file": self._target.main_file,
            "env_kwargs": map_to_text(options.env_kwargs or {}),
            "num_envs": options.num_envs,
            "conformance": options.conformance,
        }
        fd = theirs.fileno()
        return spawn(CHILD_MODULE, config, arguments=[str(fd)], pass_fds=[fd], cwd=self._cwd)

    def _wait_for_welcome(self, connection: Connection) -> Welcome:
        limit_s = self._options.build_timeout_s
        try:
            body = connection.receive(limit_s).body
        except ConnectionLost as error:
            raise self._died("building the env") from error
        except TransportTimeout as error:
            raise EndpointFault(
                f"building the env in its process did not come back within {limit_s} s; see what "
                "its constructor waits for",
                error_class="TimeoutError",
                outcome="not_done",
            ) from error
        if isinstance(body, ErrorBody):
            raise fault_of(body)
        if not isinstance(body, Welcome):
            raise WireError("the env's process sent no welcome")
        return body

    def _call(self, kind: Kind, request: Any, where: str) -> Any:
        connection = self._connection
        if connection is None:
            raise EndpointFault(
                "the env's process is gone; reset it", outcome="not_done", is_recoverable=True
            )
        try:
            body = connection.call(Message(kind, connection.next_id(), request)).body
        except (ConnectionLost, WireError) as error:
            raise self._died(where) from error
        if isinstance(body, ErrorBody):
            raise fault_of(body)
        return body

    def _died(self, where: str) -> EndpointFault:
        """Return what the end of the process means, once it is gone."""
        was_killed = self._was_killed
        how = how_it_ended(self._process) or "closed its connection"
        self._end(0.0)
        if was_killed:
            how = "was killed here, as it did not come back in time"
        return EndpointFault(
            f"the env's process {how} in {where}; the next reset starts another one",
            error_class=PROCESS_DIED,
            is_recoverable=True,
        )

    def _end(self, timeout_s: float | None) -> bool:
        """Wait for the process and let go of it; kill it where it is late, return whether not."""
        process, self._process = self._process, None
        connection, self._connection = self._connection, None
        in_time = process is None or outwait(process, timeout_s)
        if connection is not None:
            connection.close()
        return in_time
