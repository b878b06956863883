"""Processes of our own: told what to do, and ended with what they started and with their parent."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from rollmesh.endpoint.child_process import (
    MAIN_NAME,
    how_it_ended,
    kill_group,
    let_go,
    load_main,
    outwait,
    signal_name,
    spawn,
)
from tests.unit.session_toys import until

LIMIT_S = 20.0


@pytest.fixture
def started(tmp_path, monkeypatch):
    """Return what starts a module of this text; all are ended, and let go of."""
    monkeypatch.syspath_prepend(str(tmp_path))
    processes = []

    def start(text, config=None, **given):
        name = f"child_{len(processes)}"
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
        processes.append(spawn(name, config or {}, output=subprocess.PIPE, **given))
        return processes[-1]

    yield start
    for process in processes:
        kill_group(process)
        process.wait(LIMIT_S)
        process.stdout.close()
        process.stderr.close()
        let_go(process)


def is_running(pid):
    """Return whether a process is there and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


# ------------------------------------------------------------------------------ being told


def test_a_child_is_told_what_to_do_and_imports_what_its_parent_can(started, tmp_path):
    (tmp_path / "beside.py").write_text("word = 'found'")
    process = started(
        """
        import json, os, sys
        from rollmesh.endpoint.child_process import begin
        config = begin()
        import beside
        told = [config["text"], sys.argv[1:], os.environ["WORD"], os.getcwd(), beside.word]
        print(json.dumps([*told, os.getpgid(0) == os.getpid(), sys.stdin.read()]))
        print(json.dumps(sys.path), flush=True)
        """,
        {"text": "é"},
        arguments=["7"],
        environment={"WORD": "given"},
        cwd="/",
    )
    told = json.loads(process.stdout.readline())
    assert told == ["é", ["7"], "given", "/", "found", True, ""]
    assert json.loads(process.stdout.readline()) == sys.path


def test_a_child_keeps_the_descriptors_that_it_is_given(started):
    ours, theirs = os.pipe()
    process = started(
        """
        import os, sys
        from rollmesh.endpoint.child_process import begin
        begin()
        os.write(int(sys.argv[1]), b"hello")
        """,
        arguments=[str(theirs)],
        pass_fds=[theirs],
    )
    os.close(theirs)
    with os.fdopen(ours, "rb") as pipe:
        assert pipe.read() == b"hello"
    assert outwait(process, LIMIT_S)


# --------------------------------------------------------------------------------- its end

PARENT_OF_ONE = """
    import subprocess, sys, time
    from rollmesh.endpoint.child_process import begin
    begin()
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    print(other.pid, flush=True)
    {then}
"""


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize(("then", "in_time"), [("time.sleep(60)", False), ("", True)])
def test_what_a_child_started_ends_with_it(started, then, in_time):
    process = started(PARENT_OF_ONE.format(then=then))
    grandchild = int(process.stdout.readline())
    assert is_running(grandchild)
    assert outwait(process, LIMIT_S if in_time else 0.0) is in_time
    until(lambda: not is_running(grandchild))
    assert process.stdin.closed


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_child_ends_when_its_parent_lets_go_of_it(started):
    process = started(PARENT_OF_ONE.format(then="time.sleep(60)"))
    grandchild = int(process.stdout.readline())
    let_go(process)
    assert process.wait(LIMIT_S) == -signal.SIGKILL
    until(lambda: not is_running(grandchild))


def test_a_child_whose_parent_is_gone_before_it_looks_ends_at_once(started):
    process = started(
        """
        import os, time
        from rollmesh.endpoint.child_process import die_with_parent
        die_with_parent(os.getppid() + 1, 0)
        time.sleep(60)
        """
    )
    assert process.wait(LIMIT_S) == -signal.SIGKILL


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import sys; sys.exit(3)", "exited with code 3"),
        ("", "exited with code 0"),
        ("import os; os.kill(os.getpid(), 9)", "died of SIGKILL"),
    ],
)
def test_how_a_process_ended_is_told_in_words(started, text, words):
    assert how_it_ended(started(text)) == words


def test_nothing_is_told_of_the_end_of_what_has_none(started, monkeypatch):
    monkeypatch.setattr("rollmesh.endpoint.child_process._EXIT_S", 0.0)
    process = started("import time; time.sleep(60)")
    assert how_it_ended(None) is None
    assert how_it_ended(process) is None


def test_killing_and_letting_go_of_what_is_gone_does_nothing(started):
    process = started("")
    process.wait(LIMIT_S)
    for _ in range(2):
        kill_group(process)
        let_go(process)
        assert outwait(process, 0.0)


def test_signals_have_names_but_for_those_without():
    assert signal_name(9) == "SIGKILL"
    assert signal_name(12345) == "signal 12345"


# ------------------------------------------------------------------------- the main script


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, MAIN_NAME, None)
    file = tmp_path / "script.py"
    file.write_text(
        textwrap.dedent(
            """
            loads = []
            loads.append(__name__)
            if __name__ == "__main__":
                raise RuntimeError("it ran")
            """
        )
    )
    return file


def test_a_main_script_is_loaded_once_and_does_not_run(script):
    load_main(str(script))
    first = sys.modules[MAIN_NAME]
    load_main(str(script))
    assert sys.modules[MAIN_NAME] is first
    assert first.loads == [MAIN_NAME]


def test_another_main_script_takes_its_place(script, tmp_path):
    load_main(str(script))
    other = tmp_path / "other.py"
    other.write_text("word = 'other'")
    load_main(str(other))
    assert sys.modules[MAIN_NAME].word == "other"


def test_what_is_no_script_cannot_be_loaded(script, tmp_path):
    with pytest.raises(ImportError, match="cannot load"):
        load_main(str(tmp_path / "script.txt"))
