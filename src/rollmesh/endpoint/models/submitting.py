"""A model port of which only `submit` is left to write (layer 6)."""

from __future__ import annotations

import queue
from abc import ABC, abstractmethod
from typing import Any

from rollmesh.ports import (
    Callback,
    PredictReply,
    PredictRequest,
    ReleaseAdapterRequest,
    ResetAdapterRequest,
)


class SubmittingModel(ABC):
    """Answers the blocking calls of `ModelPort` by starting them and waiting for what comes back.

    There is no limit here: who needs one uses `submit`, and `abandon` where it is over.
    """

    @abstractmethod
    def submit(
        self, method: str, request: Any, callback: Callback, env_indices: tuple[int, ...]
    ) -> None:
        """Start `method(request)` and return at once."""

    @abstractmethod
    def abandon(self, env_indices: tuple[int, ...] = ()) -> None:
        """Leave what is under way behind."""

    def predict(self, request: PredictRequest) -> PredictReply:
        """Ask the model, and wait for it.

        Raises:
            EndpointFault: The model failed; `SessionLost` where what held it is gone.
        """
        return self._wait("predict", request)

    def reset_adapter(self, request: ResetAdapterRequest) -> None:
        """Have ended episodes forgotten; those of other routes are left alone."""
        self._wait("reset_adapter", request)

    def release_adapter(self, request: ReleaseAdapterRequest) -> None:
        """Have the route forgotten; the last one ends the model's own adapter."""
        self._wait("release_adapter", request)

    def _wait(self, method: str, request: Any) -> Any:
        arrived: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.submit(method, request, arrived.put, ())
        result = arrived.get()
        if isinstance(result, BaseException):
            raise result
        return result
