"""A model in a process of its own (layer 6).

    process = ModelProcess("my_policy:Policy", options)
    process.start(60.0)
    port = connect_model(process.address, route)

The process is started afresh (never forked), imports what builds the model by name, and serves it
(`ModelServer`) on a unix socket. Nothing is pickled. It ends when this one does, however that
ended. `replica_of` makes replicas of such processes, for `ReplicatedModel`.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rollmesh.endpoint.child_process import how_it_ended, kill_group, outwait, spawn
from rollmesh.endpoint.clients.client_options import client_options
from rollmesh.endpoint.clients.model_client import connect_replica
from rollmesh.endpoint.clients.model_route import ModelRoute
from rollmesh.endpoint.models.replica_seats import Opener, Replica
from rollmesh.endpoint.named_targets import find_target
from rollmesh.endpoint.own_thread import OwnThread
from rollmesh.errors import EndpointFault, InvalidSpec
from rollmesh.limits import Limits
from rollmesh.runtime.cancel import CancelToken
from rollmesh.spaces.conformance import Policy
from rollmesh.wire.metadata import map_to_text

_logger = logging.getLogger(__name__)

CHILD_MODULE = "rollmesh.endpoint.models.model_process_child"
FAILED = "failed "
"""How the child's line begins where the model could not be built; JSON follows."""
_GRACE_S = 0.5
"""How long to try to get back to a process of this machine: it is there, or gone."""
_MOST_BYTES = 1_000_000

_starters: dict[int, OwnThread] = {}
"""By process: a fork of one has none of its threads."""


@dataclass(frozen=True, kw_only=True)
class ModelProcessOptions:
    """How a model is served in its process.

    Attributes:
        model_kwargs: Keyword arguments of the model's class or factory.
        conformance: `warn`, `strict` or `off`, for actions outside their space.
        max_batch: Rows that the model is given at once.
        max_wait_s: How long a batch may wait; None learns it.
        thread_safe: Whether the model may be called from several threads at once.
        environment: Variables added to its environment (`CUDA_VISIBLE_DEVICES`).
    """

    model_kwargs: Mapping[str, Any] | None = None
    conformance: Policy = "warn"
    max_batch: int = 64
    max_wait_s: float | None = None
    thread_safe: bool = False
    environment: Mapping[str, str] | None = None


