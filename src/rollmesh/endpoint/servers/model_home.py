"""What the sessions with a model share, and the routes by which they use it (layer 6).

The model lives on one thread, which builds it and opens its routes. A route knows how its port is
called: there, on a thread of the route's own where the model is thread-safe, or as a port that has
threads itself. Nothing here knows connections or messages.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rollmesh.endpoint.own_thread import OwnThread
from rollmesh.endpoint.servers.model_episodes import Owners
from rollmesh.ports import AdapterContext, Callback, EnvContract, ModelPort

if TYPE_CHECKING:
    from rollmesh.endpoint.servers.sessions import Session


class DrivenRoute:
    """One env that a client drives with the model.

    Args:
        context: Names the route to the port.
        port: The model.
        thread: The thread that the port is called on.
        owns_thread: Whether it ends with the route.

    Attributes:
        episodes: Ids of the episodes under way.
        context: Names the route to the port.
        is_away: Tells whether its client is not there at the moment.
        runs_anywhere: Whether any thread may call the model, so that no handover is needed.
        lends: Whether the thread of the model may read for a session: it calls the model itself.
    """

    def __init__(
        self, context: AdapterContext, port: ModelPort, thread: OwnThread, *, owns_thread: bool
    ) -> None:
        self.context = context
        self.episodes: set[str] = set()
        self._port = port
        self._thread = thread
        self._owns_thread = owns_thread
        self.is_away: Callable[[], bool] = _never
        self._submit: Callable[..., None] | None = getattr(port, "submit", None)
        self.runs_anywhere = owns_thread and self._submit is None
        self.lends = not owns_thread and self._submit is None

    def submit(self, method: str, request: Any, callback: Callback) -> None:
        """Start `method(request)` and return at once."""
        if self._submit is not None:
            self._submit(method, request, callback, ())
        else:
            self._thread.submit(getattr(self._port, method), callback, request)

    def call(self, method: str, request: Any, callback: Callback) -> None:
        """Carry out `method(request)` right here."""
        try:
            result = getattr(self._port, method)(request)
        except BaseException as exc:  # noqa: BLE001 - told to the client
            result = exc
        callback(result)

    def end(self) -> None:
        """Let go of a thread of its own."""
        if self._owns_thread:
            self._thread.stop()


class ModelHome:
    """What all sessions with a model share: its thread, its supply, and who has which episode.

    Args:
        thread: The model's thread.
        open_port: Returns the port for a pair of spaces; called on that thread.
        is_thread_safe: Whether each route may have a thread of its own.

    Attributes:
        late: Calls that did not come back in time, and still have not.
        owners: The route of each episode under way.
        sessions: Sessions that are served.
    """

    def __init__(
        self,
        thread: OwnThread,
        open_port: Callable[[EnvContract, OwnThread], ModelPort],
        *,
        is_thread_safe: bool,
    ) -> None:
        self.thread = thread
        self.owners: Owners = {}
        self.late: set[tuple[str, int]] = set()
        self.sessions: set[Session] = set()
        self._open_port = open_port
        self._is_thread_safe = is_thread_safe

    def open_route(
        self, context: AdapterContext, contract: EnvContract, callback: Callback
    ) -> None:
        """Open a route on the model's thread; `callback` gets it, or what was raised."""

        def open_here() -> DrivenRoute:
            if not self._is_thread_safe:
                port = self._open_port(contract, self.thread)
                return DrivenRoute(context, port, self.thread, owns_thread=False)
            thread = OwnThread("rollmesh-model-route")
            port = self._open_port(contract, thread)
            return DrivenRoute(context, port, thread, owns_thread=True)

        self.thread.submit(open_here, callback)

    def is_free_for(self, session: Session) -> bool:
        """Whether the model's thread has nobody else to be there for."""
        thread = self.thread
        is_only = len(self.sessions) == 1 and session in self.sessions
        return is_only and not (thread.stopped or thread.abandoned)


def _never() -> bool:
    return False
