"""Env contracts as bytes: every space comes back equal; what is over a limit is refused."""

from __future__ import annotations

import random

import msgspec
import numpy as np
import pytest

from rollmesh.errors import WireError
from rollmesh.limits import SIZE_LIMITS
from rollmesh.ports import NO_INFO, AutoresetMode, EnvContract
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
from rollmesh.wire import contract as module
from rollmesh.wire.contract import decode_contract, encode_contract

SPACES = [
    Box((2, 3)),
    Box((84, 84, 4), np.uint8, 0, 255),
    Box((3,), np.float32, [0, 1, 2], [3, 4, 5]),
    Box((2,), np.float16, -1, np.inf),
    Box((), np.float64),
    Box((0, 3)),
    Box((2,), bool),
    Discrete(3, -1),
    Discrete(2**64, 0, np.uint64),
    Discrete(2, 0, np.int8),
    MultiBinary(5),
    MultiBinary((2, 0)),
    MultiDiscrete([[2, 3], [4, 5]], [[1, 1], [0, -1]]),
    MultiDiscrete([2, 3], dtype=np.uint8),
    Text(1, 3),
    Text(0, 2**70, "ab\ud800"),
    Text(0, 4, ""),
    Dict({"b": Box((1,)), "a": Discrete(2), "": Text(1, 2), "\ud800": Discrete(2)}),
    Dict({}),
    Tuple([]),
    Tuple([Discrete(3), Dict({"x": Box((2,))})]),
    Sequence(Box((2,)), stack=True),
    Graph(Box((2,)), None),
    Graph(Box((2,)), Discrete(2)),
    OneOf([Discrete(2), Box((1,))]),
]
EVERYTHING = Tuple(SPACES)


def contract(observation=EVERYTHING, action=SPACES[7], **given):
    return EnvContract(id="toy-v0", observation_space=observation, action_space=action, **given)


def again(value):
    return decode_contract(encode_contract(value))


@pytest.mark.parametrize("space", SPACES, ids=repr)
def test_a_space_comes_back_equal(space):
    back = again(contract(space, space))
    assert back.observation_space == space
    assert back.action_space == space
    assert back.observation_space.codec.leaf_specs == space.codec.leaf_specs


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_everything_else_comes_back_equal(mode):
    value = contract(
        num_envs=7,
        autoreset_mode=mode,
        render_mode="rgb_array",
        metadata={"render_fps": 30, "pose": (1, 2), "scale": np.float32(3), 4: None},
    )
    back = again(value)
    assert back == value
    assert type(back.metadata["scale"]) is np.float32


def test_an_empty_contract_has_no_metadata():
    back = again(contract(Tuple([]), Tuple([])))
    assert back.metadata is NO_INFO
    assert back.render_mode is None


def test_order_of_names_is_kept():
    assert [name for name, _ in again(contract(SPACES[17])).observation_space.spaces] == [
        "b",
        "a",
        "",
        "\ud800",
    ]


def test_a_uniform_box_costs_one_number():
    size = len(encode_contract(contract(Box((1024, 1024), np.float32, -1, 1))))
    assert size < 200


def test_metadata_that_cannot_travel_is_reported():
    told = []
    encode_contract(contract(metadata={"a": object()}), lambda *found: told.append(found))
    assert told[0][0].startswith("metadata")


def test_a_space_of_a_foreign_class_is_refused():
    class Strange(Discrete):
        pass

    with pytest.raises(WireError, match="Strange"):
        encode_contract(contract(action=Strange(2)))


# ----------------------------------------------------------------------------------- limits


def crafted(observation, **given):
    """Return the bytes of a contract with this as its observation space."""
    values = {
        "id": b"x",
        "num_envs": 1,
        "mode": "disabled",
        "render_mode": None,
        "observation": observation,
        "action": ["discrete", 2, 0, "int64"],
        "metadata": b"",
    } | given
    return msgspec.msgpack.encode(list(values.values()))


def nested(depth):
    space = ["discrete", 2, 0, "int64"]
    for _ in range(depth):
        space = ["tuple", [space]]
    return space


