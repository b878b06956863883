"""A local model behind a batcher: many lanes, one call (layer 6).

Where several lanes go their own ways and the policy takes several rows at once, their requests are
put together. The model is then called on one thread: its own where it was built here, a new one
where the caller gave an instance.
"""

from __future__ import annotations

from dataclasses import dataclass

from rollmesh.endpoint.models.batching import BatchingModel
from rollmesh.endpoint.models.policy import LocalModel, ThreadedModel
from rollmesh.ports import ModelPort
from rollmesh.spaces.space import Space


@dataclass(frozen=True, kw_only=True)
class Batching:
    """How requests are put together.

    Attributes:
        max_batch: Rows of one call at most; 1 asks the model row by row.
        max_wait_s: How long the first request of a batch may wait, in seconds; None learns it from
            arrivals and from what a call costs.
        bucket_sizes: The numbers of rows that the model is called with, ascending; smaller batches
            are filled up. None calls it with as many as there are.
    """

    max_batch: int = 64
    max_wait_s: float | None = None
    bucket_sizes: tuple[int, ...] | None = None


def batched(
    port: ModelPort, batching: Batching, *, observation_space: Space, action_space: Space
) -> ModelPort:
    """Return a port that puts requests together, or `port` itself where that cannot be.

    Whoever calls this closes the returned `BatchingModel` once the route is over.
    """
    local = port.model if isinstance(port, ThreadedModel) else port
    if batching.max_batch == 1 or not isinstance(local, LocalModel) or not local.can_batch:
        return port
    return BatchingModel(
        local,
        batching.max_batch,
        batching.max_wait_s,
        observation_space=observation_space,
        action_space=action_space,
        thread=port.thread if isinstance(port, ThreadedModel) else None,
        bucket_sizes=batching.bucket_sizes,
    )
