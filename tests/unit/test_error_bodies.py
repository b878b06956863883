"""What one process tells another of a failure comes out as it went in; strangers hear less."""

from __future__ import annotations

import pytest

from rollmesh.endpoint.error_bodies import PROCESS_DIED, Refused, error, error_body, fault_of
from rollmesh.errors import EndpointFault, InvalidValue, PortTimeout
from rollmesh.wire.messages import Kind

FAULT = EndpointFault(
    "the arm is stuck\nat joint 3",
    error_class="ArmError",
    traceback_text="Traceback: in step",
    env_index=2,
    is_recoverable=True,
    outcome="done",
)
TOLD = ("detail", "error_class", "traceback_text", "env_index", "is_recoverable", "outcome")


def test_a_fault_comes_out_of_another_process_as_it_went_in():
    body = error_body(FAULT, where="env.step", is_trusted=True)
    again = fault_of(body)
    assert {name: getattr(again, name) for name in TOLD} == {
        name: getattr(FAULT, name) for name in TOLD
    }


def test_a_stranger_hears_class_and_first_line_and_the_log_keeps_the_rest_under_an_id(caplog):
    body = error_body(FAULT, where="env.step", is_trusted=False)
    assert (body.error_class, body.message, body.traceback_text) == (
        "ArmError",
        "the arm is stuck",
        "",
    )
    assert f"operation=env.step error_id={body.error_id}" in caplog.text
    assert "at joint 3" in caplog.text
    assert "Traceback: in step" in caplog.text


@pytest.mark.parametrize(
    ("raised", "code", "outcome"),
    [
        (ValueError("x"), "internal", "unknown"),
        (InvalidValue("action", "is NaN"), "internal", "done"),
        (PortTimeout("late"), "timeout", "unknown"),
        (EndpointFault("gone", error_class=PROCESS_DIED), "crashed", "unknown"),
        (Refused("not_ready", "reset first"), "not_ready", "not_done"),
    ],
)
def test_a_client_learns_what_kind_of_failure_it_was_and_whether_it_happened(raised, code, outcome):
    body = error_body(raised, where="env.step", is_trusted=True)
    assert (body.code, body.outcome) == (code, outcome)


def test_a_keyboard_interrupt_of_user_code_is_told_and_not_raised():
    body = error_body(KeyboardInterrupt(), where="env.step", is_trusted=True)
    assert (body.error_class, body.message) == (
        "KeyboardInterrupt",
        "raised KeyboardInterrupt in env.step",
    )
    assert not body.is_recoverable


def test_an_error_answers_its_request():
    body = Refused("busy", "wait", error_class="Busy").body
    message = error(7, body)
    assert (message.kind, message.request_id, message.body) == (Kind.ERROR, 7, body)
    assert body.error_class == "Busy"
