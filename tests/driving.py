"""Ways to run a route of toys in a test: what happened, in order, and how it ended."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rollmesh.errors import RouteError
from rollmesh.ports import (
    PARTIAL_RESET,
    AutoresetMode,
    PredictReply,
    PredictRequest,
    ReleaseAdapterRequest,
    ResetAdapterRequest,
    ResetReply,
    ResetRequest,
    StepReply,
    StepRequest,
)
from rollmesh.runtime.cancel import CancelToken
from rollmesh.runtime.driver import RouteDriver
from rollmesh.runtime.hooks import Hooks
from rollmesh.runtime.report import RouteReport
from tests.toys import CountingMint, Notes, ToyEnv, ToyModel, spec_for

DISABLED = AutoresetMode.DISABLED
NEXT_STEP = AutoresetMode.NEXT_STEP
SAME_STEP = AutoresetMode.SAME_STEP
MODES = (DISABLED, NEXT_STEP, SAME_STEP)


@dataclass
class Run:
    """What came of a run: a report or an error, and everything that was noted on the way."""

    env: ToyEnv
    model: ToyModel
    notes: Notes
    report: RouteReport | None
    error: BaseException | None

    @property
    def ok(self) -> RouteReport:
        """The report of a good run."""
        assert self.error is None, repr(self.error)
        assert self.report is not None
        return self.report

    @property
    def failure(self) -> RouteError:
        """The error of a failed run."""
        assert isinstance(self.error, RouteError), repr(self.error)
        return self.error


def drive(
    env: ToyEnv,
    model: ToyModel | None = None,
    *,
    hooks: Sequence[object] = (),
    cancel: CancelToken | None = None,
    driver: dict[str, Any] | None = None,
    **spec: Any,
) -> Run:
    """Run a route and return what came of it; `driver` holds arguments of the driver."""
    model = model or ToyModel()
    notes = Notes()
    options: dict[str, Any] = {"mint": CountingMint(), **(driver or {})}
    made = RouteDriver(spec_for(env, **spec), env, model, hooks=[notes, *hooks], **options)
    try:
        report = made.run(cancel)
    except BaseException as error:  # noqa: BLE001 - judged by the test
        return Run(env, model, notes, None, error)
    return Run(env, model, notes, report, None)


def lengths(*steps: int) -> Callable[[int | None, int, int], int]:
    """Return a length function: lane i's episodes last `steps[i]` steps."""
    return lambda seed, lane, n: steps[lane]


class FakeClock:
    """A clock that goes on when it is told to."""

    def __init__(self) -> None:
        self.now_ns = 0

    def monotonic_ns(self) -> int:
        return self.now_ns

    def wall_ns(self) -> int:
        return self.now_ns

    def pass_s(self, seconds: float) -> None:
        self.now_ns += int(seconds * 1e9)


class SlowEnv(ToyEnv):
    """A toy whose every reset and step takes so many seconds of a fake clock."""

    def __init__(
        self, clock: FakeClock, *args: Any, reset_s: float = 0.0, step_s: float = 0.0, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.clock, self.reset_s, self.step_s = clock, reset_s, step_s

    def reset(self, request: ResetRequest) -> ResetReply:
        self.clock.pass_s(self.reset_s)
        return super().reset(request)

    def step(self, request: StepRequest) -> StepReply:
        self.clock.pass_s(self.step_s)
        return super().step(request)


class Tale:
    """One list of everything that calls and hooks say, in the order they say it."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.lock = threading.Lock()

    def say(self, line: str) -> None:
        with self.lock:
            self.lines.append(line)


def lanes_of(indices: Sequence[Any]) -> str:
    """Return lanes as text: `0,1`."""
    return ",".join(str(int(i)) for i in indices)


class TaleEnv(ToyEnv):
    """A toy env that tells its calls (`> reset all`, `> step`)."""

    def __init__(self, tale: Tale, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.tale = tale

    def reset(self, request: ResetRequest) -> ResetReply:
        self.tale.say(f"> reset {lanes_of(request.env_indices) or 'all'}")
        return super().reset(request)

    def step(self, request: StepRequest) -> StepReply:
        self.tale.say(f"> step {lanes_of(request.env_indices) or 'all'}")
        return super().step(request)

    def close(self, timeout_s: float | None) -> None:
        self.tale.say("> close")
        super().close(timeout_s)


class TaleModel(ToyModel):
    """A toy model that tells its calls (`> predict 2`: two rows)."""

    def __init__(self, tale: Tale, frames: int = 1) -> None:
        super().__init__(frames)
        self.tale = tale

    def predict(self, request: PredictRequest) -> PredictReply:
        self.tale.say(f"> predict {len(request.episode_info)}")
        return super().predict(request)

    def reset_adapter(self, request: ResetAdapterRequest) -> None:
        self.tale.say(f"> evict {len(request.episode_ids)}")
        super().reset_adapter(request)

    def release_adapter(self, request: ReleaseAdapterRequest) -> None:
        self.tale.say("> release")
        super().release_adapter(request)


class TaleHooks(Hooks):
    """Hooks that tell every event."""

    def __init__(self, tale: Tale) -> None:
        self.tale = tale

    def session_started(self, event: Any) -> None:
        self.tale.say("session_started")

    def episode_started(self, event: Any) -> None:
        auto = " auto" if event.started_from_auto_reset else ""
        self.tale.say(f"started {event.episode_index} on {event.env_index}{auto}")

    def observation_emitted(self, event: Any) -> None:
        fresh = [i for i, new in zip(event.env_indices, event.is_reset, strict=True) if new]
        self.tale.say(f"observation {lanes_of(event.env_indices)} new {lanes_of(fresh) or '-'}")

    def action_received(self, event: Any) -> None:
        self.tale.say(f"action {lanes_of(event.env_indices)}")

    def step_completed(self, event: Any) -> None:
        over = [i for i, end in zip(event.env_indices, event.terminated, strict=True) if end]
        self.tale.say(f"step {lanes_of(event.env_indices)} over {lanes_of(over) or '-'}")

    def episode_completed(self, event: Any) -> None:
        self.tale.say(f"completed {event.episode_index} on {event.env_index}")

    def episode_errored(self, event: Any) -> None:
        self.tale.say(f"errored {event.episode_index} on {event.env_index}")

    def log(self, event: Any) -> None:
        self.tale.say(f"log {event.level}")

    def session_ended(self, event: Any) -> None:
        self.tale.say("session_ended")

    def session_failed(self, event: Any) -> None:
        self.tale.say("session_failed")

    def on_telemetry(self, event: Any) -> None:
        self.tale.say(f"telemetry {event.snapshot.horizon}")


def tell(mode: AutoresetMode, num_envs: int, *, frames: int = 1, **kwargs: Any) -> list[str]:
    """Run a route of telling toys and return the tale."""
    toy = {name: kwargs.pop(name) for name in ("length", "capabilities") if name in kwargs}
    tale = Tale()
    env = TaleEnv(tale, num_envs, mode, **toy)
    run = drive(env, TaleModel(tale, frames), hooks=[TaleHooks(tale)], **kwargs)
    assert run.error is None, repr(run.error)
    return tale.lines


def all_of(mode: AutoresetMode) -> list[str]:
    """Return the capabilities that let the runtime own resets in this mode, if any do."""
    return [] if mode is SAME_STEP else [PARTIAL_RESET]
