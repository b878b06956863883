"""Opens a model several times: processes of our own, or addresses (layer 6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from rollmesh.endpoint.clients.model_client import HasModelAddress, connect_replica
from rollmesh.endpoint.clients.model_route import ModelRoute
from rollmesh.endpoint.models.batched import Batching
from rollmesh.endpoint.models.model_process import ModelProcessOptions, replica_of
from rollmesh.endpoint.models.replica_seats import Opener, Replica
from rollmesh.endpoint.models.replicas import ReplicatedModel
from rollmesh.endpoint.targets import is_address
from rollmesh.errors import InvalidSpec
from rollmesh.limits import Limits
from rollmesh.runtime.cancel import CancelToken
from rollmesh.spaces.conformance import Policy

_Named: TypeAlias = "tuple[str, Opener]"


@dataclass(frozen=True, kw_only=True)
class Replicas:
    """How a model is opened several times.

    Attributes:
        processes: How many processes of our own run it; None where it is a list of served ones.
        model_kwargs: Keyword arguments of its class or factory.
        conformance: What happens to actions outside their space.
        batching: How each of them puts requests together.
        limits: Bound starting, loading and closing.
        cancel: Ends starting.
    """

    processes: int | None
    model_kwargs: Mapping[str, Any] | None
    conformance: Policy
    batching: Batching | None
    limits: Limits
    cancel: CancelToken | None = None

    def open(self, model: object, route: ModelRoute) -> ReplicatedModel:
        """Open all of them, at once, and return once one is there (see `ReplicatedModel`).

        Raises:
            InvalidSpec: It is neither a name that another process finds nor a list of addresses.
            EndpointFault: One could not be opened; the others are closed.
        """
        named = self._processes(model, route) if self.processes else self._served(model, route)
        return ReplicatedModel(
            [opener for _, opener in named],
            observation_space=route.contract.observation_space,
            action_space=route.contract.action_space,
            names=[name for name, _ in named],
            cancel=self.cancel,
        )

    def _processes(self, model: object, route: ModelRoute) -> list[_Named]:
        batching = self.batching or Batching()
        options = ModelProcessOptions(
            model_kwargs=self.model_kwargs,
            conformance=self.conformance,
            max_batch=batching.max_batch,
            max_wait_s=batching.max_wait_s,
        )
        opener = replica_of(model, route, options=options, limits=self.limits)
        return [(f"model process {n}", opener) for n in range(1, (self.processes or 1) + 1)]

    def _served(self, model: object, route: ModelRoute) -> list[_Named]:
        if self.model_kwargs:
            raise InvalidSpec("model_kwargs", "belong to a model that is built here, not served")
        places = cast("Sequence[object]", model) if is_several(model) else [model]
        return [self._dials(place, route) for place in places]

    def _dials(self, place: object, route: ModelRoute) -> _Named:
        if isinstance(place, HasModelAddress):
            address, options = place.address, place.options
        elif isinstance(place, str) and is_address(place):
            address, options = place, None
        else:
            raise InvalidSpec(
                "model",
                f"a list of models is a list of addresses of served ones, got {place!r:.100}; to "
                "run one model in several processes name it and give fleet.model_workers",
            )

        name = f"the model at {address}"

        def dial(cancel: CancelToken) -> Replica:
            port = connect_replica(address, route, options, limits=self.limits, cancel=cancel)
            return Replica(port=port, name=name)

        return name, dial


def is_several(model: object) -> bool:
    """Return whether a model argument names several served ones."""
    return isinstance(model, (list, tuple))
