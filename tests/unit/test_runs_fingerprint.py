"""What tells an object of the user's from another one: equal if made alike, bounded, harmless."""

from __future__ import annotations

import functools
import os
import random
import subprocess
import sys
import threading
import tracemalloc
from collections import deque
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

from rollmesh import Model
from rollmesh.runs import fingerprint as module
from rollmesh.runs import looking, own_code
from rollmesh.runs.fingerprint import MOST_PARTS, REST, env_fingerprint, fingerprint

SCALE = 0.5


def scaled(seen):
    return seen * SCALE


class Leans(Model):
    """Leans to one side."""

    edge = 3

    def __init__(self, gain=1.0, **more):
        self.gain = gain
        self.__dict__.update(more)

    def predict(self, seen):
        """Return which side."""
        return int(scaled(seen[0]) > self.gain)


@dataclass
class Layer:
    width: int
    weights: np.ndarray | None = None


class Side(Enum):
    LEFT = 1
    RIGHT = 2


def made(source: str, name: str = "act", **known):
    """Return what a piece of source defines."""
    space = {"__name__": "__main__", **known}
    exec(compile(source, "<made>", "exec"), space)
    return space[name]


def differing(a, b) -> set[str]:
    first, second = fingerprint(a), fingerprint(b)
    assert first
    assert second
    return {name for name in {**first, **second} if first.get(name) != second.get(name)}


# ------------------------------------------------------------------------------------- code


def test_functions_differ_by_what_they_do():
    assert differing(lambda seen: 0, lambda seen: 1) == {"code"}
    assert differing(lambda seen: [0 for _ in seen], lambda seen: [1 for _ in seen]) == {"code"}
    assert differing(lambda seen: 0, lambda seen: 0) == set()
    assert differing(made("def act(o, e=1): return e"), made("def act(o, e=2): return e")) == {
        "code"
    }
    assert differing(made("def act(o): return o.low"), made("def act(o): return o.up")) == {"code"}


def test_comments_docstrings_and_place_do_not_count():
    plain = "def act(o):\n    if o:\n        return None\n    return o + 1\n"
    told = (
        "import sys\n\n\n# what comes\ndef act(o):\n    '''Answer.'''\n\n    if o:  # so\n"
        "        return None\n\n    return  o+1\n"
    )
    assert differing(made(plain), made(told)) == set()
    inner = "def act(o):\n    class A:\n{}        x = 1\n    return A\n"
    assert differing(made(inner.format("")), made(inner.format("        'Doc.'\n"))) == set()


def test_code_of_the_users_own_that_is_called_counts():
    act = "def act(o): return choose(o)\n"
    one, other = (made(f"{act}def choose(o): return {n}") for n in (0, 1))
    assert differing(one, other) == {"code"}
    wrap = "import functools\ndef act(o): return choose(o)\n@functools.cache\ndef choose(o): "
    assert differing(made(f"{wrap}return 0"), made(f"{wrap}return 1")) == {"variable choose"}


def test_methods_and_bases_of_a_class_count():
    source = "class Base:\n    def go(self, o): return {}\nclass act(Base):\n    x = {}\n"
    first = made(source.format(1, 2))
    assert differing(first, made(source.format(1, 2))) == set()
    assert differing(first, made(source.format(3, 2))) == {"code"}
    assert differing(first, made(source.format(1, 4))) == {"attribute x"}
    assert differing(first(), made(source.format(3, 2))()) == {"code"}


def test_what_is_installed_counts_by_its_name():
    assert differing(np.tanh, np.tanh) == set()
    assert differing(np.tanh, np.sinh) != set()
    assert differing(os.path.join, os.path.split) == {"code"}
    assert differing(len, abs) == {"code"}


# ----------------------------------------------------------------------------------- values


