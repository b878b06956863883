"""An operation that takes long is named, once, whichever engine waits for it."""

from __future__ import annotations

import logging

import pytest

from rollmesh.runtime.cancel import CancelToken
from rollmesh.runtime.engine.base import SLOW_S, EngineParts, SlowNotice
from rollmesh.runtime.operations import Operation
from tests.driving import FakeClock
from tests.toys import ToyEnv, ToyModel


def _notice(clock: FakeClock) -> SlowNotice:
    return SlowNotice(
        EngineParts(
            env=ToyEnv(),
            model=ToyModel(),
            cancel=CancelToken(),
            clock=clock,
            env_id="route",
            env_component="toy-env",
            model_component="toy-model",
            close_s=5.0,
            shortest_limit_s=5.0,
        )
    )


def _operation(timeout_s: float | None) -> Operation:
    return Operation("env", "step", None, "env.step", 3, timeout_s)


def test_a_slow_operation_is_named_once_with_its_limit(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    notice, operation = _notice(clock), _operation(300.0)
    started_ns = clock.monotonic_ns()
    with caplog.at_level(logging.WARNING):
        clock.pass_s(SLOW_S - 1)
        notice.look(operation, started_ns)
        assert not caplog.records
        clock.pass_s(2)
        notice.look(operation, started_ns)
        notice.look(operation, started_ns)
    (record,) = caplog.records
    assert "toy-env: env.step has been under way for 31 s at step 3" in record.getMessage()
    assert "limit 300 s" in record.getMessage()


def test_the_next_slow_operation_is_named_again(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    notice = _notice(clock)
    with caplog.at_level(logging.WARNING):
        for operation in (_operation(None), _operation(None)):
            started_ns = clock.monotonic_ns()
            clock.pass_s(SLOW_S)
            notice.look(operation, started_ns)
    assert ["no limit" in r.getMessage() for r in caplog.records] == [True, True]
