"""Plans in files: the same plan as JSON, TOML, YAML and Python; what is wrong with a file."""

from __future__ import annotations

import pytest

from rollmesh.errors import InvalidSpec
from rollmesh.fleet.plan import Plan, Task
from rollmesh.fleet.plan_files import load_plan

WANTED = Plan(
    seed=3,
    tasks=(
        Task(name="a", env="Pendulum-v1", env_kwargs={"g": 9.5}, episodes=4),
        Task(name="b", seeds=[1, 2], max_episode_steps=20),
    ),
)
TEXTS = {
    "plan.json": WANTED.to_json(),
    "plan.toml": """
seed = 3
[[tasks]]
name = "a"
env = "Pendulum-v1"
env_kwargs = { g = 9.5 }
episodes = 4
[[tasks]]
name = "b"
seeds = [1, 2]
max_episode_steps = 20
""",
    "plan.yaml": """
seed: 3
tasks:
  - {name: a, env: Pendulum-v1, env_kwargs: {g: 9.5}, episodes: 4}
  - {name: b, seeds: [1, 2], max_episode_steps: 20}
""",
    "plan.py": """
from rollmesh.fleet.plan import Plan, Task

def plan():
    first = Task(name="a", env="Pendulum-v1", env_kwargs={"g": 9.5}, episodes=4)
    return Plan(seed=3, tasks=(first, Task(name="b", seeds=[1, 2], max_episode_steps=20)))
""",
}


@pytest.mark.parametrize("name", TEXTS)
def test_every_form_gives_the_same_plan(name, tmp_path):
    file = tmp_path / name
    file.write_text(TEXTS[name])
    assert load_plan(file).hash == WANTED.hash


@pytest.mark.parametrize(
    ("name", "text", "word"),
    [
        ("x.txt", "", "ends in one of"),
        ("x.json", "{", "no JSON"),
        ("x.toml", "=", "no TOML"),
        ("x.yaml", "a: [", "no YAML"),
        ("x.yaml", "- 1", "wants a table"),
        ("x.py", "plan = 1 / 0", "ZeroDivisionError"),
        ("x.py", "other = 1", "has no `plan`"),
        ("x.py", "plan = 3", "wants a table"),
        ("x.py", "raise SystemExit(3)", "SystemExit: 3"),
        ("x.py", "def plan(): raise ValueError('no scenes')", "ValueError: no scenes"),
        ("x.py", "def plan(): pass", "a function that returns one"),
        ("x.py", "open('/none/scenes')", "as it was run: FileNotFoundError"),
        ("x.py", "import rollmesh; plan = rollmesh.Task()", "episodes: is missing"),
        ("x.json", '{"tasks": [{"seeds": 5}]}', "seeds: wants a list of ints"),
        ("x.json", '{"tasks": [{"episodes": 2, "options": "ab"}]}', "options: wants one mapping"),
        ("x.json", '{"tasks": [{"episodes": 2, "options": 3}]}', "options: wants one mapping"),
        ("x.json", '{"tasks": [{"episodes": 2, "initial_state_option": 3}]}', "a reset option"),
        ("x.json", '{"name": 3, "tasks": [{"episodes": 2}]}', "name: wants a text"),
    ],
)
def test_a_wrong_file_is_named_with_what_is_wrong(name, text, word, tmp_path):
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(InvalidSpec, match=word) as caught:
        load_plan(file)
    assert name in str(caught.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InvalidSpec, match="cannot be read"):
        load_plan(tmp_path / "none.json")