class ModelProcess:
    """A process that serves one model; see the module.

    Args:
        model: A policy by name, or a class or function that a module holds.
        options: How it is served.

    Raises:
        InvalidSpec: It cannot be found by name from another process.
    """

    def __init__(self, model: Any, options: ModelProcessOptions | None = None) -> None:
        if not (isinstance(model, (str, type)) or hasattr(model, "__qualname__")):
            raise InvalidSpec(
                "model",
                f"an instance ({type(model).__name__}) cannot go to another process; give its "
                "class, or module:Class, and its arguments in model_kwargs",
            )
        self._target = find_target(model, field="model", kwargs="model_kwargs")
        self._options = options or ModelProcessOptions()
        self._cwd = Path.cwd()
        self._process: subprocess.Popen[bytes] | None = None
        self._address: str | None = None

    @property
    def address(self) -> str:
        """Where the model is served."""
        if self._address is None:
            raise InvalidSpec("model", "its process was not started")
        return self._address

    @property
    def pid(self) -> int | None:
        """The process, or None."""
        return None if self._process is None else self._process.pid

    def start(self, timeout_s: float | None) -> None:
        """Start the process and wait until its model is built and can be reached.

        Raises:
            EndpointFault: The model could not be built, the process died, or it took longer.
        """
        ready, theirs = os.pipe()
        try:
            with contextlib.closing(_Descriptor(theirs)):
                self._process = _starter().call(lambda: self._spawn(theirs), None, "starting")
            self._address = self._wait_for_address(ready, timeout_s)
        except BaseException:
            self.close(0.0)
            raise
        finally:
            os.close(ready)

    def close(self, timeout_s: float | None) -> bool:
        """End the process; return whether it ended in time. One that did not is killed."""
        process, self._process = self._process, None
        self._address = None
        if process is None:
            return True
        if timeout_s is None or timeout_s > 0:
            process.terminate()
            return outwait(process, timeout_s)
        kill_group(process)
        outwait(process, None)
        return True

    # ------------------------------------------------------------------------------- inside

    def _spawn(self, ready_fd: int) -> subprocess.Popen[bytes]:
        options = self._options
        return spawn(
            CHILD_MODULE,
            {
                "target": self._target.text,
                "main_file": self._target.main_file,
                "model_kwargs": map_to_text(options.model_kwargs or {}),
                "has_kwargs": options.model_kwargs is not None,
                "conformance": options.conformance,
                "max_batch": options.max_batch,
                "max_wait_s": options.max_wait_s,
                "thread_safe": options.thread_safe,
            },
            arguments=[str(ready_fd)],
            pass_fds=[ready_fd],
            cwd=self._cwd,
            environment=options.environment,
        )

    def _wait_for_address(self, ready: int, timeout_s: float | None) -> str:
        expiry = None if timeout_s is None else time.monotonic() + timeout_s
        heard = b""
        while not heard.endswith(b"\n"):
            left_s = None if expiry is None else max(0.0, expiry - time.monotonic())
            if not select.select([ready], [], [], left_s)[0]:
                raise EndpointFault(
                    f"building the model in its process did not come back within {timeout_s} s; "
                    "raise limits.model_connect_s, or see what its constructor waits for",
                    error_class="TimeoutError",
                    outcome="not_done",
                )
            piece = os.read(ready, 65536)
            if not piece or len(heard) > _MOST_BYTES:
                raise self._died()
            heard += piece
        line = heard.decode().splitlines()[0]
        if line.startswith(FAILED):
            told = json.loads(line[len(FAILED) :])
            raise EndpointFault(
                told["message"],
                error_class=told["error_class"],
                traceback_text=told["traceback_text"],
                outcome="not_done",
            )
        return line

    def _died(self) -> EndpointFault:
        how = how_it_ended(self._process) or "said nothing"
        return EndpointFault(
            f"the model's process {how} before it could be reached",
            error_class="ModelProcessDied",
            outcome="not_done",
        )


def _starter() -> OwnThread:
    """Return the thread that starts children, which the kernel ends with it: it lives on."""
    return _starters.setdefault(os.getpid(), OwnThread("rollmesh-model-starter"))


class _Descriptor:
    """A descriptor that is closed once."""

    def __init__(self, number: int) -> None:
        self._number = number

    def close(self) -> None:
        os.close(self._number)


def replica_of(
    model: Any,
    route: ModelRoute,
    *,
    options: ModelProcessOptions | None = None,
    limits: Limits | None = None,
) -> Opener:
    """Return what starts a model in a process of its own and connects to it.

    Args:
        model: As `ModelProcess` takes it.
        route: The env that it is asked for.
        options: How it is served.
        limits: `model_connect_s` bounds starting and, again, loading; `close_s` ending it.

    Raises:
        InvalidSpec: It cannot be found by name from another process.
    """
    told = limits or Limits()
    client = replace(client_options(), resume_grace_s=_GRACE_S)
    ModelProcess(model, options)  # a wrong model is refused here, not when it is opened

    def open_replica(cancel: CancelToken) -> Replica:
        process = ModelProcess(model, options)

        def kill() -> None:
            process.close(0.0)

        unsubscribe = cancel.subscribe(kill)
        try:
            process.start(told.model_connect_s)
            name = f"the model's process {process.pid}"
            port = connect_replica(process.address, route, client, limits=told, cancel=cancel)
        except BaseException:
            kill()
            raise
        finally:
            unsubscribe()
        return Replica(port=port, name=name, close=lambda: process.close(told.close_s), kill=kill)

    return open_replica
