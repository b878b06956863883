"""Tests of `rollmesh.wire.proto_errors`."""

from __future__ import annotations

import pytest

from rollmesh.wire import messages as ours
from rollmesh.wire._gen import rlmesh_env_v1_pb2 as pb
from rollmesh.wire.dialect import FOREIGN, ROLLMESH
from tests.unit.wire_toys import (
    DIALECTS,
    Pair,
    step_request,
)


@DIALECTS
def test_an_error_keeps_what_the_wire_can_say(dialect):
    body = ours.ErrorBody(
        code="internal",
        error_class="ValueError",
        message="the door is stuck: \ud800",
        traceback_text="File …",
        is_recoverable=True,
        outcome="done",
        env_index=2,
        error_id="E1",
    )
    got = Pair(dialect, 3).back(body, step_request(3))
    assert (got.code, got.error_class, got.is_recoverable) == ("internal", "ValueError", True)
    assert got.message.startswith("the door is stuck: \\ud800")
    assert got.traceback_text == "File …"
    if dialect == ROLLMESH:
        assert (got.outcome, got.env_index, got.error_id) == ("done", 2, "E1")
    else:
        assert (got.outcome, got.env_index) == ("unknown", None)
        assert "E1" in got.message


@pytest.mark.parametrize(
    ("code", "number", "outcome"),
    [
        ("timeout", 1, "unknown"),
        ("invalid_action", 2, "not_done"),
        ("not_ready", 3, "not_done"),
        ("busy", 4, "not_done"),
        ("unsupported", 5, "not_done"),
        ("internal", 10, "unknown"),
        ("crashed", 11, "unknown"),
        ("cancelled", 12, "unknown"),
        ("closed", 13, "unknown"),
    ],
)
def test_codes_have_their_numbers_and_say_whether_anything_happened(code, number, outcome):
    pair = Pair(FOREIGN)
    data = pair.server.write("r", ours.ErrorBody(code=code))
    assert pb.JoinResponse.FromString(data).error.code == number
    got = pair.client.read(pair.client.open(data), step_request())
    assert (got.code, got.outcome) == (code, outcome)


def test_an_unknown_code_reads_as_unspecified_and_an_odd_one_is_sent_as_the_nearest():
    client = Pair(FOREIGN).client
    data = pb.JoinResponse(error=pb.EnvError(code=77, message="x")).SerializeToString()
    assert client.read(client.open(data), step_request()).code == "unspecified"
    for code, number in (("invalid_request", 2), ("not_configured", 3), ("whatever", 0)):
        sent = Pair(FOREIGN).server.write("r", ours.ErrorBody(code=code))
        assert pb.JoinResponse.FromString(sent).error.code == number