def test_attributes_are_named_and_compared_by_value():
    def leans():
        return Leans(
            0.3,
            table={"a": [1, 2.5], (1, 2): {3, 4}},
            layers=(Layer(3, np.arange(3)), Layer(4)),
            side=Side.LEFT,
            queue=deque([1]),
            text="é",
            huge=10**5000,
            nothing=None,
        )

    assert differing(leans(), leans()) == set()
    for name, value in {
        "gain": 0.4,
        "table": {"a": [1, 2.0], (1, 2): {3, 4}},
        "layers": (Layer(3, np.array([0, 1, 3])), Layer(4)),
        "side": Side.RIGHT,
        "queue": deque([2]),
        "huge": 10**5000 + 1,
        "nothing": 0,
    }.items():
        other = leans()
        setattr(other, name, value)
        assert differing(leans(), other) == {f"attribute {name}"}


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (1, 1.0),
        (1, True),
        ([1], (1,)),
        ("1", b"1"),
        (0.0, -0.0),
        (np.float32(1), np.float64(1)),
        (np.zeros(2), np.zeros((2, 1))),
        (np.zeros(2, np.int8), np.zeros(2, np.uint8)),
        (np.array([{}], object), np.array([[]], object)),
        ({"a": 1}, {"a": 2}),
        ({"a"}, {"b"}),
        ([["a"], ["b"]], [["a", "b"], []]),
        (Layer(1), Layer(2)),
        (int, float),
    ],
)
def test_values_that_are_not_the_same_differ(a, b):
    assert differing(Leans(held=a), Leans(held=b))
    assert not differing(Leans(held=a), Leans(held=a))


def test_arrays_are_read_whole_however_they_lie_in_memory():
    grid = np.arange(12.0).reshape(3, 4)
    assert differing(Leans(w=grid), Leans(w=np.asfortranarray(grid))) == set()
    big = np.zeros(3_000_000)
    other = big.copy()
    other[1_500_000] = 1
    assert differing(Leans(w=big), Leans(w=other)) == {"attribute w"}
    assert differing(Leans(w=np.zeros((0, 3))), Leans(w=np.zeros((3, 0)))) == {"attribute w"}


def test_what_a_function_reads_from_outside_counts_by_its_name():
    def policy(gain):
        return lambda seen: gain * seen

    assert differing(policy(1), policy(2)) == {"variable gain"}
    source = "def act(o): return o * SCALE"
    assert differing(made(source, SCALE=1), made(source, SCALE=2)) == {"variable SCALE"}
    assert differing(made(source, SCALE=1), made(source, SCALE=1, OTHER=2)) == set()
    assert differing(Leans(1).predict, Leans(2).predict) == {"attribute gain"}
    assert differing(
        functools.partial(scaled, 1, a=2), functools.partial(scaled, 3, a=4)
    ) == {"argument 0", "argument a"}  # fmt: skip


def test_own_modules_are_followed_to_what_is_read_of_them():
    from tests import toys

    source = "def act(o): return {}"
    first = made(source.format("toys.Counter"), toys=toys, Counter=None)
    assert fingerprint(first)["code"] != fingerprint(made("def act(o): return 0"))["code"]


def test_of_huge_arrays_the_beginning_and_the_end_count(monkeypatch):
    monkeypatch.setattr(module, "_HUGE_BYTES", 1000)
    monkeypatch.setattr(module, "_END_BYTES", 80)
    first, inner, last = (np.zeros((20, 10)) for _ in range(3))
    inner[10, 5], last[19, 9] = 1, 1
    assert differing(Leans(w=first), Leans(w=inner)) == set()
    assert differing(Leans(w=first), Leans(w=last)) == {"attribute w"}
    assert differing(Leans(w=first.T), Leans(w=last.T)) == {"attribute w"}
    assert differing(Leans(w=first[:5]), Leans(w=np.ones((5, 10)))) == {"attribute w"}


@pytest.mark.parametrize("kind", [bytes, bytearray, type("Blob", (bytes,), {})])
def test_bytes_are_hashed_as_they_are(kind):
    held = Leans(blob=kind(4 << 20))
    fingerprint(held)
    tracemalloc.start()
    fingerprint(held)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 1 << 20
    assert differing(held, Leans(blob=kind(b"x"))) == {"attribute blob"}


def test_members_of_a_set_that_know_each_other_count_in_any_order():
    ring = [Layer(number) for number in range(5)]
    for place, one in enumerate(ring):
        one.weights = ring[(place + 1) % 5]
    one, other = module._Look()._set(ring, 1), module._Look()._set(ring[::-1], 1)
    assert one == other
    ring[0].width = 9
    assert module._Look()._set(ring, 1) != one


