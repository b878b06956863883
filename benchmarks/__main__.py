"""The command: `python -m benchmarks [--short] [--json PATH] [--plots DIR] [row …]`.

Prints one table. A missed target is a word in it, not a failure; a row that could not be measured
is, and gives exit code 1.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import (
    across_processes,
    codec,
    driver_step,
    fleet,
    import_time,
    in_process,
    many_episodes,
    scaling,
    table,
)
from benchmarks.harness import Timing
from benchmarks.table import Line, Machine

FULL = Timing(repetitions=7, burst_s=1.0, warmup_s=0.5)
SHORT = Timing(repetitions=5, burst_s=0.3, warmup_s=0.1)
FULL_ACROSS = Timing(repetitions=7, burst_s=0.6, warmup_s=0.3)
SHORT_ACROSS = Timing(repetitions=5, burst_s=0.2, warmup_s=0.1)
FULL_BRIEF = Timing(repetitions=7, burst_s=0.4, warmup_s=0.2)
SHORT_BRIEF = Timing(repetitions=5, burst_s=0.1, warmup_s=0.05)


@dataclass(frozen=True, kw_only=True)
class Options:
    """What was asked for.

    Attributes:
        short: Two minutes in all, at some loss of steadiness.
        plots: Folder for pictures, or None.
    """

    short: bool
    plots: Path | None

    @property
    def long_bursts(self) -> Timing:
        """Return the timing for rows whose set-up must not count."""
        return SHORT if self.short else FULL

    @property
    def across_bursts(self) -> Timing:
        """Return the timing for rows whose set-up is connecting, a few milliseconds."""
        return SHORT_ACROSS if self.short else FULL_ACROSS

    @property
    def brief_bursts(self) -> Timing:
        """Return the timing for rows without set-up."""
        return SHORT_BRIEF if self.short else FULL_BRIEF


@dataclass(frozen=True, kw_only=True)
class Row:
    """One measurement that can be asked for by name.

    Attributes:
        summary: What it is, in words.
        measure: Gives the lines, and a text to print under the table.
        in_short: Whether a short run has it.
    """

    summary: str
    measure: Callable[[Options], tuple[list[Line], str]]
    in_short: bool = True


def _long(measure: Callable[[Timing], list[Line]]) -> Callable[[Options], tuple[list[Line], str]]:
    return lambda options: (measure(options.long_bursts), "")


def _across(measure: Callable[[Timing], list[Line]]) -> Callable[[Options], tuple[list[Line], str]]:
    return lambda options: (measure(options.across_bursts), "")


def _brief(measure: Callable[[Timing], list[Line]]) -> Callable[[Options], tuple[list[Line], str]]:
    return lambda options: (measure(options.brief_bursts), "")


def _plotted(
    measure: Callable[..., tuple[list[Line], str]],
) -> Callable[[Options], tuple[list[Line], str]]:
    return lambda options: measure(options.brief_bursts, folder=options.plots, short=options.short)


ROWS = {
    "w1": Row(summary="in process, W1, N=1", measure=_long(in_process.w1_row)),
    "cartpole": Row(summary="in process, CartPole-v1", measure=_brief(in_process.cartpole_row)),
    "w2": Row(summary="in process, frames", measure=_brief(in_process.w2_row), in_short=False),
    "w3": Row(summary="in process, a robot's dict", measure=_brief(in_process.w3_row)),
    "w4": Row(summary="in process, simulators", measure=_brief(in_process.w4_row), in_short=False),
    "vector": Row(summary="W1, N=8, 64", measure=_brief(in_process.vector_row), in_short=False),
    "env-w1": Row(summary="env in another process, W1", measure=_across(across_processes.w1_row)),
    "env-w3": Row(summary="env in another process, W3", measure=_across(across_processes.w3_row)),
    "both": Row(
        summary="env and model each in a process", measure=_across(across_processes.both_row)
    ),
    "processes": Row(
        summary="W1 and W3, N=8, 64, lanes in another process",
        measure=_across(across_processes.vector_row),
        in_short=False,
    ),
    "bare": Row(summary="the transports alone", measure=_brief(across_processes.bare_row)),
    "many": Row(
        summary="100,000 episodes in one run",
        measure=lambda options: (many_episodes.many_row(short=options.short), ""),
    ),
    "codec": Row(summary="encode and decode of a W3 row", measure=_brief(codec.codec_row)),
    "driver": Row(
        summary="a step of the driver, stub ports", measure=_brief(driver_step.driver_row)
    ),
    "import": Row(summary="import rollmesh", measure=_brief(import_time.import_row)),
    "lanes": Row(summary="steps/s against lanes", measure=_plotted(scaling.lanes_row)),
    "payload": Row(summary="steps/s against payload", measure=_plotted(scaling.payload_row)),
    "fleet": Row(
        summary="16 env processes, one model: W5",
        measure=lambda options: fleet.fleet_row(short=options.short),
    ),
    "fleet-mujoco": Row(
        summary="8 simulators, one model",
        measure=lambda options: (fleet.simulator_row(short=options.short), ""),
        in_short=False,
    ),
    "lanes-across": Row(
        summary="steps/s against lanes, across processes",
        measure=_plotted(scaling.lanes_across_row),
        in_short=False,
    ),
    "payload-across": Row(
        summary="steps/s against payload, across processes",
        measure=_plotted(scaling.payload_across_row),
        in_short=False,
    ),
}


def _parser() -> argparse.ArgumentParser:
    names = "\n".join(f"  {name:<15}{row.summary}" for name, row in ROWS.items())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure rollmesh against its peers, in turn, and print one table.",
        epilog=f"rows:\n{names}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--short", action="store_true", help="a short form, two minutes at most")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the lines there as well")
    parser.add_argument("--plots", type=Path, metavar="DIR", help="write pictures (matplotlib)")
    parser.add_argument("rows", nargs="*", choices=[*ROWS, []], metavar="row", help="default: all")
    return parser


def measure_all(names: Sequence[str], options: Options) -> tuple[list[Line], list[str], bool]:
    """Measure rows by name; return lines, texts and whether all could be measured."""
    lines: list[Line] = []
    texts: list[str] = []
    complete = True
    for name in names:
        print(f"{name}: {ROWS[name].summary} …", end=" ", file=sys.stderr, flush=True)
        started = time.monotonic()
        try:
            more, text = ROWS[name].measure(options)
        except Exception as error:  # noqa: BLE001  # one row that breaks must not lose the others
            traceback.print_exc()
            more, text = (
                [Line(row=name, subject=f"FAILED: {type(error).__name__}: {error}"[:120])],
                "",
            )
            complete = False
        print(f"{time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
        lines += more
        if text:
            texts.append(text)
    return lines, texts, complete


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    asked = _parser().parse_args(arguments)
    options = Options(short=asked.short, plots=asked.plots)
    names = asked.rows or [name for name, row in ROWS.items() if row.in_short or not options.short]
    before = Machine.look()
    started = time.monotonic()
    lines, texts, complete = measure_all(names, options)
    print(table.render(lines))
    for text in texts:
        print(f"\n{text}")
    print(f"\nbefore: {before.sentence()}")
    print(f"after {time.monotonic() - started:.0f} s: {Machine.look().sentence()}")
    print("Ratios are medians of rounds in which the subjects took turns; ranges in brackets.")
    if asked.json is not None:
        asked.json.write_text(json.dumps(table.as_json(lines, before), indent=2) + "\n")
    return 0 if complete else 1


if __name__ == "__main__":
    logging.getLogger("rollmesh").setLevel(logging.ERROR)  # advice for users, once a burst
    sys.exit(main())
