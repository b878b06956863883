"""Session messages: what two rollmesh ends say to each other, over any transport (layer 4).

A `Message` is a kind, a request id and a body. For operations the body is the very request or reply
of `ports`, so that a server hands it to its port, and a client to its engine, as it is; what ports
do not know (hello, errors, render, …) has a struct here.

Leaves stand in a body as live arrays; where a transport turns a message into bytes they travel
beside the rest, never inside it (`framing.py`).

This module knows no bytes, sockets or sessions.
"""

from __future__ import annotations

import enum
from typing import Any, Protocol, TypeAlias

import msgspec

from rollmesh.errors import Outcome
from rollmesh.ports import (
    AdapterContext,
    PredictReply,
    PredictRequest,
    ReleaseAdapterRequest,
    ResetAdapterRequest,
    ResetReply,
    ResetRequest,
    StepReply,
    StepRequest,
)

GENERATION = "rollmesh-native-1"
"""What `Hello` and `Welcome` must agree on."""


class Kind(enum.IntEnum):
    """What a message is about. A reply has the kind of its request, or is an `ERROR`."""

    HELLO = 1
    WELCOME = 2
    CONFIGURE = 3
    RESET = 4
    STEP = 5
    RENDER = 6
    CLOSE = 7
    RESOLVE = 8
    PREDICT = 9
    RESET_ADAPTER = 10
    RELEASE_ADAPTER = 11
    CANCEL = 12
    PING = 13
    PONG = 14
    ERROR = 15
    PROBE = 16
    SHUTDOWN = 17
    REBUILD = 18


# -------------------------------------------------------------------------- opening a session


