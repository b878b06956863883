"""What user code raised, told in bounded words."""

from __future__ import annotations

import sys

import pytest

from rollmesh.endpoint.faults import (
    MESSAGE_CHARS,
    TRACEBACK_CHARS,
    construction_fault,
    fault_from,
    traceback_text,
)
from rollmesh.errors import EndpointFault, InvalidValue
from rollmesh.spaces.space import Box


def caught(raiser):
    try:
        raiser()
    except BaseException as exc:  # noqa: BLE001
        return exc
    raise AssertionError("did not raise")


def test_tells_class_message_traceback_and_causes():
    def fail():
        try:
            raise KeyError("inner")
        except KeyError as exc:
            raise ValueError("outer", 2) from exc

    fault = fault_from(caught(fail), env_index=3)
    assert fault.error_class == "ValueError"
    assert fault.detail == "('outer', 2)"
    assert "KeyError: 'inner'" in fault.traceback_text
    assert "direct cause" in fault.traceback_text
    assert "in fail" in fault.traceback_text
    assert fault.env_index == 3
    assert fault.is_recoverable
    assert fault.outcome == "unknown"


def test_c44_a_long_message_is_cut_and_the_last_frames_survive():
    def fail():
        raise ValueError("x" * 100_000)

    def deep(n):
        return fail() if n == 0 else deep(n - 1)

    fault = fault_from(caught(lambda: deep(200)))
    assert len(fault.detail) < MESSAGE_CHARS + 100
    assert "more characters cut" in fault.detail
    assert len(fault.traceback_text) < TRACEBACK_CHARS + 100
    assert "in fail" in fault.traceback_text
    assert "ValueError: xxx" in fault.traceback_text


def test_c47_system_exit_is_said_to_be_one():
    fault = fault_from(caught(lambda: sys.exit(0)), where="env.step")
    assert fault.detail == "called sys.exit(0) in env.step"
    assert fault.error_class == "SystemExit"
    assert not fault.is_recoverable
    assert fault_from(SystemExit()).detail == "called sys.exit() in env.step"


def test_r49_keyboard_interrupt_passes_through():
    interrupt = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt) as info:
        fault_from(interrupt)
    assert info.value is interrupt


def test_a_keyboard_interrupt_of_a_constructor_that_nobody_pressed_is_a_fault():
    fault = construction_fault(KeyboardInterrupt(), where="building Arm", env_index=3)
    assert fault.detail == "the env's constructor raised KeyboardInterrupt"
    assert (fault.env_index, fault.outcome) == (3, "not_done")


def test_what_else_a_constructor_raises_is_told_as_everywhere():
    fault = construction_fault(SystemExit(1), where="building Arm")
    assert fault.detail == "called sys.exit(1) in building Arm"
    assert (fault.error_class, fault.outcome) == ("SystemExit", "not_done")
    known = EndpointFault("x", outcome="unknown")
    assert construction_fault(known, where="building Arm") is known


def test_an_endpoint_fault_stays_itself_and_learns_its_lane():
    fault = EndpointFault("x")
    assert fault_from(fault, env_index=2) is fault
    assert fault.env_index == 2
    fault_from(fault, env_index=5)
    assert fault.env_index == 2


def test_an_empty_message_says_where():
    assert (
        fault_from(EOFError(), where="env.reset").detail == "raised in env.reset without a message"
    )


def test_exceptions_that_cannot_be_printed_do_no_harm():
    class Odd(Exception):
        def __str__(self):
            raise RuntimeError("no")

    fault = fault_from(Odd())
    assert fault.detail == "(no message: its __str__ raised RuntimeError)"
    assert fault.error_class == "Odd"
    assert isinstance(traceback_text(Odd()), str)


def test_a_value_that_the_package_refused_has_no_traceback_of_its_insides():
    box = Box(shape=(3,), dtype="float32", low=0.0, high=1.0)
    refused = caught(lambda: box.codec.encode([1.0, 2.0]))
    assert "in <lambda>" in traceback_text(refused)
    trace = refused.__traceback__
    while not trace.tb_frame.f_code.co_filename.endswith("codec.py"):
        trace = trace.tb_next
    refused.__traceback__ = trace  # as where the package is the caller
    assert traceback_text(refused) == ""
    assert "expected shape (3,)" in fault_from(refused).detail

    def in_user_code():
        raise InvalidValue("action", "mine")

    assert "in in_user_code" in traceback_text(caught(in_user_code))
