"""Socket files: where they lie, and how one is taken over (layer 5).

Our own lie in a folder that only this user can enter: `rollmesh` in `XDG_RUNTIME_DIR`, else
`/tmp/rollmesh-<user id>`; never in `TMPDIR`, whose name may be too long for a socket. A path that
the user names is used where it is. Every socket file is for its user only (0600), before anybody
can connect to it.

A socket file that nobody listens at is a leftover of a server that was killed, and is replaced;
those in our own folder are swept away when the next server starts. What is no socket is never
removed. Where the system lists who listens, the living are left in peace; elsewhere one has to
connect to know.
Servers that start at once are kept apart by a lock on the folder.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import socket
import stat
from collections.abc import Generator
from pathlib import Path

from rollmesh.errors import InvalidSpec, ListenFailed
from rollmesh.transport.address import LONGEST_UNIX_PATH, check_unix_path

_OWN_NAME_BYTES = 40
"""Room for the names of our own socket files."""
_PROBE_S = 1.0
_PATH_FIELD = 7
_LISTENING = "00010000"
"""Fields of `/proc/net/unix`."""


def own_path(label: str = "server") -> str:
    """Return a fresh path in our own folder.

    Raises:
        ListenFailed: There is no folder that is ours alone.
    """
    folder = own_folder()
    _sweep(folder)
    return str(folder / f"{label[:12]}-{os.getpid()}-{secrets.token_hex(6)}.sock")


def own_folder() -> Path:
    """Return the folder of our own socket files, made if need be.

    Raises:
        ListenFailed: It belongs to somebody else, or others may enter it.
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if runtime:
        folder = Path(runtime) / "rollmesh"
        if len(os.fsencode(folder)) + _OWN_NAME_BYTES <= LONGEST_UNIX_PATH:
            with contextlib.suppress(OSError, ListenFailed):
                return _private(folder)
    folder = Path("/tmp") / f"rollmesh-{os.getuid()}"  # noqa: S108 - checked to be ours alone
    try:
        return _private(folder)
    except OSError as error:
        raise ListenFailed(str(folder), f"no folder for sockets: {error}") from error


def _private(folder: Path) -> Path:
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise ListenFailed(
            str(folder),
            "the folder for sockets must be a folder of this user that nobody else may enter; "
            "remove it, or name a path",
        )
    return folder


def bind_path(sock: socket.socket, path: str, address: str, backlog: int) -> tuple[int, int]:
    """Bind a unix socket to a path and listen; return device and number of the socket file.

    Raises:
        InvalidSpec: The path is too long.
        ListenFailed: Somebody listens there, the path is no socket, or the folder cannot be used.
    """
    check_unix_path(path, address)
    try:
        with _locked(Path(path).parent):
            try:
                sock.bind(path)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                _remove_leftover(path, address)
                sock.bind(path)
            Path(path).chmod(0o600)
            sock.listen(backlog)
            found = os.lstat(path)
    except FileNotFoundError as error:
        folder = Path(path).parent
        raise ListenFailed(address, f"there is no folder {folder}; make it first") from error
    except OSError as error:
        if isinstance(error, (ListenFailed, InvalidSpec)):
            raise
        raise ListenFailed(address, str(error)) from error
    return found.st_dev, found.st_ino


def unlink_own(path: str, identity: tuple[int, int]) -> None:
    """Remove a socket file if it is still the one that was bound."""
    with contextlib.suppress(OSError), _locked(Path(path).parent):
        found = os.lstat(path)
        if (found.st_dev, found.st_ino) == identity:
            Path(path).unlink()


def _remove_leftover(path: str, address: str) -> None:
    if not stat.S_ISSOCK(os.lstat(path).st_mode):
        raise ListenFailed(address, f"{path} exists and is no socket; it is left alone")
    if _is_alive(path):
        raise ListenFailed(
            address, "address in use: another server listens there; stop it, or choose another path"
        )
    Path(path).unlink()


def _is_alive(path: str) -> bool:
    """Tell whether somebody listens at a socket file."""
    return path in _listed() or _answers(path)


def _listed() -> frozenset[str]:
    """Return the paths that this system says are listened at; those of containers are not there."""
    try:
        lines = Path("/proc/net/unix").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return frozenset()
    rows = [line.split(maxsplit=_PATH_FIELD) for line in lines]
    return frozenset(
        [row[_PATH_FIELD] for row in rows if len(row) > _PATH_FIELD and row[3] == _LISTENING]
    )


def _answers(path: str) -> bool:
    """Tell so by connecting."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PROBE_S)
        try:
            probe.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:  # busy, not permitted, of another kind: not ours to take away
            return True
        return True


def _sweep(folder: Path) -> None:
    """Remove socket files of our own that nobody listens at."""
    with contextlib.suppress(OSError), _locked(folder):
        listed = _listed()
        for path in folder.glob("*.sock"):
            name = str(path)
            with contextlib.suppress(OSError):
                is_socket = stat.S_ISSOCK(path.lstat().st_mode)
                if is_socket and name not in listed and not _answers(name):
                    path.unlink()


@contextlib.contextmanager
def _locked(folder: Path) -> Generator[None, None, None]:
    """Hold the lock of a folder; without one where the folder cannot be opened."""
    import fcntl

    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    except PermissionError:
        yield
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
