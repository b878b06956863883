"""gRPC: finding out that a connection is gone when grpc has not noticed (layer 5).

A socket of grpc loses a reset that arrives together with the last bytes before it: the two come as
one event, the read takes the bytes, believes the socket empty, and waits for an event that was the
last one (seen with grpcio 1.85 on Linux, in about 1 of 100 resets, where threads that wait read the
sockets; see `grpc_loading`). Whoever waits for a reply then waits until something is written: a
keepalive ping, after 30 s, or nothing, until a deadline.

Writing anything brings it to light. So who waits for long nudges: a health check on the same
channel. Its answer is nobody's business, it is a call like any other to a foreign server too, and
unlike more frequent pings no server takes it amiss.
"""

from __future__ import annotations

import contextlib
from typing import Any, TypeAlias

from rollmesh.transport.grpc_common import HEALTH_SERVICE
from rollmesh.transport.grpc_loading import grpc
from rollmesh.wire.proto_health import write_health_request

UnaryCall: TypeAlias = "grpc.UnaryUnaryMultiCallable[bytes, bytes]"

FIRST_NUDGE_S = 1.0
"""How long a reply is waited for before the connection is nudged."""
_LONGEST_PAUSE_S = 16.0
_ANSWER_S = 5.0


def next_pause(pause_s: float) -> float:
    """Return how long to wait after one nudge before another, twice as long each time."""
    return min(_LONGEST_PAUSE_S, 2.0 * pause_s)


def ask_for_health(channel: grpc.Channel, timeout_s: float) -> Any:
    """Begin a health check and return the call. Any answer will do: whoever gives one is there."""
    check: UnaryCall = channel.unary_unary(f"/{HEALTH_SERVICE}/Check")
    return check.future(write_health_request(), timeout=timeout_s)


def nudge(channel: grpc.Channel) -> None:
    """Have something written to the server; returns at once and never raises."""
    with contextlib.suppress(Exception):  # the channel may be closed by now
        # grpc cancels a call that nobody holds: this one holds itself until it is over
        ask_for_health(channel, _ANSWER_S).add_done_callback(_let_go)


def _let_go(call: object) -> None:
    del call


def await_call(call: Any, channel: grpc.Channel) -> Exception | None:
    """Wait for a call with one answer, nudging meanwhile; return its error, or None.

    Raises:
        grpc.FutureCancelledError: It was cancelled.
    """
    pause_s = FIRST_NUDGE_S
    while True:
        try:
            return call.exception(pause_s)
        except grpc.FutureTimeoutError:
            nudge(channel)
            pause_s = next_pause(pause_s)
