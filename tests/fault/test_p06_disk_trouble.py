"""P6: disk trouble is reported, loses nothing that was acknowledged, and a resume goes on."""

from __future__ import annotations

import errno
import shutil
import subprocess
import sys

import pytest

from rollmesh.errors import JournalError
from rollmesh.runs.journal import Journal
from rollmesh.runs.reading import list_runs, read_run
from tests.fault.journal_process import IDENTITY, episode_at
from tests.fault.test_p04_kill import ROOT, SCRIPT, WAIT_S, acknowledged, start

COUNT = 20_000
NAMESPACE = """
set -e
mount -t tmpfs -o size=600k tmpfs "$1"
"$2" "$3" "$1" tmpfs 20000
echo resumed
rm -f "$1/ballast"
dd if=/dev/zero of="$1/ballast" bs=1k count=1 2>/dev/null || :
"$2" -m tests.fault.journal_reader "$1"
grep -o '"failed": .*(ENOSPC' "$1/run.lock"
mount -o remount,size=8m "$1"
"$2" "$3" "$1" plain 100
"""
READ_ONLY = """
set -e
mount --bind "$1" "$1"
mount -o remount,ro,bind "$1"
"$2" -m tests.fault.journal_reader "$1"
"$2" "$3" "$1" plain 10
"""


def run_child(folder, how):
    process = start(folder, how, COUNT)
    out, err = process.communicate(timeout=WAIT_S)
    return out.splitlines(), err


def in_namespace(script, folder):
    """Run a shell script as root of a mount namespace of its own."""
    words = ["unshare", "-rm", "sh", "-c", script, "sh", str(folder), sys.executable, str(SCRIPT)]
    if shutil.which("unshare") is None or not can_mount():
        pytest.skip("no user namespace in which to mount")
    environment = {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=60, env=environment, check=False
    )
    return done.stdout.splitlines(), done.stderr


def can_mount():
    words = ["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


def check_kept(folder, seen):
    """Every acknowledged episode is there, unchanged, and the run goes on."""
    kept = {e.index: e for e in read_run(folder).result.episodes}
    assert set(seen) <= set(kept)
    assert all(repr(e) == repr(episode_at(index)) for index, e in kept.items())
    with Journal.open(folder, identity=IDENTITY, facts={}) as journal:
        journal.record(episode_at(COUNT))
    assert len(read_run(folder).result.episodes) == len(kept) + 1


@pytest.mark.fault
@pytest.mark.parametrize(
    ("how", "number", "advice"),
    [
        ("small files", errno.EFBIG, "ulimit -f"),
        ("full", errno.ENOSPC, "Free some space"),
        ("broken", errno.EIO, "dmesg"),
    ],
)
def test_p6_trouble_while_writing_is_named_and_loses_nothing_acknowledged(
    tmp_path, how, number, advice
):
    lines, said = run_child(tmp_path, how)
    seen = acknowledged(lines)
    assert lines[-2:] == [f"failed {number} {len(seen)}", "closed"]
    assert 0 < len(seen) < COUNT
    assert f"{tmp_path}: cannot write {tmp_path / 'run.sqlite'}: " in said
    assert errno.errorcode[number] in said
    assert f"{len(seen):,} episodes are safely on disk. " in said
    assert advice in said
    assert "start the same command again" in said
    run = read_run(tmp_path)
    assert run.status == "stopped"
    assert run.result.stopped.startswith("the journal failed: ")
    check_kept(tmp_path, seen)


@pytest.mark.fault
def test_p6_a_full_file_system_is_named_and_loses_nothing_acknowledged(tmp_path):
    lines, said = in_namespace(NAMESPACE, tmp_path)
    first, _, rest = "\n".join(lines).partition("\nresumed\n")
    seen = acknowledged(first.splitlines())
    assert f"failed {errno.ENOSPC} {len(seen)}" in first, said
    assert "Free some space, then start the same command again" in said
    kept = int(rest.splitlines()[0].removeprefix("kept "))
    assert 0 < len(seen) <= kept
    assert '"failed": ' in rest.splitlines()[1]  # word of it was left on the full disk
    assert f"open {kept}" in rest, said
    assert len(acknowledged(rest.splitlines())) == 100
    assert rest.splitlines()[-1] == "closed"


@pytest.mark.fault
def test_p6_a_read_only_folder_can_be_read_and_not_driven(tmp_path):
    with Journal.open(tmp_path, identity=IDENTITY, facts={}) as journal:
        for index in range(30):
            journal.record(episode_at(index))
    lines, said = in_namespace(READ_ONLY, tmp_path)
    assert lines == ["kept 30", f"failed {errno.EROFS} 0"], said
    assert "Read-only file system" in said
    check_kept(tmp_path, range(30))


@pytest.mark.fault
def test_p6_a_read_only_folder_with_a_log_left_by_a_crash_can_be_read(tmp_path):
    process = start(tmp_path, "plain", COUNT)
    seen = acknowledged([process.stdout.readline(), process.stdout.readline()])
    process.kill()
    rest, _ = process.communicate(timeout=WAIT_S)
    seen += acknowledged(rest.splitlines())
    (tmp_path / "run.sqlite-shm").unlink()
    lines, said = in_namespace(READ_ONLY, tmp_path)
    assert int(lines[0].removeprefix("kept ")) >= len(seen) > 0, said
    assert lines[1] == f"failed {errno.EROFS} 0"
    check_kept(tmp_path, seen)


@pytest.mark.parametrize("what", ["folder", "store", "log"])
def test_p6_a_removed_folder_is_noticed_with_the_next_commit(tmp_path, what):
    folder = tmp_path / "run"
    told: list[JournalError] = []
    seen: list[int] = []
    journal = Journal.open(folder, identity=IDENTITY, facts={})
    journal.subscribe(lambda es: seen.extend(e.index for e in es), failed=told.append)
    journal.record(episode_at(0))
    assert journal.flush()
    gone = {"folder": folder, "store": folder / "run.sqlite", "log": folder / "run.sqlite-wal"}
    shutil.rmtree(folder) if what == "folder" else gone[what].unlink()
    journal.record(episode_at(1))
    with pytest.raises(JournalError, match="no longer there") as caught:
        journal.flush()
    assert told == [caught.value] == [journal.failure]
    assert caught.value.errno == errno.ENOENT
    assert caught.value.acknowledged == len(seen) == 1
    with pytest.raises(JournalError):
        journal.record(episode_at(2))
    journal.close()
    assert list_runs(tmp_path) == [] or what == "log"


def test_p6_a_file_where_the_folder_should_be_is_named(tmp_path):
    (tmp_path / "run").write_text("mine")
    with pytest.raises(JournalError) as caught:
        Journal.open(tmp_path / "run", identity=IDENTITY, facts={})
    assert caught.value.errno == errno.EEXIST
    assert (tmp_path / "run").read_text() == "mine"
