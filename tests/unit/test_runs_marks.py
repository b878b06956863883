"""What tells model and env of a run from others of the same name, and what is said of it."""

from __future__ import annotations

import gc

import gymnasium as gym
import pytest

import rollmesh
from rollmesh.runs import marks as marks_module
from rollmesh.runs.checking import Start
from rollmesh.runs.marks import (
    changed_marks,
    earlier_of,
    marked_by,
    marks_of,
    moved_since,
    remember,
    seen_in,
)


def start(marks, **facts):
    facts = {"fingerprinted_by": marked_by(), **facts}
    return Start(started_at=0.0, facts={"fingerprints": marks, **facts})


def model(**parts):
    return {"model": parts}


def said(starts, now):
    return changed_marks(seen_in(starts), now)


def act(seen):
    return 0


# ------------------------------------------------------------------------------- what is marked


@pytest.mark.parametrize(
    "target",
    ["random", "127.0.0.1:5000", "unix:/tmp/x", "nowhere:policy", "numpy:tanh", "json:x", ""],
)
def test_names_without_code_of_ones_own_have_no_marks(target):
    assert marks_of(target, target) == {"model": {}, "env": {}}


def test_files_and_served_endpoints_have_no_marks(tmp_path):
    (tmp_path / "a.zip").touch()
    assert marks_of(str(tmp_path / "a.zip"), None) == {"model": {}, "env": {}}
    assert marks_of(tmp_path / "a.zip", rollmesh.RemoteEnv) != {"model": {}, "env": {}}


def test_objects_are_marked_by_what_they_are():
    marks = marks_of(act, gym.make("CartPole-v1"))
    assert set(marks["model"]) == {"code"}
    assert set(marks["env"]) == {"code", "spec", "wrappers"}
    assert set(marks_of("random", lambda: None)["env"]) == {"code"}


def test_of_several_each_is_marked():
    marks = marks_of([act, "127.0.0.1:5000", lambda seen: 1], None)
    assert set(marks["model"]) == {"code of entry 1", "code of entry 3"}


