"""The rlmesh-wire-v1 mapping, in one place to import from (layer 4).

Bytes on the wire to the requests, replies and messages that ports and sessions know, both ways:

| for | see |
|---|---|
| handshake and shutdown | `write_hello`, `read_hello`, `write_welcome`, `read_welcome`, … |
| an env's Join, as a client | `EnvClientWire` |
| an env's Join, as a server | `open_env_request`, `EnvServerWire`; `EpisodeLedger` |
| a model's Join, as a client | `write_model_request`, `open_model_response`, `read_model_reply` |
| a model's Join, as a server | `open_model_request`, `read_model_request`, `read_predict`, … |
| who can do what | `handshake.py`, `dialect.py` |

The protobuf library is loaded by importing this module; `import rollmesh` does not.
"""

from __future__ import annotations

from rollmesh.wire.dialect import FOREIGN, ROLLMESH, Dialect, agree
from rollmesh.wire.episodes import EpisodeLedger
from rollmesh.wire.proto_env import (
    SERVICE as ENV_SERVICE,
)
from rollmesh.wire.proto_env import (
    Envelope,
    EpisodeFacts,
    check_contract,
    decode_contract,
    encode_contract,
)
from rollmesh.wire.proto_env_client import EnvClientWire
from rollmesh.wire.proto_env_server import EnvServerWire, open_env_request
from rollmesh.wire.proto_handshake import (
    MISSING_BASE,
    read_hello,
    read_shutdown,
    read_shutdown_reply,
    read_welcome,
    write_hello,
    write_shutdown,
    write_shutdown_reply,
    write_welcome,
)
from rollmesh.wire.proto_model import (
    SERVICE as MODEL_SERVICE,
)
from rollmesh.wire.proto_model import (
    ResolveRoute,
    context_of,
    groups_of,
    is_grouped,
    open_model_request,
    open_model_response,
    read_model_reply,
    read_model_request,
    read_predict,
    write_grouped_reply,
    write_model_reply,
    write_model_request,
)

__all__ = [
    "ENV_SERVICE",
    "FOREIGN",
    "MISSING_BASE",
    "MODEL_SERVICE",
    "ROLLMESH",
    "Dialect",
    "EnvClientWire",
    "EnvServerWire",
    "Envelope",
    "EpisodeFacts",
    "EpisodeLedger",
    "ResolveRoute",
    "agree",
    "check_contract",
    "context_of",
    "decode_contract",
    "encode_contract",
    "groups_of",
    "is_grouped",
    "open_env_request",
    "open_model_request",
    "open_model_response",
    "read_hello",
    "read_model_reply",
    "read_model_request",
    "read_predict",
    "read_shutdown",
    "read_shutdown_reply",
    "read_welcome",
    "write_grouped_reply",
    "write_hello",
    "write_model_reply",
    "write_model_request",
    "write_shutdown",
    "write_shutdown_reply",
    "write_welcome",
]
