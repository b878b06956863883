"""Import row: what importing rollmesh costs in a fresh interpreter, and what it must not load.

Public names are loaded on first use, so that `import rollmesh` alone says little: the row also
tells what all of them cost, Gymnasium included, whose classes two of them are. The interpreter's
own account (`-X importtime`) is read, in turn with that of `import numpy`, which rollmesh needs
anyway.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks import table
from benchmarks.harness import Spread, Timing
from benchmarks.table import Line

LIMIT_S = 0.150
HEAVY = ("grpc", "scipy", "sqlite3")
"""Packages that must not be loaded by the import (the target's words)."""

_ROW = "import rollmesh"
_DEAREST = 3
_REPORT = re.compile(r"import time:\s*(\d+) \|\s*(\d+) \|\s*(\S+)")
_REPORT_MODULES = "import json, sys; print(json.dumps(sorted(sys.modules)))"
_ALONE = "rollmesh"
_PROBES = {
    "numpy": "import numpy",
    _ALONE: "import rollmesh",
    "every public name": "from rollmesh import *",
}


@dataclass(frozen=True, kw_only=True)
class Import:
    """One import in a fresh interpreter.

    Attributes:
        total_s: Time of all modules, those of a bare interpreter left out.
        own_s: Time of each module by itself.
        modules: All that was loaded.
    """

    total_s: float
    own_s: dict[str, float]
    modules: frozenset[str]


def parse(report: str, loaded: list[str], ignored: frozenset[str] = frozenset()) -> Import:
    """Return what an `-X importtime` report says.

    Args:
        report: The report.
        loaded: Names of all modules that were loaded.
        ignored: Names that an interpreter loads which imports nothing.

    Raises:
        ValueError: The report mentions no module beside the ignored ones.
    """
    own_s = {
        name: int(own_us) * 1e-6
        for own_us, _, name in _REPORT.findall(report)
        if name not in ignored
    }
    if not own_s:
        raise ValueError(f"the import report mentions no module: {report[-300:]!r}")
    return Import(total_s=sum(own_s.values()), own_s=own_s, modules=frozenset(loaded))


def _run(code: str, bytecode: str, ignored: frozenset[str] = frozenset()) -> Import:
    """Run code in a fresh interpreter that keeps compiled modules in the folder `bytecode`."""
    import rollmesh

    root = str(Path(rollmesh.__file__).resolve().parent.parent)
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    variables = {**os.environ, "PYTHONPATH": path, "PYTHONPYCACHEPREFIX": bytecode}
    variables.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", f"{code}\n{_REPORT_MODULES}"],
        capture_output=True,
        check=True,
        env=variables,
        text=True,
        timeout=60,
    )
    return parse(done.stderr, json.loads(done.stdout), ignored)


def _dearest(seen: Import) -> str:
    """Return the packages that take most of the time by themselves, submodules counted in."""
    packages: dict[str, float] = {}
    for name, own_s in seen.own_s.items():
        package = name.partition(".")[0]
        packages[package] = packages.get(package, 0.0) + own_s
    first = sorted(packages.items(), key=lambda item: -item[1])[:_DEAREST]
    return ", ".join(f"{name} {own_s * 1e3:.0f} ms" for name, own_s in first)


def import_row(timing: Timing) -> list[Line]:
    """Return median import times, their ratio to numpy's, and what was loaded that must not be."""
    with tempfile.TemporaryDirectory(prefix="rollmesh-bench-") as bytecode:
        bare = frozenset(_run("pass", bytecode).own_s)
        for code in _PROBES.values():  # warm-up: bytecode compiled, files in memory
            _run(code, bytecode, bare)
        rounds = [
            {name: _run(code, bytecode, bare) for name, code in _PROBES.items()}
            for _ in range(timing.repetitions)
        ]
    lines = [_line(name, rounds) for name in _PROBES]
    heavy = sorted(set(HEAVY) & rounds[-1]["every public name"].modules)
    lines.append(
        Line(
            row=_ROW,
            subject="loads of " + ", ".join(HEAVY),
            figure=", ".join(heavy) or "none",
            target="none",
            verdict=table.at_most(len(heavy), 0),
            numbers={"loaded": heavy},
        )
    )
    return lines


def _line(name: str, rounds: list[dict[str, Import]]) -> Line:
    spread = Spread.of([each[name].total_s for each in rounds])
    ratio = Spread.of([each[name].total_s / each["numpy"].total_s for each in rounds])
    ours = name != "numpy"
    limit_s = LIMIT_S if name == _ALONE else None
    return Line(
        row=_ROW,
        subject=f"{name} (most: {_dearest(rounds[-1][name])})",
        figure=table.time_text(spread),
        ratio=table.ratio_text(ratio, "numpy") if ours else "",
        target="" if limit_s is None else f"<= {limit_s * 1e3:g} ms",
        verdict="" if limit_s is None else table.at_most(spread.median, limit_s),
        numbers={"unit": "s", "median": spread.median, "most": limit_s},
    )
