"""Toys that work on threads of their own, as envs and models built by rollmesh do.

They hang on `threading.Event`s and never sleep; whoever makes one hang releases it at the end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from rollmesh.endpoint.own_thread import OwnThread
from rollmesh.ports import (
    SUBSET_STEP,
    PredictReply,
    PredictRequest,
    ReleaseAdapterRequest,
    ResetAdapterRequest,
    ResetReply,
    ResetRequest,
    StepReply,
    StepRequest,
)
from tests.driving import FakeClock
from tests.toys import ToyEnv, ToyModel

PATIENCE_S = 20.0
"""How long a test waits for something that always comes; a failure then is no hang."""


class Gate:
    """A place to hang at: `arrive` tells that somebody is there and waits until `open`.

    With a clock, whoever arrives is at once a hundred seconds late, and nobody else ever is.
    """

    def __init__(self, clock: FakeClock | None = None) -> None:
        self.clock = clock
        self.reached = threading.Event()
        self._opened = threading.Event()

    def arrive(self) -> None:
        if self.clock is not None:
            self.clock.pass_s(100)
        self.reached.set()
        assert self._opened.wait(PATIENCE_S)

    def open(self) -> None:
        self._opened.set()

    def when_reached(self, act: Callable[[], Any]) -> threading.Thread:
        """Call `act` on another thread once somebody hangs here."""

        def wait() -> None:
            if self.reached.wait(PATIENCE_S):
                act()

        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        return thread


def plan_of(**acts: Any) -> dict[tuple[str, int], Callable[[], Any]]:
    """Return acts by method and call: `step_3=gate.arrive` is done in the third step."""
    named = {}
    for name, act in acts.items():
        method, _, n = name.rpartition("_")
        named[method, int(n)] = act
    return named


class ThreadedEnv(ToyEnv):
    """A toy env on its own thread, or with a thread a lane where lanes step on their own."""

    def __init__(
        self,
        *args: Any,
        acts: dict[tuple[str, int], Callable[[], Any]] | None = None,
        thread: OwnThread | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.acts = acts or {}
        self.calls: dict[str, int] = {}
        self.abandoned: list[tuple[int, ...]] = []
        self.ran_on: set[int] = set()
        self.own = SUBSET_STEP in self.capabilities and len(self.lanes) > 1
        count = len(self.lanes) if self.own else 1
        self.threads = [thread or OwnThread(f"toy-{i}") for i in range(count)]
        self.thread = None if self.own else self.threads[0]
        self.lock = threading.Lock()

    def submit(
        self, method: str, request: Any, callback: Callable[[Any], None], env_indices: Any
    ) -> None:
        index = env_indices[0] if self.own and env_indices else 0
        self.threads[index].submit(getattr(self, method), callback, request)

    def abandon(self, env_indices: tuple[int, ...]) -> None:
        self.abandoned.append(env_indices)
        for index in env_indices if self.own else (0,):
            self.threads[index].abandon()

    def reset(self, request: ResetRequest) -> ResetReply:
        self._act("reset")
        with self.lock:
            return super().reset(request)

    def step(self, request: StepRequest) -> StepReply:
        self._act("step")
        with self.lock:
            return super().step(request)

    def close(self, timeout_s: float | None) -> None:
        self._act("close")
        super().close(timeout_s)

    def rebuild(self, env_indices: tuple[int, ...]) -> None:
        for index in env_indices if self.own else (0,):
            if self.threads[index].abandoned:
                self.threads[index] = OwnThread(f"toy-{index}-again")
        with self.lock:
            super().rebuild(env_indices)

    def _act(self, method: str) -> None:
        with self.lock:
            self.ran_on.add(threading.get_ident())
            n = self.calls[method] = self.calls.get(method, 0) + 1
            act = self.acts.get((method, n))
        if act is not None:
            act()


class RebuildingEnv(ThreadedEnv):
    """A threaded env whose rebuild is called by the engine even where its thread is gone."""

    def submit(
        self, method: str, request: Any, callback: Callable[[Any], None], env_indices: Any
    ) -> None:
        if method == "rebuild":
            self.rebuild(request)
            callback(None)
            return
        super().submit(method, request, callback, env_indices)


class ThreadedModel(ToyModel):
    """A toy model on its own thread."""

    def __init__(
        self,
        frames: int = 1,
        *,
        acts: dict[tuple[str, int], Callable[[], Any]] | None = None,
        thread: OwnThread | None = None,
    ) -> None:
        super().__init__(frames)
        self.acts = acts or {}
        self.calls: dict[str, int] = {}
        self.abandoned = 0
        self.ran_on: set[int] = set()
        self.thread = thread or OwnThread("toy-model")

    def submit(
        self, method: str, request: Any, callback: Callable[[Any], None], env_indices: Any
    ) -> None:
        self.thread.submit(getattr(self, method), callback, request)

    def abandon(self, env_indices: tuple[int, ...]) -> None:
        self.abandoned += 1
        self.thread.abandon()

    def predict(self, request: PredictRequest) -> PredictReply:
        self._act("predict")
        return super().predict(request)

    def reset_adapter(self, request: ResetAdapterRequest) -> None:
        self._act("reset_adapter")
        super().reset_adapter(request)

    def release_adapter(self, request: ReleaseAdapterRequest) -> None:
        self._act("release_adapter")
        super().release_adapter(request)

    def _act(self, method: str) -> None:
        self.ran_on.add(threading.get_ident())
        n = self.calls[method] = self.calls.get(method, 0) + 1
        act = self.acts.get((method, n))
        if act is not None:
            act()


def raising(error: BaseException) -> Callable[[], None]:
    """Return an act that raises."""

    def act() -> None:
        raise error

    return act
