"""What lies under a run folder: its file system, and what is wrong with it (layer 7).

SQLite says "disk I/O error" and keeps the system's error number to itself; a user wants to know
whether the disk is full, read-only or gone. So the cause is looked for afterwards, in the folder.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import resource
from pathlib import Path
from typing import NamedTuple

from rollmesh.errors import JournalError
from rollmesh.runs.schema import SIDECARS, STORE_FILE

_MOUNTS = Path("/proc/self/mounts")
_NETWORK_TYPES = frozenset({
    "9p", "afs", "beegfs", "ceph", "cifs", "coda", "fuse.glusterfs", "fuse.sshfs", "gfs", "gfs2",
    "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "panfs", "smb",
    "smb2", "smb3", "smbfs", "virtiofs", "wekafs",
})  # fmt: skip
_PROBE_BYTES = 1 << 16
_ADVICE = {
    errno.ENOSPC: "Free some space",
    errno.EDQUOT: "Free some space of your quota",
    errno.EFBIG: "Raise the limit of file sizes (ulimit -f)",
    errno.EROFS: "Make the file system writable",
    errno.EACCES: "Make the folder writable",
    errno.EPERM: "Make the folder writable",
    errno.EIO: "See what is wrong with the disk (dmesg), copy the folder to another one",
    errno.EBUSY: "Close the program that has the file locked",
    errno.EEXIST: "Name a folder, not a file",
    errno.ENOTDIR: "Name a path that leads through folders only",
    errno.ENOENT: "Leave a run's folder where it is while it runs",
}
_OTHERWISE = "See what is wrong with the file system"
_SAID = (
    ("database or disk is full", errno.ENOSPC),
    ("readonly", errno.EROFS),
    ("locked", errno.EBUSY),
    ("disk I/O error", errno.EIO),
)


class MovedAway(OSError):  # noqa: N818 - it is named for what happened
    """The files of a store are no longer where they were opened."""


class Place(NamedTuple):
    """Which file a path led to."""

    device: int
    inode: int


def place_of(path: Path) -> Place:
    """Return which file a path leads to.

    Raises:
        MovedAway: None.
    """
    try:
        status = path.stat()
    except OSError as error:
        raise MovedAway(errno.ENOENT, "it is no longer there", str(path)) from error
    return Place(status.st_dev, status.st_ino)


def check_place(path: Path, expected: Place) -> None:
    """Check that a path leads to the file it led to: writing to a removed one succeeds.

    Raises:
        MovedAway: It does not.
    """
    if place_of(path) != expected:
        raise MovedAway(errno.ENOENT, "another file is there now", str(path))


def is_network(folder: Path, mounts: Path = _MOUNTS) -> bool:
    """Return whether a folder lies on a file system of the network, as far as the kernel says.

    A write-ahead log needs memory that all its users share, so it does not work there.
    """
    try:
        lines = mounts.read_text(errors="surrogateescape").splitlines()
    except OSError:  # not Linux
        return False
    real = os.path.realpath(folder)
    kinds: dict[str, str] = {}
    for line in lines:
        fields = line.split()
        if len(fields) > 2:  # noqa: PLR2004 - device, mount point, type
            kinds[_unescaped(fields[1])] = fields[2]  # a later mount hides an earlier one
    inside = [point for point in kinds if os.path.commonpath((point, real)) == point]
    return bool(inside) and kinds[max(inside, key=len)] in _NETWORK_TYPES


def _unescaped(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)


GOES_ON = ": it goes on from there"
"""How the text of `name_trouble` ends; not so of a run that plays on without its folder."""


def name_trouble(folder: Path, error: Exception, acknowledged: int | None = None) -> JournalError:
    """Return the error that says what is wrong with a run's folder, and what to do.

    Args:
        folder: The run's folder.
        error: What SQLite or the system raised.
        acknowledged: How many episodes are safely on disk, or None where nobody counted.
    """
    number = _number_of(folder, error)
    path = getattr(error, "filename", None) or str(folder / STORE_FILE)
    said = getattr(error, "strerror", None) or f"SQLite says {error}"
    if number is None:
        what = said
    elif os.strerror(number) == said:
        what = f"{said} ({errno.errorcode.get(number, number)})"
    else:
        what = f"{os.strerror(number)} ({errno.errorcode.get(number, number)}; {said})"
    kept = "" if acknowledged is None else f"{_kept(error, acknowledged)}. "
    advice = _ADVICE.get(number or 0, _OTHERWISE)
    return JournalError(
        str(folder),
        f"cannot write {path}: {what}. {kept}{advice}, then start the same command again{GOES_ON}",
        path=path,
        errno=number,
        acknowledged=acknowledged or 0,
    )


def name_unmade(folder: Path, error: OSError) -> JournalError:
    """Return the error that says why a run's folder cannot be made, and what to do."""
    number = error.errno or 0
    advice = "Name a folder that can be made"
    if number not in (errno.ENOENT, errno.EACCES, errno.EPERM):
        advice = _ADVICE.get(number, advice)
    path = str(error.filename or folder)
    said = f"{error.strerror} ({errno.errorcode.get(number, number)})"
    return JournalError(
        str(folder),
        f"cannot make {path}: {said}. {advice}, then start the same command again",
        path=path,
        errno=number,
        acknowledged=0,
    )


def _kept(error: Exception, acknowledged: int) -> str:
    is_one = acknowledged == 1
    count = "1 episode" if is_one else f"{acknowledged:,} episodes"
    if isinstance(error, MovedAway):
        return f"{count} {'was' if is_one else 'were'} in it, wherever it is now"
    return f"{count} {'is' if is_one else 'are'} safely on disk"


def _number_of(folder: Path, error: Exception) -> int | None:
    """Return the system's error number, asked of the folder where SQLite does not tell."""
    if isinstance(error, OSError):
        return error.errno
    if not folder.is_dir():
        return errno.ENOENT
    if _is_at_size_limit(folder):
        return errno.EFBIG
    if "locked" in str(error):
        return errno.EBUSY
    return _refusal(folder) or next((n for words, n in _SAID if words in str(error)), None)


def _is_at_size_limit(folder: Path) -> bool:
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if limit == resource.RLIM_INFINITY:
        return False
    for tail in ("", *SIDECARS):
        with contextlib.suppress(OSError):
            if (folder / f"{STORE_FILE}{tail}").stat().st_size + _PROBE_BYTES > limit:
                return True
    return False


def _refusal(folder: Path) -> int | None:
    """Return the error number of writing a small file beside the store, or None if that works."""
    path = folder / f".probe-{os.getpid()}"
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        return error.errno
    try:
        with os.fdopen(descriptor, "wb", buffering=0) as stream:
            written = stream.write(bytes(_PROBE_BYTES))
            os.fsync(descriptor)
    except OSError as error:
        return error.errno
    else:
        return None if written == _PROBE_BYTES else errno.ENOSPC
    finally:
        with contextlib.suppress(OSError):
            path.unlink()
