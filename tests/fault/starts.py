"""Starts of `rollmesh eval` in a process of their own, watched by their JSON lines (P7)."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 60.0
"""How long a test waits for what always comes."""
COMMAND = "import sys; from rollmesh.cli import main; sys.exit(main())"
_POLL_S = 0.002


@dataclass
class Place:
    """Where a command is started again and again.

    Attributes:
        folder: Holds run folder and log.
        arguments: What follows `rollmesh eval`.
        starts: How often it was started.
    """

    folder: Path
    arguments: list[str]
    starts: int = 0
    mark: str = field(default_factory=lambda: secrets.token_hex(8))

    @property
    def run_dir(self):
        return self.folder / "run"

    @property
    def log(self):
        return self.folder / "log"

    def start(self):
        """Start the command."""
        self.starts += 1
        return Start(self, self.starts)

    def lines(self, what, start=None):
        """Return the seeds of what envs told of one kind, in order; of one start or of all."""
        if not self.log.exists():
            return []
        rows = [line.split() for line in self.log.read_text().splitlines()]
        return [row[3] for row in rows if row[2] == what and start in (None, int(row[0]))]

    def processes(self):
        """Return the processes that some start has left, by what they run."""
        found = []
        for pid in [int(one.name) for one in Path("/proc").iterdir() if one.name.isdigit()]:
            try:
                environment = Path(f"/proc/{pid}/environ").read_bytes()
                command = Path(f"/proc/{pid}/cmdline").read_bytes()
                state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            except OSError:  # it has ended meanwhile
                continue
            if self.mark.encode() in environment and state != "Z":
                found.append(f"{pid} {command.replace(bytes(1), b' ').decode()[:100]}")
        return found

    def assert_nothing_is_left(self):
        wait_until(lambda: not self.processes(), "its processes are gone", self.processes)


class Start:
    """One start of a command; leaving it kills what is left of it."""

    def __init__(self, place, number):
        self.place = place
        self.number = number
        self.events = []
        self._errors = place.folder / f"errors-{number}"
        environment = {
            **os.environ,
            "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
            "RUN_START": str(number),
            "RUN_MARK": place.mark,
        }
        with self._errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-c", COMMAND, "eval", *place.arguments, "--json-lines"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=place.folder,
                env=environment,
            )
        assert self.process.stdout is not None
        self._lines = self.process.stdout
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.wait()

    @property
    def acknowledged(self):
        """The plan indices of episodes that it said are kept."""
        return [one["index"] for one in list(self.events) if one["event"] == "episode"]

    @property
    def result(self):
        """What it printed last."""
        last = self.events[-1]
        assert last["event"] == "result", last
        return last["result"]

    @property
    def errors(self):
        """What it wrote to its standard error."""
        return self._errors.read_text()

    def states(self, state):
        """Return the events that say that a worker is in a state."""
        return [
            one for one in list(self.events) if one["event"] == "worker" and one["state"] == state
        ]

    def until(self, condition, what):
        """Wait until something is so, while it runs."""

        def holds():
            if condition():
                return True
            assert self.process.poll() is None, f"it ended before: {self.errors}"
            return False

        wait_until(holds, what, lambda: (self.events[-3:], self.errors))

    def signal(self, number):
        self.process.send_signal(number)

    def kill(self):
        """Kill the driver, and nothing else."""
        self.signal(signal.SIGKILL)
        assert self.wait() == -signal.SIGKILL

    def wait(self):
        """Wait for its end and return the exit code."""
        code = self.process.wait(LIMIT_S)
        self._reader.join(LIMIT_S)
        self._lines.close()
        return code

    def _read(self):
        for line in self._lines:
            if line.endswith(b"\n"):  # a killed one may leave half a line
                self.events.append(json.loads(line))


def wait_until(condition, what, tell=lambda: ""):
    """Wait until something is so.

    Raises:
        AssertionError: It has not become so in time.
    """
    ends = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < ends, f"in vain: {what}; {tell()}"
        time.sleep(_POLL_S)