NUMBER = np.float32(0).tobytes()
REFUSED = [
    (crafted(["nothing", 1]), "section"),
    (crafted(nested(SIZE_LIMITS.nesting)), "nested"),
    (crafted(["box", [1] * 9, "float32", NUMBER, NUMBER]), "sizes"),
    (crafted(["box", [-1], "float32", NUMBER, NUMBER]), "sizes"),
    (crafted(["box", [2**40], "float32", NUMBER, NUMBER]), "bytes"),
    (crafted(["box", [3], "float32", NUMBER * 2, NUMBER]), "expected"),
    (crafted(["box", [0], "float32", NUMBER, NUMBER]), "expected"),
    (crafted(["box", [1], "complex64", NUMBER, NUMBER]), "element type"),
    (crafted(["box", [1], "bool", b"\x02", b"\x01"]), "bool"),
    (crafted(["box", [1], "float32", np.float32("nan").tobytes(), NUMBER]), "NaN"),
    (crafted(["multi_binary", [2**40]]), "bytes"),
    (crafted(["multi_discrete", [2], "int64", b"\0" * 16, b"\0" * 8]), "positive"),
    (crafted(["discrete", 0, 0, "int64"]), "positive"),
    (crafted(["discrete", b"\xff" * 300, 0, "int64"]), "number"),
    (crafted(["text", 0, b"\x7f" * 300, None]), "number"),
    (crafted(["text", 5, 4, None]), "min_length"),
    (crafted(["text", 0, 4, b"\xff"]), "UTF-8"),
    (crafted(["text", 0, 4, b"x" * (SIZE_LIMITS.text_bytes + 1)]), "text"),
    (crafted(["dict", [b"a"], []]), "names"),
    (crafted(["dict", [b"a", b"a"], [nested(0), nested(0)]]), "once"),
    (crafted(["dict", [b"a" * 300], [nested(0)]]), "observation"),
    (crafted(["tuple", [nested(0)] * (SIZE_LIMITS.keys + 1)]), "at most"),
    (crafted(["one_of", []]), "at least one"),
    (crafted(nested(0), num_envs=0), "envs"),
    (crafted(nested(0), num_envs=SIZE_LIMITS.rows + 1), "envs"),
    (crafted(nested(0), mode="sometimes"), "autoreset"),
    (crafted(nested(0), metadata=b"\xff\xff"), "metadata"),
    (crafted(nested(0), id=b"\xff"), "UTF-8"),
    (b"", "section"),
    (b"\xc1", "section"),
]


@pytest.mark.parametrize(("data", "match"), REFUSED, ids=[str(i) for i in range(len(REFUSED))])
def test_what_is_over_a_limit_or_no_contract_is_refused(data, match):
    with pytest.raises(WireError, match=match):
        decode_contract(data)


def test_depth_at_the_limit_is_accepted():
    decode_contract(crafted(nested(SIZE_LIMITS.nesting - 1)))


def test_the_number_of_spaces_is_bounded(monkeypatch):
    monkeypatch.setattr(module, "MOST_SPACES", 4)
    decode_contract(crafted(["tuple", [nested(0)] * 2]))
    with pytest.raises(WireError, match="more than 4 spaces"):
        decode_contract(crafted(["tuple", [nested(0)] * 4]))


def test_a_deep_bomb_is_refused():
    with pytest.raises(WireError):
        decode_contract(crafted(nested(0))[:-1] + b"\x91" * 100_000)


def test_p12_any_change_of_the_bytes_is_a_contract_or_a_wire_error():
    good = encode_contract(contract(metadata={"a": (1, "b", np.arange(3))}))
    chance = random.Random(7)
    for _ in range(3000):
        data = bytearray(good)
        for _ in range(chance.randint(1, 4)):
            match chance.randrange(3):
                case 0:
                    data[chance.randrange(len(data))] = chance.randrange(256)
                case 1:
                    del data[chance.randrange(len(data)) :]
                case _:
                    at = chance.randrange(len(data) + 1)
                    data[at:at] = chance.randbytes(chance.randint(1, 8))
            if not data:
                break
        try:
            decode_contract(bytes(data))
        except WireError:
            continue