class Hello(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """The client's first message.

    Attributes:
        generation: `GENERATION`.
        service: `"env"` or `"model"`: what the client wants to talk to.
        token: The secret, or `""`.
        session_id: The session to resume, or `""` for a new one.
        capabilities: What the client can do.
        peer: Who it is: component, versions, host; advisory.
        editions: Workflow editions it can.
        preferred_edition: The edition it wants, or `""`.
    """

    generation: str
    service: str
    token: str = ""
    session_id: str = ""
    capabilities: dict[str, str] = {}
    peer: dict[str, str] = {}
    editions: tuple[str, ...] = ()
    preferred_edition: str = ""

    def __repr__(self) -> str:
        # the token must not reach a log by way of a message that is shown
        token = "…" if self.token else ""
        return f"Hello(service={self.service!r}, token={token!r}, session_id={self.session_id!r})"


class Welcome(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """The server's answer to `Hello`; several may come while the client queues.

    Attributes:
        generation: `GENERATION` of the server.
        is_compatible: Whether the two can talk.
        detail: Why not, in a sentence; with a position, what is waited for if not the queue.
        session_id: The session, new or resumed.
        position: Place in the queue; 0 means admitted, and no further welcome comes.
        is_resumed: Whether the session asked for is the one given.
        capabilities: What the server can do.
        peer: Who it is; advisory.
        editions: Workflow editions it can.
        preferred_edition: The edition it wants, or `""`.
        contract: The encoded env contract, or nothing; the session layer knows how.
    """

    generation: str
    is_compatible: bool = True
    detail: str = ""
    session_id: str = ""
    position: int = 0
    is_resumed: bool = False
    capabilities: dict[str, str] = {}
    peer: dict[str, str] = {}
    editions: tuple[str, ...] = ()
    preferred_edition: str = ""
    contract: bytes = b""


class Configure(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Fix the workflow edition, and name/value settings of the session."""

    edition: str
    settings: dict[str, str] = {}


# -------------------------------------------------------------------------------- operations


class Done(msgspec.Struct, frozen=True, array_like=True):
    """The reply of an operation that returns nothing."""


class Render(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Ask for the rendering of these lanes (empty = all)."""

    env_indices: tuple[int, ...] = ()
    timeout_ms: int = 0


class RenderReply(msgspec.Struct, frozen=True, kw_only=True):
    """What `render()` returned: None, an array, a text, or a list or tuple of them."""

    frame: Any = None


class Close(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """End the session; with `close_env` the env too. `timeout_ms` 0 is no limit."""

    reason: str = ""
    timeout_ms: int = 0
    close_env: bool = False


class Rebuild(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Build these lanes (empty = all) anew."""

    env_indices: tuple[int, ...] = ()
    timeout_ms: int = 0


class Resolve(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Prepare a model for a route; `contract` is the env's, encoded by the session layer."""

    context: AdapterContext
    contract: bytes = b""
    edition: str = ""
    execution_horizon: int | None = None


class ResolveReply(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """The model is ready; `native_chunk` is how many frames it returns, where that is fixed."""

    context: AdapterContext
    native_chunk: int | None = None


class Cancel(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Nobody waits any more for the request whose id this message carries. It gets no reply."""

    reason: str = ""


class ErrorBody(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """The reply of an operation that failed.

    Attributes:
        code: What kind of failure: `timeout`, `invalid_action`, `internal`, `busy`, ….
        error_class: Class name of the original error.
        message: Its text.
        traceback_text: The traceback, where the peer may see it.
        is_recoverable: Whether the endpoint may be reset and used again.
        outcome: Whether the operation happened.
        env_index: The lane it happened on, where known.
        error_id: Names the error in the server's log.
    """

    code: str
    error_class: str = ""
    message: str = ""
    traceback_text: str = ""
    is_recoverable: bool = False
    outcome: Outcome = "unknown"
    env_index: int | None = None
    error_id: str = ""


class Probe(msgspec.Struct, frozen=True, array_like=True):
    """Bytes to be sent back, to measure the way there and back."""

    payload: bytes = b""


class ProbeReply(msgspec.Struct, frozen=True, array_like=True):
    """The bytes of a `Probe`."""

    payload: bytes = b""


class Shutdown(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Ask the server to end."""

    reason: str = ""


class ShutdownReply(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Whether the server is going to end, and if not, why."""

    is_accepted: bool
    detail: str = ""


# ---------------------------------------------------------------------------------- messages

Body: TypeAlias = (
    Hello
    | Welcome
    | Configure
    | Render
    | RenderReply
    | Close
    | Rebuild
    | Resolve
    | ResolveReply
    | Cancel
    | ErrorBody
    | Probe
    | ProbeReply
    | Shutdown
    | ShutdownReply
    | Done
    | ResetRequest
    | ResetReply
    | StepRequest
    | StepReply
    | PredictRequest
    | PredictReply
    | ResetAdapterRequest
    | ReleaseAdapterRequest
    | None
)

REQUESTS: dict[Kind, type[Any]] = {
    Kind.HELLO: Hello,
    Kind.CONFIGURE: Configure,
    Kind.RESET: ResetRequest,
    Kind.STEP: StepRequest,
    Kind.RENDER: Render,
    Kind.CLOSE: Close,
    Kind.RESOLVE: Resolve,
    Kind.PREDICT: PredictRequest,
    Kind.RESET_ADAPTER: ResetAdapterRequest,
    Kind.RELEASE_ADAPTER: ReleaseAdapterRequest,
    Kind.CANCEL: Cancel,
    Kind.PING: type(None),
    Kind.PROBE: Probe,
    Kind.SHUTDOWN: Shutdown,
    Kind.REBUILD: Rebuild,
}
"""Body of the request of each kind."""

REPLIES: dict[Kind, type[Any]] = {
    Kind.WELCOME: Welcome,
    Kind.CONFIGURE: Done,
    Kind.RESET: ResetReply,
    Kind.STEP: StepReply,
    Kind.RENDER: RenderReply,
    Kind.CLOSE: Done,
    Kind.RESOLVE: ResolveReply,
    Kind.PREDICT: PredictReply,
    Kind.RESET_ADAPTER: Done,
    Kind.RELEASE_ADAPTER: Done,
    Kind.PONG: type(None),
    Kind.ERROR: ErrorBody,
    Kind.PROBE: ProbeReply,
    Kind.SHUTDOWN: ShutdownReply,
    Kind.REBUILD: Done,
}
"""Body of the reply of each kind."""


class Holds(Protocol):
    """What a message over shared memory holds: see `transport.shared_memory.Lease`."""

    def release(self) -> None:
        """Give the memory back; the message's leaves must not be read after this."""
        ...


class Message(msgspec.Struct, gc=False):
    """One message.

    Attributes:
        kind: What it is about.
        request_id: Names the request; its reply carries the same. Unique among the requests that
            are under way on a connection, below 2**64, and never 0, which stands for no request.
        body: Request or reply, as `REQUESTS` and `REPLIES` list them.
        nbytes: Bytes it took on the wire, shared memory included; set where one is received.
        lease: Set where the leaves are views into shared memory: call `lease.release()` when
            done with them. None where the leaves are the receiver's own.
    """

    kind: Kind
    request_id: int
    body: Any = None
    nbytes: int = 0
    lease: Holds | None = None

    @property
    def is_reply(self) -> bool:
        """Whether this answers a request."""
        return is_reply(self.kind, self.body)


_REPLY_TYPES = frozenset(REPLIES.values()) - {type(None)}


def is_reply(kind: Kind, body: object) -> bool:
    """Tell a reply from a request of the same kind."""
    return type(body) in _REPLY_TYPES or kind is Kind.PONG