def test_what_code_does_is_found_out_once(monkeypatch):
    looked = []
    real = own_code._instructions
    monkeypatch.setattr(own_code, "_instructions", lambda code: looked.append(code) or real(code))
    source = "def once(o): return o + 4711\n"
    source += "".join(f"class C{n}:\n    def go(self): return once({n})\n" for n in range(9))
    source += f"act = [{', '.join(f'C{n}()' for n in range(9))}]"
    fingerprint(Leans(parts=made(source)))
    assert [code.co_name for code in looked].count("once") == 2, "its digest, and its names"


def test_what_moves_by_being_used_counts_by_its_type():
    def restless():
        rng = np.random.default_rng()
        rng.random()
        return Leans(rng=rng, luck=random.Random(), lock=threading.Lock(), me=rng.random)

    assert differing(restless(), restless()) == set()
    space, drawn = gym.spaces.Discrete(3), gym.spaces.Discrete(3)
    drawn.sample()
    assert differing(Leans(space=space), Leans(space=drawn)) == set()
    assert differing(Leans(space=space), Leans(space=gym.spaces.Discrete(4))) != set()


def test_slots_count():
    class Slotted:
        __slots__ = ("a", "b")

    one, other = Slotted(), Slotted()
    one.a = other.a = 1
    assert differing(one, other) == set()
    other.a = 2
    assert differing(one, other) == {"attribute a"}


# ------------------------------------------------------------------------------- parameters


def test_a_torch_module_is_what_it_has_learned():
    torch = pytest.importorskip("torch")

    def net(value, kind=torch.float32):
        layer = torch.nn.Linear(2, 2).to(kind)
        with torch.no_grad():
            layer.weight.fill_(value)
            layer.bias.fill_(value)
        return layer

    assert differing(net(1), net(1).eval()) == set()
    assert differing(net(1), net(2)) == {"parameters"}
    half = torch.bfloat16
    assert differing(net(1, half), net(1, half)) == set()
    assert differing(net(1, half), net(2, half)) == {"parameters"}
    assert differing(Leans(net=net(1)), Leans(net=net(2))) == {"attribute net"}
    assert differing(Leans(w=net(1).weight), Leans(w=net(2).weight)) == {"attribute w"}

    def policy(layer):
        @torch.no_grad()
        def act(seen):
            return layer(seen)

        return act

    assert differing(policy(net(1)), policy(net(1))) == set()
    assert differing(policy(net(1)), policy(net(2))) == {"variable layer"}


