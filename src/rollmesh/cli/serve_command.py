"""`rollmesh serve env` and `rollmesh serve model`: serve until somebody ends it (layer 9)."""

from __future__ import annotations

import contextlib
import json as json_module
import logging
import os
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from rollmesh.cli import exit_codes
from rollmesh.cli.contract_tree import contract_lines, contract_values
from rollmesh.cli.eval_command import absolute_file, fix_working_directory
from rollmesh.cli.flags import ServeFlags, Whole, json_object
from rollmesh.cli.output import Output, own_output
from rollmesh.endpoint.servers.lifecycle import Readiness
from rollmesh.errors import EndpointFault, InvalidSpec, RollmeshError
from rollmesh.transport.address import parse_address

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from rollmesh.endpoint.servers.server_options import ServerOptions
    from rollmesh.endpoint.servers.serving import Server


def serve_env_command(
    target: str,
    /,
    *,
    env_kwargs: str | None = None,
    num_envs: Whole | None = None,
    isolate: Literal["process"] | None = None,
    flags: Annotated[ServeFlags | None, Parameter(name="*")] = None,
) -> int:
    """Serve an env until Ctrl-C or SIGTERM; each client gets an env of its own.

    What was bound is printed on standard error; with --json, one line of JSON on standard output.
    The first signal lets clients finish (--drain-timeout), the second one ends the process at once.

    Exit codes: 0 ended by a signal, by a client or when idle, 1 it could not listen or build the
    env, 2 bad arguments, 130 or 143 ended at once by a second signal.

    Parameters
    ----------
    target
        A Gymnasium id (CartPole-v1, module:Name-v0) or module:callable.
    env_kwargs
        Keyword arguments for the env, as a JSON object.
    num_envs
        Lanes that each client gets, each with an env and a thread of its own.
    isolate
        Run each env in a process of its own, which is killed when it hangs.
    """
    flags = flags or ServeFlags()

    def make(addresses: list[str]) -> Server:
        from rollmesh.endpoint.servers.env_server import EnvServer

        options = flags.options(
            env_kwargs=json_object("--env-kwargs", env_kwargs), num_envs=num_envs, isolate=isolate
        )
        return EnvServer(target, addresses, options)

    return _serve(target, flags, make)


def serve_model_command(
    target: str,
    /,
    *,
    model_kwargs: str | None = None,
    max_batch: Whole | None = None,
    max_wait: float | None = None,
    thread_safe: Annotated[bool, Parameter(negative=())] = False,
    flags: Annotated[ServeFlags | None, Parameter(name="*")] = None,
) -> int:
    """Serve a model until Ctrl-C or SIGTERM; it learns the spaces from its clients.

    What was bound is printed on standard error; with --json, one line of JSON on standard output.
    The first signal lets clients finish (--drain-timeout), the second one ends the process at once.

    Exit codes: 0 ended by a signal, by a client or when idle, 1 it could not listen or load the
    model, 2 bad arguments, 130 or 143 ended at once by a second signal.

    Parameters
    ----------
    target
        module:callable, module:Class, a Stable-Baselines3 .zip, or random; a torch module is named
        as module:attribute or built by a module:Class.
    model_kwargs
        Keyword arguments for the model, as a JSON object.
    max_batch
        Rows of different clients that a model with a batch corner is given at once; 1 is none.
    max_wait
        Seconds that a batch may wait for more rows; what pays is learned if left out.
    thread_safe
        The model may be called from several threads at once.
    """
    flags = flags or ServeFlags()

    def make(addresses: list[str]) -> Server:
        from rollmesh.endpoint.servers.model_server import ModelServer

        options = flags.options(
            model_kwargs=json_object("--model-kwargs", model_kwargs),
            max_batch=max_batch,
            max_wait_s=max_wait,
            thread_safe=thread_safe,
        )
        return ModelServer(absolute_file(target), addresses, options)

    return _serve(target, flags, make)


def _serve(target: str, flags: ServeFlags, make: Callable[[list[str]], Server]) -> int:
    with own_output() as output, _log_to(output, verbose=flags.verbose):
        fix_working_directory()
        try:
            server = make(flags.addresses())
            announcer = _Announcer(server, target, output, as_json=flags.json)
            server.readiness = announcer
            server.serve()
        except InvalidSpec as error:
            output.note(f"error: {error}")
            return exit_codes.BAD_ARGUMENTS
        except EndpointFault as fault:
            output.note(f"error: {target}: {fault.error_class}: {fault.detail}")
            if fault.traceback_text:
                output.note(fault.traceback_text.rstrip())
            return exit_codes.FAILED
        except (RollmeshError, OSError) as error:
            output.note(f"error: {error}")
            return exit_codes.FAILED
        except KeyboardInterrupt:
            return exit_codes.INTERRUPTED
        output.note("ended" if announcer.is_told else "ended before it could serve")
        return exit_codes.FAILED if server.has_left_behind else exit_codes.OK


class _Announcer(Readiness):
    """Prints what was bound, and passes the word on.

    Attributes:
        is_told: Whether clients were ever served.
    """

    def __init__(self, server: Server, target: str, output: Output, *, as_json: bool) -> None:
        options = server.options
        super().__init__(options.ready_fd, options.ready_file)
        self._server = server
        self._target = target
        self._output = output
        self._as_json = as_json
        self.is_told = False

    def ready(self, addresses: Sequence[str]) -> None:
        self.is_told = True
        service, output = self._server.service, self._output
        contract = getattr(self._server, "contract", None)
        output.note(f"serving {service} {self._target} (process {os.getpid()}) at")
        for address in addresses:
            output.note(f"  {address}  ({_reach(address, self._server.options)})")
        if contract is not None:
            for line in contract_lines(contract):
                output.note(line)
        if self._as_json:
            values: dict[str, Any] = {
                "service": service,
                "target": self._target,
                "process": os.getpid(),
                "addresses": list(addresses),
            }
            if contract is not None:
                values["contract"] = contract_values(contract)
            output.result(json_module.dumps(values))
        super().ready(addresses)


def _reach(text: str, options: ServerOptions) -> str:
    """Say who can reach an address, and what keeps others out."""
    address = parse_address(text, "bind")
    token = options.token is not None
    if address.family == "memory":
        return "this process"
    if address.family == "unix":
        return "this user" + (", token" if token else "")
    who = "this machine" if address.is_local else "other machines too"
    tls = options.tls
    encryption = "plain text" if tls is None else "TLS" if tls.client_ca is None else "mutual TLS"
    return f"{who}, {encryption}, {'token' if token else 'no token'}"


@contextlib.contextmanager
def _log_to(output: Output, *, verbose: bool) -> Generator[None]:
    """Show the package's warnings, or also who comes and goes, as notes."""
    logger = logging.getLogger("rollmesh")
    handler = _Notes(output, logging.INFO if verbose else logging.WARNING)
    level, propagate = logger.level, logger.propagate
    logger.propagate = False
    if verbose:
        logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate


class _Notes(logging.Handler):
    def __init__(self, output: Output, level: int) -> None:
        super().__init__(level)
        self._output = output
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        self._output.note(self.format(record))
