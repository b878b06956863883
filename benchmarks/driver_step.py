"""Driver row: what the runtime itself adds to a step, with stub ports that do nothing.

Generator, engine, events and telemetry are on; there is no codec, env or policy behind the ports.
Measured in turn with the bare loop, once with nobody listening and once with a hook that listens
to every event.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks import subjects, table, workloads
from benchmarks.harness import Subject, Timing, compare
from benchmarks.table import Line

LIMIT = 60.0
"""A driver step may cost so many steps of the bare loop."""

_ROW = "driver step W1 N=1"
_EPISODE_STEPS = 2000
_SILENT = "driver, stub ports, nobody listening"
_HEARD = "driver, stub ports, a hook on every event"


class StubEnvPort:
    """Answers at once, always the same; ends an episode after `_EPISODE_STEPS` steps."""

    capabilities: frozenset[str] = frozenset()

    def __init__(self) -> None:
        from rollmesh import ports
        from rollmesh.spaces.gymnasium import from_gymnasium

        env = workloads.scalar().make()
        self.contract = ports.EnvContract(
            id="stub",
            observation_space=from_gymnasium(env.observation_space),
            action_space=from_gymnasium(env.action_space),
            autoreset_mode=ports.AutoresetMode.DISABLED,
        )
        self._observation: list[Any] = [np.zeros((1, 4), np.float32)]
        self._infos = ({},)
        self._ended = (ports.Completion(env_index=0, terminated=False, truncated=True),)
        self._steps = 0
        self._step_reply = ports.StepReply
        self._reset_reply = ports.ResetReply

    def reset(self, request: Any) -> Any:
        """Return the observation that it always returns."""
        del request
        self._steps = 0
        return self._reset_reply(observation=self._observation, infos=self._infos)

    def step(self, request: Any) -> Any:
        """Return it again, with a reward of 1."""
        del request
        self._steps = steps = self._steps + 1
        return self._step_reply(
            observation=self._observation,
            rewards=(1.0,),
            infos=self._infos,
            completions=self._ended if steps >= _EPISODE_STEPS else (),
            request_bytes=8,
            response_bytes=16,
        )

    def close(self, timeout_s: float | None) -> None:
        """Close nothing."""


class StubModelPort:
    """Answers at once with the same action."""

    def __init__(self) -> None:
        from rollmesh import ports

        self._frames: tuple[list[Any], ...] = ([np.zeros((1,), np.int64)],)
        self._reply = ports.PredictReply

    def predict(self, request: Any) -> Any:
        """Return one frame."""
        return self._reply(
            context=request.context, frames=self._frames, request_bytes=16, response_bytes=8
        )

    def reset_adapter(self, request: Any) -> None:
        """Forget nothing."""

    def release_adapter(self, request: Any) -> None:
        """Forget nothing."""


def _listener() -> Any:
    """Return a hook that overrides every observer of `Hooks` with a function that does nothing."""
    from rollmesh.runtime.hooks import Hooks

    def ignore(self: Any, event: Any) -> None:
        del self, event

    observers = {
        name: ignore
        for name in vars(Hooks)
        if not name.startswith(("_", "transform_")) and callable(getattr(Hooks, name))
    }
    return type("Listener", (Hooks,), observers)()


def _driver(name: str, hooks: tuple[Any, ...]) -> Subject:
    from rollmesh.runtime.cancel import CancelToken
    from rollmesh.runtime.driver import RouteDriver
    from rollmesh.runtime.spec import SessionSpec

    env_port, model_port = StubEnvPort(), StubModelPort()

    def run(bouts: int) -> int:
        spec = SessionSpec(env_contract=env_port.contract, max_episodes=bouts, base_seed=0)
        report = RouteDriver(spec, env_port, model_port, hooks=hooks).run(CancelToken())
        return int(report.total_steps)

    return Subject(name=name, run=run)


def driver_row(timing: Timing) -> list[Line]:
    """Return a driver step's cost in steps of the bare loop."""
    workload = workloads.scalar(_EPISODE_STEPS)
    floor = subjects.bare(workload).build()
    comparison = compare([floor, _driver(_SILENT, ()), _driver(_HEARD, (_listener(),))], timing)
    lines = [
        Line(
            row=_ROW,
            subject=subjects.BARE,
            figure=table.time_text(comparison.cost_s(subjects.BARE)),
            numbers={"unit": "s", "median": comparison.cost_s(subjects.BARE).median},
        )
    ]
    for name in (_SILENT, _HEARD):
        ratio = comparison.cost_ratio(name, subjects.BARE)
        cost_s = comparison.cost_s(name)
        lines.append(
            Line(
                row=_ROW,
                subject=name,
                figure=table.time_text(cost_s),
                ratio=table.ratio_text(ratio, subjects.BARE),
                target=f"<= {LIMIT:g} x",
                verdict=table.at_most(ratio.median, LIMIT),
                numbers={
                    "unit": "s",
                    "median": cost_s.median,
                    "ratio": ratio.median,
                    "most": LIMIT,
                },
            )
        )
    return lines
