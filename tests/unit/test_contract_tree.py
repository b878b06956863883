"""Contracts as trees and as JSON values."""

from __future__ import annotations

import json

import numpy as np

from rollmesh.cli.contract_tree import contract_lines, contract_values
from rollmesh.ports import AutoresetMode, EnvContract
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


def contract(observation, action=None, **more):
    action = action or Discrete(2)
    given = {"id": "Test-v0", "observation_space": observation, "action_space": action}
    return EnvContract(**{**given, **more})


NESTED = Dict(
    [
        ("image", Box((480, 640, 3), np.uint8)),
        ("parts", Tuple([Discrete(3, 2), Graph(Box((2,)), Discrete(4))])),
        ("word", OneOf([Text(1, 3), MultiBinary((3,))])),
        ("path", Sequence(MultiDiscrete([2, 3]))),
    ]
)


def test_every_kind_of_space_has_its_line():
    lines = contract_lines(contract(NESTED, num_envs=4, autoreset_mode=AutoresetMode.NEXT_STEP))
    assert lines == [
        "Test-v0: 4 envs, autoreset next_step",
        "observation     Dict                             varies",
        "├─ image        Box uint8 (480, 640, 3)   921,600 bytes",
        "├─ parts        Tuple                            varies",
        "│  ├─ 0         Discrete 3 from 2               8 bytes",
        "│  └─ 1         Graph                            varies",
        "│     ├─ nodes  Box float32 (2,)                8 bytes",
        "│     └─ edges  Discrete 4                      8 bytes",
        "├─ word         OneOf                            varies",
        "│  ├─ 0         Text 1 to 3 characters           varies",
        "│  └─ 1         MultiBinary (3,)                3 bytes",
        "└─ path         Sequence                         varies",
        "   └─ each      MultiDiscrete int64 (2,)       16 bytes",
        "action          Discrete 2                      8 bytes",
    ]


def test_the_render_mode_is_named():
    assert contract_lines(contract(Discrete(2), render_mode="human"))[0].endswith("renders human")


def test_names_of_a_peer_stay_on_their_line_and_are_cut():
    odd = Dict([("a\n\x1b[2J", Discrete(2)), ("", Discrete(2)), ("k" * 256, Discrete(2))])
    lines = contract_lines(contract(odd, id="\x1b[31mred"))
    assert lines[0].startswith("'\\x1b[31mred': ")
    assert "'a\\n\\x1b[2J'" in lines[2]
    assert "└─ ''" in "".join(lines).replace("├", "└")
    assert max(map(len, lines)) < 120
    assert all(line.isprintable() for line in lines)


def test_a_huge_contract_is_cut():
    lines = contract_lines(contract(Tuple([Discrete(2)] * 1000)))
    assert len(lines) == 202
    assert lines[-1] == "… 802 more"


def test_values_are_json():
    table = json.loads(json.dumps(contract_values(contract(NESTED))))
    spaces = table["observation_space"]["spaces"]
    assert list(spaces) == ["image", "parts", "word", "path"]
    assert spaces["image"] == {
        "kind": "Box",
        "description": "Box uint8 (480, 640, 3)",
        "row_bytes": 921_600,
    }
    assert spaces["parts"]["spaces"]["1"]["spaces"]["edges"]["kind"] == "Discrete"
    assert table["num_envs"] == 1