def test_a_large_tensor_is_looked_at_here_and_there(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(looking, "_THIN_BYTES", 2**16)
    read = []
    monkeypatch.setattr(torch.Tensor, "cpu", lambda tensor: read.append(tensor.nbytes) or tensor)

    def weights(rows, kind=torch.float32):
        return torch.zeros((rows, 2**20 // rows), dtype=kind)

    trained, half = weights(1024), torch.bfloat16
    trained[500] += 1.0  # one row
    assert differing(Leans(w=weights(1024)), Leans(w=weights(1024))) == set()
    assert differing(Leans(w=weights(1024)), Leans(w=trained)) == {"attribute w"}
    assert differing(Leans(w=weights(1024)), Leans(w=weights(512))) == {"attribute w"}
    assert differing(Leans(w=weights(1024, half)), Leans(w=trained.to(half))) == {"attribute w"}
    assert 0 < max(read) <= 2**16


def test_a_setting_beside_parameters_counts_too():
    torch = pytest.importorskip("torch")

    class Net(torch.nn.Module):
        def __init__(self, heat):
            super().__init__()
            self.heat = heat

    assert differing(Net(1.0), Net(1.0).eval()) == set()
    assert differing(Net(1.0), Net(2.0)) == {"attribute heat"}


def test_parameters_that_cannot_be_read_are_harmless():
    class Odd:
        def state_dict(self):
            raise RuntimeError("not now")

    assert differing(Odd(), Odd()) == set()


# ------------------------------------------------------------------------------------- envs


class Still(gym.Env):
    observation_space = action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state = self.np_random.random()
        return 0, {}


def test_an_env_is_its_spec_and_not_its_state():
    def cart(**how):
        env = gym.make("CartPole-v1", **how)
        env.reset()
        return env

    assert env_fingerprint(cart()) == env_fingerprint(cart())
    short = env_fingerprint(cart(max_episode_steps=20))
    changed = {k for k, v in env_fingerprint(cart()).items() if v != short[k]}
    assert changed == {"spec", "wrappers"}


def test_an_env_without_a_spec_is_its_classes_and_what_wraps_it():
    def still(steps):
        env = gym.wrappers.TimeLimit(Still(), steps)
        env.reset()
        return env

    assert env_fingerprint(still(5)) == env_fingerprint(still(5))
    assert env_fingerprint(still(5)) != env_fingerprint(still(6))
    assert env_fingerprint(Still()) != env_fingerprint(still(5))


def test_a_vector_env_is_what_it_was_built_of():
    def several(steps, count):
        make = [lambda: gym.make("CartPole-v1", max_episode_steps=steps)] * count
        return gym.vector.SyncVectorEnv(make)

    assert env_fingerprint(several(5, 1)) == env_fingerprint(several(5, 3))
    assert env_fingerprint(several(5, 2)) != env_fingerprint(several(6, 2))


# ----------------------------------------------------------------------------------- limits


def test_it_is_the_same_in_another_process_with_other_hashes():
    source = (
        "import sys, json; from tests.unit.test_runs_fingerprint import *\n"
        "thing = Leans(0.5, names={'a', 'b', 'c', ('d', 1)}, kinds={Side.LEFT, Side.RIGHT}, \n"
        "    layers=[Layer(1)], w=np.ones(3), rng=np.random.default_rng(), \n"
        "    f=lambda o: o in {'x', 'y'})\n"
        "print(json.dumps([fingerprint(thing), fingerprint(Leans), fingerprint(scaled),\n"
        "    env_fingerprint(gym.make('CartPole-v1')), env_fingerprint(Still())]))\n"
    )
    root = Path(__file__).parent.parent.parent
    said = [
        subprocess.run(
            [sys.executable, "-c", source],
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(root), *filter(None, sys.path)]),
                "PYTHONHASHSEED": seed,
            },
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert "attribute names" in said[0]
    assert said[0] == said[1]


def test_many_parts_become_one_that_stands_for_the_rest():
    many = {f"x{number:03}": number for number in range(100)}
    found = fingerprint(Leans(**many))
    assert len(found) == MOST_PARTS
    assert differing(Leans(**many), Leans(**(many | {"x099": 0}))) == {REST}


def test_cycles_and_deep_objects_end():
    around = Leans()
    around.me, around.list = around, []
    around.list.append(around.list)
    deep: list = []
    for _ in range(50_000):
        deep = [deep]
    assert set(fingerprint(Leans(deep=deep))) >= {"attribute deep", "code"}
    assert "attribute me" in fingerprint(around)


def test_long_chains_of_functions_end():
    lines = ["def act0(o): return {}"]
    lines += [f"def act{n}(o): return act{n - 1}(o)" for n in range(1, 1500)]
    source = "\n".join(lines)
    one, other = (made(source.format(n), "act1499") for n in (0, 1))
    assert differing(one, other) == {"code"}


def test_of_very_many_objects_the_first_are_looked_at(monkeypatch):
    monkeypatch.setattr(module, "_MOST_OBJECTS", 10)
    many, last, first = ([[number] for number in range(100)] for _ in range(3))
    last[-1], first[0] = ["other"], ["other"]
    assert differing(Leans(held=many), Leans(held=last)) == set()
    assert differing(Leans(held=many), Leans(held=first)) == {"attribute held"}
    assert differing(Leans(held=many), Leans(held=many[:-1])) == {"attribute held"}


def test_it_never_raises_and_runs_no_code_of_the_users():
    class Hostile:
        def __getattribute__(self, name):
            raise RuntimeError("hands off")

        __repr__ = __eq__ = __hash__ = __len__ = __iter__ = __bool__ = __getattribute__

    class HostileDict(dict):
        def items(self):
            raise RuntimeError("hands off")

    assert set(fingerprint(Hostile())) == set(env_fingerprint(Hostile())) == {"code"}
    found = fingerprint(Leans(h=Hostile(), d=HostileDict(a=1), gone=iter(())))
    assert {"attribute h", "attribute d", "attribute gain"} <= set(found)
