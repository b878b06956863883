"""What lies under a run folder, and the words for what is wrong with it."""

from __future__ import annotations

import copy
import errno
import os
import sqlite3

import pytest

from rollmesh.errors import JournalError
from rollmesh.runs import disk
from rollmesh.runs.disk import MovedAway, check_place, is_network, name_trouble, place_of
from rollmesh.runs.journal import Journal
from tests.unit.runs_toys import identity

FULL = sqlite3.OperationalError("database or disk is full")
BROKEN = sqlite3.OperationalError("disk I/O error")
READ_ONLY = sqlite3.OperationalError("attempt to write a readonly database")
LOCKED = sqlite3.OperationalError("database is locked")
ODD = sqlite3.OperationalError("something else")


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "fuse.sshfs", "lustre", "9p"])
def test_network_file_systems_are_known_by_the_deepest_mount(tmp_path, kind):
    mounts = tmp_path / "mounts"
    inner = tmp_path / "with space" / "inner"
    inner.mkdir(parents=True)
    escaped = str(tmp_path / "with space").replace(" ", "\\040")
    mounts.write_text(
        f"/dev/vda / ext4 rw 0 0\nserver:/x {escaped} {kind} rw 0 0\n"
        f"tmpfs {escaped}/inner tmpfs rw 0 0\nshort\n"
    )
    assert is_network(tmp_path / "with space", mounts)
    assert is_network(tmp_path / "with space" / "not yet there", mounts)
    assert not is_network(inner, mounts)
    assert not is_network(tmp_path, mounts)


def test_a_later_mount_hides_an_earlier_one(tmp_path):
    mounts = tmp_path / "mounts"
    mounts.write_text(f"s:/x {tmp_path} nfs rw 0 0\n/dev/sdb {tmp_path} xfs rw 0 0\n")
    assert not is_network(tmp_path, mounts)


def test_where_the_kernel_says_nothing_no_network_is_assumed(tmp_path):
    assert not is_network(tmp_path, tmp_path / "no mounts")


@pytest.mark.parametrize(
    ("error", "number", "advice"),
    [
        (FULL, errno.ENOSPC, "Free some space"),
        (BROKEN, errno.EIO, "dmesg"),
        (READ_ONLY, errno.EROFS, "Make the file system writable"),
        (LOCKED, errno.EBUSY, "Close the program"),
        (ODD, None, "See what is wrong with the file system"),
        (OSError(errno.EDQUOT, "Disk quota exceeded", "f"), errno.EDQUOT, "quota"),
        (PermissionError(errno.EACCES, "Permission denied"), errno.EACCES, "folder writable"),
        (FileExistsError(errno.EEXIST, "File exists", "f"), errno.EEXIST, "not a file"),
        (NotADirectoryError(errno.ENOTDIR, "Not a directory"), errno.ENOTDIR, "folders only"),
    ],
)
def test_trouble_has_a_number_a_file_and_advice(tmp_path, error, number, advice):
    failure = name_trouble(tmp_path, error, 1234)
    assert failure.errno == number
    assert failure.acknowledged == 1234
    assert failure.folder == str(tmp_path)
    text = str(failure)
    assert failure.path in text
    assert "1,234 episodes are safely on disk. " in text
    assert advice in text
    assert text.endswith("start the same command again: it goes on from there")
    assert list(tmp_path.iterdir()) == []


def test_one_episode_is_one_and_nobody_counted_says_nothing(tmp_path):
    assert "1 episode is safely on disk" in str(name_trouble(tmp_path, BROKEN, 1))
    assert "safely on disk" not in str(name_trouble(tmp_path, BROKEN))


def test_a_folder_that_is_gone_is_found_out(tmp_path):
    assert name_trouble(tmp_path / "gone", BROKEN, 5).errno == errno.ENOENT


def test_what_the_folder_refuses_is_found_out(tmp_path, monkeypatch):
    real = os.open

    def refuse(path, flags, *rest):
        if "probe" in str(path):
            raise OSError(errno.EROFS, "Read-only file system")
        return real(path, flags, *rest)

    monkeypatch.setattr(disk.os, "open", refuse)
    assert name_trouble(tmp_path, BROKEN, 5).errno == errno.EROFS


def test_a_disk_too_full_for_a_small_file_is_found_out(tmp_path, monkeypatch):
    def refuse(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(disk.os, "fsync", refuse)
    assert name_trouble(tmp_path, BROKEN, 5).errno == errno.ENOSPC
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_moved_is_noticed(tmp_path):
    path = tmp_path / "file"
    path.write_text("x")
    place = place_of(path)
    check_place(path, place)
    path.rename(tmp_path / "moved")
    with pytest.raises(MovedAway, match="no longer there"):
        check_place(path, place)
    path.write_text("x")
    with pytest.raises(MovedAway, match="another file"):
        check_place(path, place)


def test_of_a_moved_store_it_is_said_where_its_episodes_are(tmp_path):
    error = MovedAway(errno.ENOENT, "it is no longer there", "f")
    assert "3 episodes were in it, wherever it is now" in str(name_trouble(tmp_path, error, 3))
    assert "1 episode was in it" in str(name_trouble(tmp_path, error, 1))


def test_a_copy_of_trouble_says_the_same(tmp_path):
    failure = name_trouble(tmp_path, FULL, 7)
    other = copy.copy(failure)
    assert str(other) == str(failure)
    assert (other.errno, other.acknowledged, other.path) == (errno.ENOSPC, 7, failure.path)


def test_a_folder_that_cannot_be_made_is_not_said_to_have_been_moved(tmp_path):
    for folder, path in (("/proc/nowhere", "/proc/nowhere"), (tmp_path / "file" / "a", None)):
        (tmp_path / "file").touch()
        with pytest.raises(JournalError, match="cannot make") as caught:
            Journal.open(folder, identity=identity(), facts={})
        assert "it goes on from there" not in str(caught.value)
        assert "Leave" not in str(caught.value)
        assert caught.value.path == (path or str(folder))
        assert caught.value.acknowledged == 0
    assert "leads through folders only" in str(caught.value)
