"""What a served model is told of the env that it is asked for (layer 6).

The same for every port of a served model, whoever sends and receives for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rollmesh.errors import EndpointFault
from rollmesh.limits import Limits
from rollmesh.ports import AdapterContext, EnvContract, PredictReply, PredictRequest
from rollmesh.transport.address import Address
from rollmesh.transport.connection import Connection
from rollmesh.wire.contract import encode_contract
from rollmesh.wire.dialect import MOST_PER_LANE, PREDICT_PER_LANE
from rollmesh.wire.handshake import EDITION
from rollmesh.wire.messages import Message, Resolve, Welcome

MOST_UNDER_WAY = 8
"""Requests that every server takes from one session at once; see `PREDICT_PER_LANE`."""


@dataclass(frozen=True, kw_only=True)
class ModelRoute:
    """The env that a model is asked for.

    Attributes:
        contract: What the env is.
        session_id: The run.
        env_id: The route.
        execution_horizon: How many frames of a chunk are executed, where that is known.
        is_shared: Whether several groups of lanes ask it at the same time.
        servers: Servers that the loop asks in turn, the model's among them.
    """

    contract: EnvContract
    session_id: str = ""
    env_id: str = ""
    execution_horizon: int | None = None
    is_shared: bool = False
    servers: int = 1


class ModelBinding:
    """What both kinds of port share: where the model is, and for which env it is asked.

    Args:
        address: Where the model is served.
        route: The env.
        limits: `model_connect_s` bounds connecting and preparing, now and again.

    Attributes:
        most_under_way: Requests that the server takes at once.
    """

    def __init__(self, address: Address, route: ModelRoute, limits: Limits) -> None:
        self.address = address
        self.route = route
        self.limits = limits
        self.most_under_way = MOST_UNDER_WAY
        self._encoded = encode_contract(route.contract)

    def bind(self, connection: Connection, welcome: Welcome) -> None:
        """Tell a connection the spaces, and read what the server takes at once."""
        contract = self.route.contract
        is_wide = welcome.capabilities.get(PREDICT_PER_LANE) == "true"
        lanes = contract.num_envs if is_wide else 0
        self.most_under_way = max(MOST_UNDER_WAY, min(lanes, MOST_PER_LANE))
        connection.framing.bind(contract.observation_space.codec, contract.action_space.codec, None)

    def resolve(self, context: AdapterContext) -> Resolve:
        """Return the request that makes a route known."""
        return Resolve(
            context=AdapterContext(
                context.session_id, context.env_id, f"{context.env_id}:resolve_adapter"
            ),
            contract=self._encoded,
            edition=EDITION,
            execution_horizon=self.route.execution_horizon,
        )

    def reply_of(self, request: PredictRequest, message: Message) -> Any:
        """Return the reply in a message, or the fault where it is none."""
        body = message.body
        if type(body) is not PredictReply:
            return EndpointFault(
                f"the server at {self.address} answered model.predict with a {message.kind.name} "
                "message",
                error_class="ProtocolError",
            )
        body.response_bytes = message.nbytes
        codec = self.route.contract.observation_space.codec
        body.request_bytes = codec.nbytes(request.observation, len(request.episode_info))
        return body
