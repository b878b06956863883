"""What all tests share: deterministic property tests, and where the shared material lies.

Which tests run is set by markers: see `addopts` in pyproject.toml and the targets of the Makefile.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parent.parent

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