def test_a_named_model_is_marked_by_its_file_and_not_imported(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").write_text("raise SystemExit('imported')")
    files = {"alone:act": tmp_path / "alone.py", "pack.inner:act": tmp_path / "pack" / "inner.py"}
    for target, file in files.items():
        file.write_text("raise SystemExit\ndef act(o):\n    return 0\n")
        first = marks_of(target, None)
        assert set(first["model"]) == {"code"}
        file.write_text(
            "'''Doc.'''\nraise SystemExit  # so\n\ndef act(o):\n    '''A.'''\n    return 0"
        )
        assert marks_of(target, None) == first
        file.write_text("raise SystemExit\ndef act(o):\n    return 1\n")
        assert marks_of(target, None) != first
        file.write_text("def act(o) return 1\n")
        assert set(marks_of(target, None)["model"]) == {"code"}


def test_folders_without_an_init_file_are_packages_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "outer" / "inner" / "deep"
    folder.mkdir(parents=True)
    (folder / "policy.py").write_text("def act(o):\n    return 0\n")
    assert set(marks_of("outer.inner.deep.policy:act", None)["model"]) == {"code"}
    assert marks_of("outer.inner.deep:act", None)["model"] == {}
    assert marks_of("outer.inner.missing:act", None)["model"] == {}


def test_the_code_of_an_env_that_is_named_does_not_count(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sim.py").write_text("def make(): return 0")
    assert marks_of("random", "sim:make")["env"] == {}


# -------------------------------------------------------------------------------- what is said


def test_each_changed_part_is_told_in_words():
    before = {"model": {"code": "1", "parameters": "1", "attribute x": "1", "attribute y": "1"}}
    now = {"model": {"code": "2", "parameters": "2", "attribute x": "2", "attribute z": "2"}}
    assert said([start(before)], before) == ()
    assert said([start(before)], now) == (
        "model: attribute x is another than in earlier starts",
        "model: attribute y is gone",
        "model: attribute z is new",
        "model: its code is another than in earlier starts",
        "model: its parameters are others than in earlier starts",
    )
    entries = said([start(model(**{"code of entry 2": "1"}))], model(**{"code of entry 2": "2"}))
    assert entries == ("model: its code (of entry 2) is another than in earlier starts",)


def test_a_run_that_noted_nothing_is_not_compared():
    assert said([], model(code="1")) == ()
    assert said([Start(started_at=0.0, facts={})], model(code="1")) == ()


def test_an_object_in_place_of_a_name_is_told():
    words = ("model: it is given in another way than in earlier starts",)
    assert said([start(model())], model(code="1")) == words
    assert said([start(model(code="1"))], model()) == words


def test_what_playing_moved_may_go_on_as_it_was_left_and_as_it_began():
    before, left = model(memory="1", code="1"), model(memory="2", more="1", code="9")
    moved = moved_since(before, left)
    assert moved == {"model": {"memory": "2", "more": "1"}}, "code does not move"
    starts = [start(before, moved=moved), start(model(memory="2", more="1", code="1"))]
    assert said(starts, model(memory="1", code="1")) == ()
    assert said(starts, model(memory="2", more="1", code="1")) == ()
    assert said(starts, model(memory="3", code="1")) != ()


def test_what_was_before_an_accepted_change_is_another():
    starts = [start(model(code="1")), start(model(code="2"), accepted={"after": 3, "changes": []})]
    assert said(starts, model(code="2")) == ()
    assert said(starts, model(code="1")) != ()


# ------------------------------------------------------------------------ what playing changed


class Counts:
    """Counts what it was asked."""

    def __init__(self):
        self.asked, self.eps = 0, 0.1

    def __call__(self, seen):
        self.asked += 1
        return 0


def play(target, change=lambda one: one(0)):
    """Return the marks that a target had, after playing it."""
    before = marks_of(target, None)
    change(target)
    moved = moved_since(before, marks_of(target, None))
    remember(target, None, before=before, moved=moved)
    return before


def earlier(target):
    return earlier_of(target, None, marks_of(target, None))


def test_marks_that_playing_has_taken_are_remembered_over_several_runs():
    counts = Counts()
    assert earlier(counts) == {}
    first, second = play(counts), play(counts)
    had = [one["model"]["attribute asked"] for one in (first, second)]
    assert earlier(counts) == {"model": {"attribute asked": had}}
    assert earlier(counts.__call__) == earlier(counts)
    now = marks_of(counts, None)
    assert said([start(first)], now) != ()
    assert changed_marks(seen_in([start(first)]), now, earlier=earlier(counts)) == ()
    assert said([start(now, earlier=earlier(counts))], first) == ()
    assert said([start(now)], first) != ()


def test_a_change_by_another_hand_is_none_by_playing():
    counts = Counts()
    first = play(counts)
    counts.eps = 0.2
    words = ("model: attribute eps is another than in earlier starts",)
    now = marks_of(counts, None)
    assert changed_marks(seen_in([start(first)]), now, earlier=earlier(counts)) == words
    counts.eps, counts.asked = 0.1, 7
    assert earlier(counts) == {}
    play(counts)
    assert first["model"]["attribute asked"] not in earlier(counts)["model"]["attribute asked"]


def test_marks_are_remembered_of_each_of_several():
    one, other = Counts(), Counts()

    def change(several):
        several[0](0)
        several[1](0)

    play([one, other, one], change)
    play([one, other, one], change)
    found = earlier([one, other, one])["model"]
    assert sorted(found) == [f"attribute asked of entry {number}" for number in (1, 2, 3)]
    assert found["attribute asked of entry 1"] == earlier(one)["model"]["attribute asked"]
    assert [len(several) for several in found.values()] == [2, 2, 2]
    del one, found
    assert earlier([other])["model"].keys() == {"attribute asked of entry 1"}


def test_what_is_remembered_ends_with_its_object():
    counts = Counts()
    play(counts)
    key = id(counts)
    assert key in marks_module._trails
    del counts
    gc.collect()
    assert key not in marks_module._trails


def test_of_what_can_be_told_no_end_of_nothing_is_remembered():
    class Slotted(Counts):
        __slots__ = ()

    class Bare:
        __slots__ = ("asked",)

        def __init__(self):
            self.asked = 0

        def __call__(self, seen):
            self.asked += 1

    play(bare := Bare())
    assert earlier(bare) == {}
    play(slotted := Slotted())
    assert earlier(slotted) != {}


def test_of_very_many_marks_the_first_and_the_last_are_remembered():
    counts = Counts()
    had = [play(counts)["model"]["attribute asked"] for _ in range(70)]
    assert earlier(counts)["model"]["attribute asked"] == had[:32] + had[-32:]


# ------------------------------------------------------------------------ what can be compared


def test_code_is_not_compared_with_that_of_another_python():
    other = {"fingerprinted_by": {**marked_by(), "python": "cpython 2.7"}}
    there = start(model(code="1+code", x="1", f="1+code"), **other)
    assert said([there], model(code="2+code", x="1", f="2+code")) == ()
    assert said([there], model(code="2+code", x="2", f="2+code")) != ()
    assert said([there], model(code="2+code", x="1", f="2")) != (), "it was a function"
    assert said([there], model(code="2+code", x="1")) == ("model: f is gone",)
    here = start(model(code="2+code", x="1", f="2+code"))
    assert said([there, here], model(code="2+code", x="1", f="2+code")) == ()
    assert said([there, here], model(code="3+code", x="1", f="2+code")) != ()


def test_hashes_of_another_kind_are_not_compared():
    for by in ({}, {**marked_by(), "algorithm": 1}):
        assert said([start(model(x="1"), fingerprinted_by=by)], model(x="2")) == ()
    assert said([start(model(x="1"))], model(x="2")) != ()


def test_marks_say_whether_code_went_into_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "acting.py").write_text("def act(o):\n    return 0\n")
    assert marks_of("acting:act", None)["model"]["code"].endswith("+code")

    class Holds:
        def __init__(self):
            self.f, self.inside, self.x, self.again = act, [{"f": [act]}], 1, [act]

    marks = marks_of(Holds(), None)["model"]
    coded = {name for name, mark in marks.items() if mark.endswith("+code")}
    assert coded == {"attribute f", "attribute inside", "attribute again", "code"}
