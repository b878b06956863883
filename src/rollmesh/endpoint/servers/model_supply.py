"""The model of a server, and its ports: one per route, or one that batches (layer 6).

Everything here runs on the model's thread, but for what is said to.
"""

from __future__ import annotations

import logging
from typing import Any

from rollmesh.endpoint.faults import fault_from
from rollmesh.endpoint.models.batching import BatchingModel
from rollmesh.endpoint.models.model_loading import SharedPolicy
from rollmesh.endpoint.own_thread import OwnThread
from rollmesh.endpoint.servers.server_options import ServerOptions
from rollmesh.errors import EndpointFault, InvalidSpec
from rollmesh.ports import AdapterContext, ModelPort, ReleaseAdapterRequest
from rollmesh.spaces.space import Space

_logger = logging.getLogger(__name__)

_PORT_METHODS = ("reset_adapter", "release_adapter", "predict")


class ModelSupply:
    """Where the ports of a model server come from.

    Args:
        model: A policy, what names or builds one, or a model port.
        options: Of the server.

    Raises:
        InvalidSpec: It is none.
    """

    def __init__(self, model: object, options: ServerOptions) -> None:
        self._options = options
        self._port: ModelPort | None = None
        self._policy: SharedPolicy | None = None
        if all(callable(getattr(model, name, None)) for name in _PORT_METHODS):
            port: Any = model
            self._port = port
        else:
            self._policy = SharedPolicy(
                model, model_kwargs=options.model_kwargs, conformance=options.conformance
            )
        self._batching: dict[tuple[Space, Space], BatchingModel] = {}

    def build(self) -> None:
        """Build the model; it is loaded when its first route tells the spaces.

        Raises:
            EndpointFault: Its constructor raised.
        """
        if self._policy is not None:
            try:
                self._policy.build()
            except (EndpointFault, InvalidSpec):
                raise
            except BaseException as exc:
                raise fault_from(exc, where="building the model", outcome="not_done") from exc

    def port(self, observation_space: Space, action_space: Space, thread: OwnThread) -> ModelPort:
        """Return the port of a new route.

        Routes with the same spaces share one that batches, where the policy takes several rows at
        once; others have one each, over the same policy.

        Raises:
            EndpointFault: The policy's `load` raised.
            InvalidSpec: It is no policy.
        """
        if self._policy is None:
            assert self._port is not None  # noqa: S101 - one of the two is there
            return self._port
        spaces = observation_space, action_space
        known = self._batching.get(spaces)
        if known is not None:
            return known
        port = self._policy.port(observation_space, action_space)
        if not port.can_batch or self._options.max_batch == 1 or self._options.thread_safe:
            return port
        batching = BatchingModel(
            port,
            self._options.max_batch,
            self._options.max_wait_s,
            observation_space=observation_space,
            action_space=action_space,
            thread=thread,
        )
        self._batching[spaces] = batching
        return batching

    def close(self, timeout_s: float | None) -> None:
        """Close what was built here; never raises."""
        try:
            if self._policy is not None:
                self._policy.close()
            elif self._options.closes_env and self._port is not None:
                nobody = AdapterContext("", "", "close")
                self._port.release_adapter(ReleaseAdapterRequest(nobody, "closed", timeout_s))
        except BaseException as exc:  # noqa: BLE001 - told here, as nobody waits for it
            _logger.warning("close_failed model error=%r", exc)
