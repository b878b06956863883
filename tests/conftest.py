"""What all tests share: deterministic property tests, and where the shared material lies.

Which tests run is set by markers: see `addopts` in pyproject.toml and the targets of the Makefile.
Where tests run in several processes at once (pytest-xdist), one that is marked `alone` waits until
no other runs, and none starts until it has ended.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parent.parent
FOLDER = pytest.StashKey[tempfile.TemporaryDirectory[str]]()
LOCKS = pytest.StashKey[tuple[int, int]]()

# The same examples in every run: a failure is a change, never luck.
settings.register_profile(
    "fixed",
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
# `--hypothesis-profile=search` looks for new failures.
settings.register_profile("search", deadline=None, max_examples=2000)
settings.load_profile("fixed")


# A job started in the background of a script ignores Ctrl-C, and so would every child of it.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Have later collections pass over what is there for good: modules and thousands of tests."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node) -> None:
    """Tell a process that runs tests where the locks are that it shares with the others."""
    if FOLDER not in node.config.stash:
        folder = tempfile.TemporaryDirectory(prefix="rollmesh-locks-")
        node.config.stash[FOLDER] = folder
        node.config.add_cleanup(folder.cleanup)
    node.workerinput["locks"] = node.config.stash[FOLDER].name


def pytest_configure(config: pytest.Config) -> None:
    """Open the locks once: tests look for descriptors that were not there before them."""
    folder = getattr(config, "workerinput", {}).get("locks")
    if folder is not None:
        door, room = [
            os.open(Path(folder, name), os.O_RDWR | os.O_CREAT) for name in ("door", "room")
        ]
        config.stash[LOCKS] = door, room
        config.add_cleanup(lambda: os.close(door))
        config.add_cleanup(lambda: os.close(room))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Run a test that is marked `alone` while no other one runs; time-outs begin after waiting."""
    if LOCKS not in item.config.stash:
        return (yield)
    door, room = item.config.stash[LOCKS]
    alone = item.get_closest_marker("alone") is not None
    with contextlib.ExitStack() as stack:
        # Who waits for an empty room keeps the door: it would never be empty otherwise.
        with locked(door, fcntl.LOCK_EX):
            stack.enter_context(locked(room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH))
        return (yield)


@contextlib.contextmanager
def locked(file: int, how: int) -> Iterator[None]:
    """Hold the lock of an open file, with others or alone."""
    fcntl.flock(file, how)
    try:
        yield
    finally:  # a forked process that is still there has the same open file
        fcntl.flock(file, fcntl.LOCK_UN)


@pytest.fixture(scope="session", autouse=True)
def _runs_are_kept_elsewhere(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Have commands that name no run folder keep their runs out of the working directory."""
    os.environ["ROLLMESH_RUNS"] = str(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="session")
def project_root() -> Path:
    """The folder that holds pyproject.toml."""
    return ROOT


@pytest.fixture(scope="session")
def shared_folder() -> Path:
    """The folder of shared material beside the project; the test is skipped where there is none."""
    folder = ROOT.parent / "shared"
    if not folder.is_dir():
        pytest.skip(f"no shared material at {folder}")
    return folder
