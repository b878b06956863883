"""From the address of a served env to a Gymnasium env, scalar or vector (layer 6)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollmesh.endpoint.clients.env_client import connect_env

if TYPE_CHECKING:
    from rollmesh.endpoint.clients.client_options import ClientOptions
    from rollmesh.endpoint.clients.remote_env import RemoteEnv
    from rollmesh.endpoint.clients.remote_vector_env import RemoteVectorEnv
    from rollmesh.limits import Limits


def env_at(address: str, options: ClientOptions, limits: Limits) -> RemoteEnv | RemoteVectorEnv:
    """Connect to a served env, and return what fits the lanes it has.

    Raises:
        InvalidSpec: That is no address, or the options do not go with it.
        EndpointFault: Nobody answered in time, or the server refused.
    """
    port = connect_env(address, options, limits=limits, lanes=False)
    if port.contract.num_envs == 1:
        from rollmesh.endpoint.clients.remote_env import RemoteEnv

        return RemoteEnv(address, options=options, limits=limits, port=port)
    from rollmesh.endpoint.clients.remote_vector_env import RemoteVectorEnv

    return RemoteVectorEnv(address, options=options, limits=limits, port=port)
