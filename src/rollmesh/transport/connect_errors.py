"""Kinds of `ConnectFailed`: why nobody was reached, as far as it decides what to do next (layer 5).

| error | what is there | trying again |
|---|---|---|
| `Unheard` | somebody takes connections, and says nothing or hangs up | may help: it starts |
| `WrongPeer` | somebody who is certainly no server of ours | does not help |
| `TlsFailed` | a server; the two do not agree on TLS | does not help |
| `NoPath` | a server of ours, without a path of the kind asked for | does not help |
| `HandshakeRefused` | a server of ours, which refused us | depends on its words |

They are raised and caught where connections are made; users see what `client_dialing.py` makes of
them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollmesh.errors import ConnectFailed

if TYPE_CHECKING:
    from rollmesh.wire.messages import ErrorBody


class TlsFailed(ConnectFailed):
    """Somebody answered, but the two do not agree on TLS; trying again does not help."""


class Unheard(ConnectFailed):
    """Somebody takes connections and hangs up, or says nothing; it may be tried again."""


class WrongPeer(ConnectFailed):
    """Somebody answered who is certainly no server of ours; trying again does not help."""


class NoPath(ConnectFailed):
    """The server answered, but has no path of the kind that was asked for."""


class HandshakeRefused(ConnectFailed):
    """The server refused us before it said where its native listeners are.

    Attributes:
        refusal: Its words.
    """

    def __init__(self, address: str, refusal: ErrorBody) -> None:
        super().__init__(address, f"the server refused us ({refusal.code}): {refusal.message}")
        self.refusal = refusal
