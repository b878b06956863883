"""Tests of `rollmesh.wire.handshake`, `dialect` and `proto_handshake`."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from rollmesh.errors import WireError
from rollmesh.ports import AutoresetMode, EnvContract
from rollmesh.spaces.space import Box, Discrete, Graph
from rollmesh.wire.dialect import FOREIGN, ROLLMESH, Dialect, agree
from rollmesh.wire.handshake import (
    EDITION,
    GENERATION,
    RUNTIME,
    Offer,
    Party,
    PeerInfo,
    accepts_pin,
    admits,
    check_generation,
    edition_key,
    offer,
    party,
    select_edition,
)
from rollmesh.wire.messages import Shutdown, ShutdownReply
from rollmesh.wire.proto_handshake import (
    MISSING_BASE,
    read_hello,
    read_shutdown,
    read_shutdown_reply,
    read_welcome,
    write_hello,
    write_shutdown,
    write_shutdown_reply,
    write_welcome,
)

# --------------------------------------------------------------------------------- editions


def test_editions_sort_by_base_then_bare_before_cohort_then_cohort():
    in_order = [
        "2025.12",
        "2025.12-0.9",
        "2026.06",
        "2026.06-0.1.0-rc.4",
        "2026.06-0.1.0-rc.5",
        "2026.07",
    ]
    shuffled = in_order[::-1]
    assert sorted(shuffled, key=edition_key) == in_order
    assert edition_key("2026.06-0.1.0-rc.5") == ("2026.06", True, "0.1.0-rc.5")
    assert edition_key("2026.06-") == ("2026.06", True, "")


@pytest.mark.parametrize(
    ("want", "edition", "expected"),
    [
        ("2026.06", "2026.06", True),
        ("2026.06", "2026.06-0.1.0-rc.5", True),  # a bare base admits any spelling of it
        ("2026.06", "2026.05", True),
        ("2026.06", "2026.05-x", True),
        ("2026.06", "2026.07", False),
        ("2026.06", "2026.07-a", False),
        ("2026.06-b", "2026.06", True),
        ("2026.06-b", "2026.06-a", True),
        ("2026.06-b", "2026.06-b", True),
        ("2026.06-b", "2026.06-c", False),
        ("2026.06-b", "2026.05-z", True),
        ("2026.06-b", "2026.07", False),
        ("", "2099.01", True),
    ],
)
def test_a_want_admits_what_sorts_no_later(want, edition, expected):
    assert admits(want, edition) is expected


def parties(*sides):
    names = ("env", "model", "runtime")
    return [
        Party(name=name, can=tuple(can.split()), want=want)
        for name, (can, want) in zip(names, sides, strict=False)
    ]


@pytest.mark.parametrize(
    ("sides", "expected"),
    [
        ([("2026.06", "2026.06")], "2026.06"),
        ([("2026.06", ""), ("2026.06", ""), ("2026.06", "")], "2026.06"),
        ([("2026.05 2026.06", ""), ("2026.05 2026.06 2026.07", "")], "2026.06"),
        ([("2026.05 2026.06", "2026.05"), ("2026.05 2026.06", "2026.06")], "2026.05"),
        ([("2026.06 2026.06-a 2026.06-b", "2026.06-a"), ("2026.06 2026.06-a", "")], "2026.06-a"),
        ([("2026.06 2026.06-b", "2026.06-a"), ("2026.06 2026.06-b", "")], "2026.06"),
        ([("2026.05", ""), ("2026.05 2026.06", ""), ("2026.05 2026.06", "2026.06")], "2026.05"),
    ],
)
def test_the_newest_edition_that_all_can_and_nobody_rules_out_is_selected(sides, expected):
    assert select_edition(parties(*sides)) == expected


@pytest.mark.parametrize(
    "sides",
    [
        [("2026.06", ""), ("2026.05", "")],
        [("", ""), ("2026.06", "2026.06")],
        [("2026.06", "2026.05"), ("2026.06", "")],
        [("2026.06-0.1.0-rc.5", ""), ("2026.06", "")],  # spellings are compared as they are
    ],
)
def test_where_nothing_suits_everybody_the_error_says_what_each_can_and_wants(sides):
    with pytest.raises(WireError, match="handshake failed: no workflow edition suits") as error:
        select_edition(parties(*sides))
    can, want = sides[0]
    assert f"env wants {want or 'the newest'} and can [{', '.join(can.split()) or 'none'}]" in str(
        error.value
    )


def test_a_pin_is_accepted_if_its_base_is_ours_or_there_is_none():
    assert [accepts_pin(pin) for pin in (EDITION, "", "2026.06-0.1.0-rc.5")] == [True] * 3
    assert [accepts_pin(pin) for pin in ("2026.05", "2027.01", "2026.06x", "x")] == [False] * 4


def test_our_runtime_and_a_released_peer_agree():
    released = Offer(peer=PeerInfo(component="rlmesh-env"))
    assert select_edition([party("env", released), RUNTIME]) == "2026.06"


# ------------------------------------------------------------------- generation, capabilities


@pytest.mark.parametrize("theirs", [GENERATION, f"  {GENERATION}\n"])
def test_the_generation_counts_after_trimming(theirs):
    assert check_generation(theirs) == ""


@pytest.mark.parametrize("theirs", ["", "rlmesh-wire-v2", "RLMESH-WIRE-V1", "rlmesh-wire-v1x"])
def test_another_generation_is_told_what_this_server_speaks(theirs):
    assert GENERATION in check_generation(theirs)


def test_a_capability_counts_only_with_the_value_true():
    said = Offer(capabilities={"a": "true", "b": "True", "c": "1", "d": "", "e": "false"})
    assert said.granted == {"a"}


def test_the_dialect_is_what_the_peer_announced():
    assert agree({}) == FOREIGN
    assert agree({"rollmesh.exact_maps.v1": "true", "rollmesh.details.v1": "yes"}) == Dialect(
        exact_maps=True
    )
    assert offer("env").dialect == ROLLMESH
    assert offer("env", capabilities=["subset_step"]).granted >= {"subset_step"}


def test_our_offer_names_one_edition_and_who_we_are():
    said = offer("model", extra={"where": "here"})
    assert (said.editions, said.preferred_edition) == (("2026.06",), "2026.06")
    assert said.peer.component == "rollmesh-model"
    assert said.peer.is_rollmesh
    assert said.peer.extra["where"] == "here"
    assert said.peer.extra["rlmesh.workflow.base"] == "2026.06"
    assert said.peer.framework_versions["numpy"] == np.__version__


# ------------------------------------------------------------------------------------ bytes

CONTRACT = EnvContract(
    id="Toy-v0",
    observation_space=Box((2,)),
    action_space=Discrete(3, 1),
    num_envs=4,
    autoreset_mode=AutoresetMode.NEXT_STEP,
    render_mode="rgb_array",
    metadata={"render_fps": 30, "shape": (1, 2)},
)


@pytest.mark.parametrize("service", ["env", "model"])
def test_an_offer_survives(service):
    said = offer(service, capabilities=["subset_step"], extra={"a": "b"}, session_id="s1")
    assert read_hello(service, write_hello(service, said)) == said
    answer = Offer(
        peer=said.peer, capabilities={"x": "true"}, session_id="s2", position=3, is_resumed=True
    )
    assert read_welcome(service, write_welcome(service, answer)) == (answer, None)


@pytest.mark.parametrize("dialect", [FOREIGN, ROLLMESH])
def test_a_contract_survives_and_its_metadata_too_between_rollmesh_ends(dialect):
    data = write_welcome("env", offer("env"), contract=CONTRACT, dialect=dialect)
    _, got = read_welcome("env", data)
    metadata = CONTRACT.metadata if dialect == ROLLMESH else {"render_fps": 30, "shape": [1, 2]}
    assert got.metadata == metadata
    assert got == EnvContract(
        id="Toy-v0",
        observation_space=Box((2,)),
        action_space=Discrete(3, 1),
        num_envs=4,
        autoreset_mode=AutoresetMode.NEXT_STEP,
        render_mode="rgb_array",
        metadata=metadata,
    )


def test_a_refusal_has_the_servers_words_and_no_contract():
    said = Offer(is_compatible=False, error="another generation")
    got, contract = read_welcome("env", write_welcome("env", said))
    assert not got.is_compatible
    assert got.error == "another generation"
    assert contract is None


def test_what_a_released_peer_cannot_drive_is_refused_with_a_sentence():
    graph = EnvContract(id="G", observation_space=Graph(Box((1,))), action_space=Discrete(2))
    same_step = EnvContract(
        id="S",
        observation_space=Box((1,)),
        action_space=Discrete(2),
        num_envs=2,
        autoreset_mode=AutoresetMode.SAME_STEP,
    )
    for contract, words in ((graph, "a Graph cannot be sent"), (same_step, "SAME_STEP")):
        with pytest.raises(WireError, match=words):
            write_welcome("env", offer("env"), contract=contract, dialect=FOREIGN)
        data = write_welcome("env", offer("env"), contract=contract, dialect=ROLLMESH)
        assert read_welcome("env", data)[1] == contract


def test_a_request_without_content_is_named():
    for service in ("env", "model"):
        with pytest.raises(WireError, match=MISSING_BASE):
            read_hello(service, b"")


def test_a_compatible_answer_of_an_env_needs_a_contract():
    with pytest.raises(WireError, match="no env contract"):
        read_welcome("env", write_welcome("env", offer("env")))


def test_bytes_that_are_no_handshake_are_refused():
    for service in ("env", "model"):
        for read in (read_hello, read_welcome):
            with pytest.raises(WireError):
                read(service, b"\xff\xff")


def test_too_many_editions_or_capabilities_are_refused():
    said = Offer(editions=tuple(f"2026.{i}" for i in range(65)))
    with pytest.raises(WireError, match="65 workflow editions"):
        read_hello("env", write_hello("env", said))
    said = Offer(capabilities={str(i): "true" for i in range(1025)})
    with pytest.raises(WireError, match="1025 capabilities"):
        read_hello("env", write_hello("env", said))


def test_shutdown_survives():
    for service in ("env", "model"):
        assert read_shutdown(service, write_shutdown(service, Shutdown(reason="done"))).reason == (
            "done"
        )
        reply = ShutdownReply(is_accepted=False, detail="disabled")
        assert read_shutdown_reply(service, write_shutdown_reply(service, reply)) == reply


def test_importing_rollmesh_loads_neither_protobuf_nor_grpc():
    code = (
        "import rollmesh, sys; print([m for m in sys.modules if m.startswith(('google', 'grpc'))])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
