"""The process of a model (layer 6).

Run as `python -m rollmesh.endpoint.models.model_process_child FD`.

Started by `model_process.py` and by nobody else. It serves a model on its main thread and writes
its address, or why there is no model, to the descriptor.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence

from rollmesh.endpoint.child_process import begin, load_main
from rollmesh.endpoint.faults import fault_from
from rollmesh.endpoint.models.model_process import FAILED
from rollmesh.endpoint.servers.lifecycle import Readiness
from rollmesh.endpoint.servers.model_server import ModelServer
from rollmesh.endpoint.servers.server_options import ServerOptions
from rollmesh.wire.metadata import map_from_text

_DRAIN_S = 0.5


def main() -> None:
    """Serve one model to the process that started this one."""
    ready_fd = int(sys.argv[1])
    os.set_inheritable(ready_fd, False)
    config = begin()
    told = _Told(ready_fd)
    try:
        if config["main_file"]:
            load_main(config["main_file"])
        kwargs = map_from_text(config["model_kwargs"])
        server = ModelServer(
            config["target"],
            "rollmesh+unix://",
            ServerOptions(
                model_kwargs=kwargs if config["has_kwargs"] else None,
                conformance=config["conformance"],
                max_batch=config["max_batch"],
                max_wait_s=config["max_wait_s"],
                thread_safe=config["thread_safe"],
                drain_timeout_s=_DRAIN_S,
                resume_grace_s=_DRAIN_S,
                expose_tracebacks=True,
            ),
        )
        server.readiness = told
        server.serve()
    except Exception as exc:
        if told.is_told:
            raise
        told.fail(exc)


class _Told(Readiness):
    """Tells the parent where the model is, or that there is none."""

    def __init__(self, ready_fd: int) -> None:
        super().__init__(ready_fd)
        self.is_told = False
        self._pipe = ready_fd

    def ready(self, addresses: Sequence[str]) -> None:
        super().ready(addresses)
        self.is_told = True

    def fail(self, exc: BaseException) -> None:
        """Tell why there is no model."""
        fault = fault_from(exc, where="building the model", outcome="not_done")
        body = {
            "message": fault.detail,
            "error_class": fault.error_class,
            "traceback_text": fault.traceback_text,
        }
        with open(self._pipe, "w", encoding="utf-8") as pipe:  # noqa: PTH123 - a descriptor
            pipe.write(f"{FAILED}{json.dumps(body)}\n")
        self.is_told = True


if __name__ == "__main__":
    main()
