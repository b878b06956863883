"""Serves a model to many clients (layer 6).

    ModelServer("my_policy:Policy", "rollmesh+unix:///run/model.sock").serve()

The model is built and called on one thread: with `serve()` the calling one. Each client has a
session and a thread that reads for it, so that a slow call (the first one may compile for a minute)
keeps nobody from connecting. Where the policy has a batch corner, requests of all clients with the
same spaces are put together (`batching.py`). A policy that is said to be thread-safe is called on
a thread per route instead.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from rollmesh.endpoint.calling_thread import CallingThread
from rollmesh.endpoint.error_bodies import Refused
from rollmesh.endpoint.own_thread import OwnThread
from rollmesh.endpoint.servers.model_home import ModelHome
from rollmesh.endpoint.servers.model_session import ModelSession
from rollmesh.endpoint.servers.model_supply import ModelSupply
from rollmesh.endpoint.servers.reception import DRAINING, Service
from rollmesh.endpoint.servers.server_options import MOST_SESSIONS, ServerOptions
from rollmesh.endpoint.servers.serving import Server, true_capabilities
from rollmesh.endpoint.servers.sessions import Arrival
from rollmesh.errors import RollmeshError
from rollmesh.ports import EnvContract, ModelPort
from rollmesh.transport.address import Address
from rollmesh.wire.dialect import PREDICT_PER_LANE
from rollmesh.wire.messages import ErrorBody

_logger = logging.getLogger(__name__)

CONCURRENT_PREDICT = "concurrent_predict"
"""Capability: several predicts may be under way at once."""
CAPABILITIES = true_capabilities([CONCURRENT_PREDICT, PREDICT_PER_LANE])


class ModelServer(Server):
    """Serves a model; see the module.

    Args:
        model: A policy, what names or builds one, or a model port.
        address: Where to listen, or several addresses.
        options: How.

    Raises:
        InvalidSpec: It is no policy, or an address is none, or needs TLS and a token.
    """

    service: ClassVar[Service] = "model"

    def __init__(
        self,
        model: object,
        address: str | Address | Sequence[str | Address] = "rollmesh+unix://",
        options: ServerOptions | None = None,
    ) -> None:
        super().__init__(address, options)
        self._supply = ModelSupply(model, self.options)
        self._most = self.options.max_sessions or MOST_SESSIONS
        self._home: ModelHome | None = None
        self._closed = threading.Event()

    # ------------------------------------------------------------------------- lifecycle

    def _serve_here(self) -> None:
        thread = CallingThread("rollmesh-model")
        self._use(thread)
        self._supply.build()
        self._signals.install_again()
        self._open_doors()
        thread.run()

    def _build_elsewhere(self) -> None:
        thread = OwnThread("rollmesh-model")
        self._use(thread)
        thread.call(self._supply.build, None, "building the model")

    def _give_up(self) -> None:
        if self._home is not None:
            self._home.thread.abandon()

    def _use(self, thread: OwnThread) -> None:
        self._home = ModelHome(thread, self._open_port, is_thread_safe=self.options.thread_safe)

    def _open_port(self, contract: EnvContract, thread: OwnThread) -> ModelPort:
        port = self._supply.port(contract.observation_space, contract.action_space, thread)
        self._signals.install_again()
        return port

    def _stop(self) -> None:
        home = self._home
        if home is None or home.thread.abandoned:
            return
        limit_s = self.options.close_timeout_s
        for session in self._all_sessions():
            session.release_all("the server closes")

        def closed(result: Any) -> None:
            del result
            self._closed.set()

        home.thread.submit(self._supply.close, closed, limit_s)
        home.thread.stop()
        if not self._closed.wait(limit_s):
            _logger.warning("close_overdue timeout_s=%s detail=the model is left behind", limit_s)
            home.thread.abandon()
            self.has_left_behind = True

    def _is_healthy(self) -> bool:
        return self._home is not None and not self._home.late

    def _all_sessions(self) -> list[ModelSession]:
        with self._lock:
            sessions = list(self._sessions.values())
        return [session for session in sessions if isinstance(session, ModelSession)]

    # --------------------------------------------------------------------------- entering

    def _enter_anew(self, arrival: Arrival) -> ErrorBody | None:
        home = self._home
        assert home is not None  # noqa: S101 - set before the doors open
        session = ModelSession(arrival, self.terms, home)
        with self._lock:
            if self._draining:
                return DRAINING
            if len(self._sessions) >= self._most:
                return Refused("busy", f"all {self._most} places are taken; try again later").body
            self._sessions[session.id] = session
        threading.Thread(
            target=self._read_for, args=(session,), name="rollmesh-model-session", daemon=True
        ).start()
        return None

    def _read_for(self, session: ModelSession) -> None:
        try:
            self._welcome(session, session.arrival)
        except RollmeshError as exc:
            _logger.info("welcome_failed session=%s error=%s", session.id, exc)
            session.let_go()
        else:
            session.serve()
        finally:
            self._forget(session)

    def _told(self) -> Mapping[str, Any]:
        return {"capabilities": CAPABILITIES}
