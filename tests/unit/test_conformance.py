"""Policies: what happens to values of the right structure and the wrong content."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from rollmesh.errors import InvalidValue
from rollmesh.spaces.conformance import Checker
from rollmesh.spaces.space import (
    Box,
    Dict,
    Discrete,
    Graph,
    MultiBinary,
    MultiDiscrete,
    OneOf,
    Sequence,
    Text,
    Tuple,
)

F4 = np.float32


class Reports(list):
    def __call__(self, path, detail):
        self.append((path, detail))


def observation(policy="warn"):
    reports = Reports()
    return Checker("observation", policy, report=reports), reports


def action(policy="warn"):
    reports = Reports()
    return Checker("action", policy, "refuse", report=reports), reports


def test_warn_delivers_unchanged_and_reports_once_per_path():
    checker, reports = observation()
    space = Dict({"wrist": Tuple([Discrete(2), Box((3,), F4, -1, 1)]), "base": Box((1,), F4, 0, 1)})
    value = {"wrist": (1, np.array([0, 0, 5], F4)), "base": np.array([9], F4)}
    for _ in range(3):
        leaves = space.codec.encode(value, checker)
    assert space.codec.decode(leaves)["wrist"][1].tolist() == [0, 0, 5]
    assert reports == [
        ("observation['wrist'][1]", "5.0 at [2] is outside [-1.0, 1.0]"),
        ("observation['base']", "9.0 at [0] is outside [0.0, 1.0]"),
    ]


def test_strict_refuses_and_names_the_place():
    checker, reports = observation("strict")
    space = Dict({"wrist": Box((2, 2), F4, -1, 1)})
    with pytest.raises(InvalidValue) as caught:
        space.codec.encode({"wrist": np.array([[0, 0], [-3, 0]], F4)}, checker)
    assert caught.value.path == "observation['wrist']"
    assert caught.value.detail == "-3.0 at [1, 0] is outside [-1.0, 1.0]"
    assert not reports


def test_off_does_not_look_at_content_but_at_structure():
    checker, reports = observation("off")
    space = Box((2,), F4, -1, 1)
    assert space.codec.encode(np.array([np.nan, 7], F4), checker)
    with pytest.raises(InvalidValue, match="expected shape"):
        space.codec.encode(np.zeros(3, F4), checker)
    assert not reports


def test_nan_in_an_observation_follows_the_policy():
    value = np.array([np.nan, np.inf], F4)
    for space in (Box((2,), F4), Box((2,), F4, 0), Box((2,), F4, 0, np.inf)):
        checker, reports = observation()
        for _ in range(2):
            leaves = space.codec.encode(value, checker)
        assert np.isnan(space.codec.decode(leaves)[0])
        assert reports == [("observation", "NaN at [0]; expected numbers")]
        with pytest.raises(InvalidValue, match="NaN"):
            space.codec.encode(value, observation("strict")[0])


@pytest.mark.parametrize("policy", ["warn", "strict", "off"])
def test_nan_in_an_action_is_refused_always(policy):
    for space in (Box((2,), F4), Box((2,), F4, -1, 1), Box((300,), F4, -1, 1)):
        value = np.zeros(space.shape, F4)
        value[1] = np.nan
        for _ in range(2):
            with pytest.raises(InvalidValue, match=r"action: NaN at \[1\]"):
                space.codec.encode(value, action(policy)[0])
        batch = np.stack([np.zeros(space.shape, F4), value])
        with pytest.raises(InvalidValue, match="of row 1"):
            space.codec.encode_stacked(batch, 2, action(policy)[0])


def test_c38_an_action_out_of_a_box_is_delivered_unchanged_under_warn():
    checker, reports = action()
    space = Box((2,), F4, -1, 1)
    leaves = space.codec.encode(np.array([2.5, -7], F4), checker)
    assert space.codec.decode(leaves).tolist() == [2.5, -7]
    assert reports == [("action", "2.5 at [0] is outside [-1.0, 1.0]")]
    assert not action("off")[1]


@pytest.mark.parametrize(
    ("space", "value"),
    [
        (Discrete(2), 7),
        (Discrete(2), np.int64(-1)),
        (Discrete(2, 5), np.array([4])),
        (MultiDiscrete([2, 3]), [0, 3]),
        (MultiDiscrete([2, 3], [1, 1]), np.array([0, 1])),
        (MultiBinary(2), np.array([0, 2], np.int8)),
    ],
)
def test_integers_outside_their_domain(space, value):
    for policy in ("warn", "strict"):
        with pytest.raises(InvalidValue, match="outside"):
            space.codec.encode(value, action(policy)[0])
    for checker, reports in (action("off"), observation("off")):
        assert space.codec.encode(value, checker)
        assert not reports
    checker, reports = observation()
    leaves = space.codec.encode(value, checker)
    delivered = np.asarray(space.codec.decode(leaves))
    assert delivered.ravel().tolist() == np.ravel(value).tolist()
    assert len(reports) == 1


@pytest.mark.parametrize("policy", ["warn", "strict", "off"])
@pytest.mark.parametrize("make", [action, observation])
def test_numbers_are_never_truncated_or_wrapped(make, policy):
    cases = [
        (Discrete(2), 1.5),
        (Discrete(2), np.nan),
        (Discrete(2), 2**70),
        (Discrete(2, dtype=np.uint8), -1),
        (Discrete(2, dtype=np.int8), np.int64(300)),
        (MultiDiscrete([2, 2]), [0.5, 1]),
        (MultiBinary(2), np.array([0, 300])),
        (Box((1,), np.uint8), [256]),
        (Box((1,), np.uint8), np.array([-1])),
        (Box((1,), np.int64), [2**63]),
        (Box((2,), np.int64), [2**63, -1]),
        (Box((1,), np.uint64), [2**64]),
        (Box((1,), np.uint64), np.array([1.8446744073709552e19])),
        (Box((1,), bool), [2]),
        (Box((1,), np.int8), [np.inf]),
    ]
    for space, value in cases:
        with pytest.raises(InvalidValue):
            space.codec.encode(value, make(policy)[0])


def test_whole_floats_become_integers_and_are_reported():
    for space, value, expected in (
        (Discrete(3), 1.0, 1),
        (Discrete(3), np.array([2.0], F4), 2),
        (MultiDiscrete([3, 3]), [1.0, 2.0], [1, 2]),
        (Box((2,), np.uint8), np.array([0.0, 255.0]), [0, 255]),
    ):
        checker, reports = observation()
        for _ in range(2):
            leaves = space.codec.encode(value, checker)
        assert space.codec.decode(leaves).tolist() == expected
        assert [path for path, _ in reports] == ["observation"]
        assert "whole numbers" in reports[0][1]
        with pytest.raises(InvalidValue, match="whole numbers"):
            space.codec.encode(value, observation("strict")[0])


def test_c26_another_dtype_is_converted_and_reported_once():
    checker, reports = observation()
    space = Box((2,), F4, -1e9, 1e9)
    for value in (np.array([16777217.0, 0.5]), [1.0, 0.1], np.array([1, 2], F4)):
        decoded = space.codec.decode(space.codec.encode(value, checker))
        assert decoded.dtype == F4
    assert reports == [("observation", "expected dtype float32, got float64; converted")]


@pytest.mark.parametrize(
    ("space", "value"),
    [
        (Box((2,), np.float64), np.array([1, 2], F4)),
        (Box((2,), np.int64), np.array([1, 2], np.int32)),
        (Box((2,), F4), [0.1, 0.2]),
        (Box((2,), F4), [1, 2]),
        (Box((2,), F4), np.array([1, 2], ">f4")),
        (Discrete(3), np.uint8(1)),
        (Discrete(3, dtype=np.int8), np.int64(1)),
        (MultiBinary(2), np.array([True, False])),
        (MultiBinary(2), np.array([1, 0])),
    ],
)
def test_conversions_without_loss_are_silent_even_under_strict(space, value):
    assert space.codec.encode(value, observation("strict")[0])


def test_a_float_too_large_for_the_dtype_follows_the_policy():
    space = Box((2,), np.float16)
    checker, reports = observation()
    decoded = space.codec.decode(space.codec.encode([1e6, 1], checker))
    assert decoded.tolist() == [np.inf, 1]
    assert "too large for float16" in reports[0][1]
    with pytest.raises(InvalidValue, match="too large"):
        space.codec.encode([1e6, 1], observation("strict")[0])


def test_extra_keys_are_reported_under_warn_and_refused_under_strict():
    space = Dict({"a": Discrete(2)})
    value = {"b": 1, "a": 1}
    checker, reports = observation()
    for _ in range(2):
        assert space.codec.encode(value, checker)
    assert reports == [("observation", "['b'] not in the space, left out; expected keys ['a']")]
    with pytest.raises(InvalidValue, match=r"\['b'\] not in the space"):
        space.codec.encode(value, observation("strict")[0])
    assert space.codec.encode(value, observation("off")[0])


def test_texts_are_never_cut():
    space = Text(2, 3, "ab")
    checker, reports = observation()
    for text in ("abab", "a", "abc", "abcd"):
        assert space.codec.decode(space.codec.encode(text, checker)) == text
    assert [detail for _, detail in reports] == [
        "expected 2 to 3 characters, got 4",
        "characters outside the charset: 'c'",
    ]
    for text in ("abab", "a", "abc"):
        with pytest.raises(InvalidValue):
            space.codec.encode(text, observation("strict")[0])


def test_inner_values_are_checked_and_reported_once_per_sequence():
    space = Dict({"s": Sequence(Box((1,), F4, 0, 1))})
    value = {"s": ([0.5], [7.0], [8.0])}
    checker, reports = observation()
    assert space.codec.encode(value, checker)
    assert [path for path, _ in reports] == ["observation['s'][*]"]
    with pytest.raises(InvalidValue) as caught:
        space.codec.encode(value, observation("strict")[0])
    assert caught.value.path == "observation['s'][1]"


def test_graphs_and_choices_are_checked_inside():
    graph = Graph(Box((1,), F4, 0, 1), Discrete(2))
    strict = observation("strict")[0]
    nodes, edges = np.zeros((2, 1), F4), np.array([0])
    assert graph.codec.encode((nodes, edges, np.array([[0, 1]])), strict)
    for bad, path in (
        ((nodes + 2, None, None), "observation.nodes"),
        ((nodes, edges + 2, np.array([[0, 1]])), "observation.edges"),
        ((nodes, edges, np.array([[0, 2]])), "observation.edge_links"),
    ):
        with pytest.raises(InvalidValue) as caught:
            graph.codec.encode(bad, strict)
        assert caught.value.path == path
    choice = OneOf([Discrete(2), Box((1,), F4, 0, 1)])
    with pytest.raises(InvalidValue) as caught:
        choice.codec.encode((1, [3.0]), strict)
    assert caught.value.path == "observation[1]"


def test_a_batch_names_the_row():
    space = Dict({"x": Box((2,), F4, 0, 1)})
    rows = [{"x": np.zeros(2, F4)}, {"x": np.array([0, 2], F4)}]
    with pytest.raises(InvalidValue, match=r"outside \[0.0, 1.0\] \(row 1\)"):
        space.codec.encode_many(rows, observation("strict")[0])
    checker, reports = observation()
    space.codec.encode_many(rows, checker)
    assert reports == [("observation['x']", "2.0 at [1] of row 1 is outside [0.0, 1.0]")]


def test_the_default_report_is_a_log_line(caplog):
    with caplog.at_level(logging.WARNING, "rollmesh.spaces.conformance"):
        Box((1,), F4, 0, 1).codec.encode([2.0], Checker())
    assert [record.getMessage() for record in caplog.records] == [
        "conformance path=observation detail=2.0 at [0] is outside [0.0, 1.0]"
    ]


def test_unknown_policies_are_refused():
    with pytest.raises(InvalidValue, match="warn, strict, off"):
        Checker("observation", "loud")
    with pytest.raises(InvalidValue, match="policy, refuse"):
        Checker("observation", nan="allow")


def test_whole_ranges_need_no_look():
    space = Box((2,), np.uint8)
    strict = observation("strict")[0]
    assert space.codec.encode(np.array([0, 255], np.uint8), strict)
    assert Box((2,), bool).codec.encode(np.array([True, False]), strict)


def test_negative_zero_is_inside_bounds_that_start_at_zero():
    for shape in ((2,), (1000,)):
        value = np.full(shape, -0.0, F4)
        leaves = Box(shape, F4, 0, 1).codec.encode(value, observation("strict")[0])
        assert leaves[0].tobytes() == value.tobytes()


@pytest.mark.parametrize(
    ("root", "value", "levels"),
    [
        ("action", np.array([0.5, 1.0]), ["INFO"]),
        ("observation", np.array([0.5, 1.0]), ["WARNING"]),
        ("action", np.array([1, 0]), ["WARNING"]),
        ("action", np.array([0.5, 2.0]), ["INFO", "WARNING"]),
        ("action", np.array([0.5, 1e300]), ["INFO", "WARNING", "WARNING"]),
    ],
)
def test_actions_as_numpy_computes_them_are_no_warning(caplog, root, value, levels):
    caplog.set_level(logging.INFO, "rollmesh")
    checker = Checker(root, "warn", "refuse" if root == "action" else "policy")
    for _ in range(2):
        Box((2,), F4, 0.0, 1.0).codec.encode(value, checker)
    assert [record.levelname for record in caplog.records] == levels


def test_strict_takes_actions_as_numpy_computes_them(caplog):
    caplog.set_level(logging.INFO, "rollmesh")
    checker, space = Checker("action", "strict", "refuse"), Box((2,), F4, 0.0, 1.0)
    for _ in range(2):
        leaves = space.codec.encode(np.array([0.25, 1.0]), checker)
    assert space.codec.decode(leaves).tolist() == [0.25, 1.0]
    assert [record.levelname for record in caplog.records] == ["INFO"]
    assert "expected dtype float32, got float64; converted" in caplog.text


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (np.array([0.25, 2.0]), r"2\.0 at \[1\] is outside \[0\.0, 1\.0\]"),
        (np.array([0.25, np.nan]), r"NaN at \[1\]"),
        (np.array([0.25, 1e300]), "1e\\+300 is too large for float32: would become infinite"),
        (np.array([0, 1]), r"expected dtype float32, got int64; convert it, .*astype\('float32'\)"),
    ],
)
def test_strict_refuses_other_actions_and_says_nothing_of_a_conversion(value, told):
    with pytest.raises(InvalidValue, match=told) as caught:
        Box((2,), F4, 0.0, 1.0).codec.encode(value, action("strict")[0])
    assert "converted" not in str(caught.value)


def test_strict_refuses_observations_of_another_float_type():
    with pytest.raises(InvalidValue, match="got float64; convert it"):
        Box((2,), F4, 0.0, 1.0).codec.encode(np.array([0.5, 1.0]), observation("strict")[0])


def test_whole_numbers_as_floats_are_told_apart_by_the_policy():
    given = np.array([1.0])
    checker, reports = action("warn")
    Discrete(2).codec.encode(given, checker)
    assert reports[0][1] == "expected dtype int64, got whole numbers as float64; converted"
    with pytest.raises(InvalidValue, match=r"as float64; convert it, .*astype\('int64'\)"):
        Discrete(2).codec.encode(given, action("strict")[0])


def test_fractions_for_a_discrete_may_be_scores():
    codec = Discrete(4, start=2).codec
    with pytest.raises(InvalidValue, match=r"got 0\.1; if these are .*scores\)\) \+ 2, else"):
        codec.encode_stacked(np.array([0.1, 0.9]), 2, action()[0])
    with pytest.raises(InvalidValue, match=r"got 0\.1; round it yourself$"):
        codec.encode(np.array([0.1]), action()[0])
    with pytest.raises(InvalidValue, match=r"got 0\.5; round it yourself$"):
        MultiDiscrete((2, 2)).codec.encode([0.5, 0.5], action()[0])


@pytest.mark.parametrize("value", [np.nan, np.inf, np.array([np.nan])])
def test_what_is_no_number_is_not_to_be_rounded(value):
    with pytest.raises(InvalidValue, match=r"got (nan|inf)$"):
        Discrete(2).codec.encode(value, action()[0])
    with pytest.raises(InvalidValue, match=r"got nan; if these are scores of the actions"):
        Discrete(2).codec.encode_stacked(np.array([np.nan, 0.5]), 2, action()[0])
