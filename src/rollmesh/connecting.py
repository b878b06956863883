"""`connect`: from an address to something one can use (layer 8)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal

from rollmesh.arguments import read_limits
from rollmesh.endpoint.clients.client_dialing import ConnectRefused
from rollmesh.endpoint.clients.client_options import Transport, client_options
from rollmesh.errors import InvalidSpec
from rollmesh.limits import Limits
from rollmesh.transport.security import TlsClient, Token

if TYPE_CHECKING:
    from rollmesh.endpoint.clients.remote_env import RemoteEnv
    from rollmesh.endpoint.clients.remote_model import RemoteModel
    from rollmesh.endpoint.clients.remote_vector_env import RemoteVectorEnv

_SERVICES = (None, "env", "model")


def connect(
    address: str,
    *,
    service: Literal["env", "model"] | None = None,
    token: str | Token | None = None,
    token_file: str | os.PathLike[str] | None = None,
    tls: TlsClient | None = None,
    transport: Transport | None = None,
    resume_grace_s: float | None = None,
    insecure_plaintext: bool | None = None,
    limits: Limits | None = None,
) -> RemoteEnv | RemoteVectorEnv | RemoteModel:
    """Connect to what is served at an address; what comes back is also good for `evaluate`.

    ```python
    with rollmesh.connect("rollmesh+tcp://sim-host:5000", token_file="token") as env:
        result = rollmesh.evaluate(policy, env, episodes=100)
    ```

    What is left out comes from the environment: `ROLLMESH_TOKEN`, `ROLLMESH_TOKEN_FILE`,
    `ROLLMESH_TLS…`, `ROLLMESH_TRANSPORT`.

    Args:
        address: Where it is served.
        service: What is expected there; None takes either.
        token: The secret that the server wants.
        token_file: A file that holds it.
        tls: How to talk TLS.
        transport: `auto` takes the fastest path; `native` and `grpc` force one.
        resume_grace_s: How long to try to go on after the connection dropped, in seconds.
        insecure_plaintext: Whether the token may cross the network in plain text.
        limits: How long connecting and each operation may take.

    Returns:
        A `RemoteEnv`, a `RemoteVectorEnv` where it has several lanes, or a `RemoteModel`.

    Raises:
        InvalidSpec: That is no address, or the options do not go with it.
        EndpointFault: Nobody answered in time, or the server refused.
    """
    if service not in _SERVICES:
        raise InvalidSpec("service", f"wants 'env', 'model' or None, got {service!r}")
    options = client_options(
        token=token,
        token_file=token_file,
        tls=tls,
        transport=transport,
        resume_grace_s=resume_grace_s,
        insecure_plaintext=insecure_plaintext,
    )
    checked = read_limits(limits)
    if service != "model":
        from rollmesh.endpoint.clients.env_at import env_at

        try:
            return env_at(address, options, checked)
        except ConnectRefused as refusal:
            if service == "env" or refusal.code != "incompatible":
                raise
    from rollmesh.endpoint.clients.remote_model import RemoteModel

    return RemoteModel(address, options=options, limits=checked)
