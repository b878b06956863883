"""A few hundred episodes over worker processes, killed and resumed, then compared with another run.

What a night's evaluation is, in half a minute: the run is started, its driver is killed (SIGKILL)
once a third of the episodes is on disk, the same command is given again and runs what is left; then
another policy plays the same plan, and `rollmesh compare` says which is better. `make demo` runs
this after demo.py; `--quick` plays fewer episodes.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
# The policy lies beside this file; simulators may leave their logs where they run, so not here.
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, sys.path)])}
ROLLMESH = [sys.executable, "-c", "import sys; from rollmesh.cli import main; sys.exit(main())"]


def shown(arguments: list[str]) -> list[str]:
    """Print a command as it would be typed, and return what runs it."""
    print(f"\n$ rollmesh {shlex.join(arguments)}", flush=True)
    return [*ROLLMESH, *arguments]


def run(arguments: list[str], folder: str) -> None:
    """Run a command in front of the reader."""
    subprocess.run(  # noqa: S603 - our own program
        shown(arguments), cwd=folder, env=ENVIRONMENT, check=True, stderr=subprocess.DEVNULL
    )


def run_and_kill(arguments: list[str], folder: str, after: int) -> None:
    """Start a run and kill its driver once so many episodes are acknowledged."""
    command = shown([*arguments, "--json-lines"])
    with subprocess.Popen(  # noqa: S603 - our own program
        command,
        cwd=folder,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as driver:
        stored = 0
        for line in driver.stdout or ():
            stored += json.loads(line)["event"] == "episode"
            if stored >= after:
                driver.kill()
                break
    print(f"killed (SIGKILL, exit code {driver.returncode}) with {stored} episodes on disk")


def main() -> None:
    quick = "--quick" in sys.argv[1:]
    episodes = 24 if quick else 300
    with tempfile.TemporaryDirectory(prefix="rollmesh-demo-") as runs:
        old, new = f"{runs}/last-release", f"{runs}/tonight"
        plan = ["eval", "HalfCheetah-v5", "--model", "half_cheetah:HalfCheetahPolicy"]
        plan += ["--episodes", str(episodes), "--seed", "2024", "--max-episode-steps", "60"]
        plan += ["--workers", "2" if quick else "4"]
        first = [*plan, "--run-dir", old]
        run_and_kill(first, runs, episodes // 3)
        run(["runs", runs], runs)
        run(first, runs)
        run([*plan, "--model-kwargs", '{"gain": 0.6}', "--run-dir", new], runs)
        run(["compare", old, new], runs)
        page = Path(tempfile.gettempdir()) / "rollmesh-demo-report.html"
        run(["report", old, new, "-o", str(page)], runs)


if __name__ == "__main__":
    main()
