"""`rollmesh probe`: what is served at an address, and how fast the way there is (layer 9)."""

from __future__ import annotations

import json as json_module
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from rollmesh.cli import exit_codes
from rollmesh.cli.contract_tree import contract_lines, contract_values
from rollmesh.cli.eval_command import log_to
from rollmesh.cli.flags import ConnectFlags, Whole
from rollmesh.cli.output import own_output
from rollmesh.errors import InvalidSpec, RollmeshError
from rollmesh.transport.shared_memory import THRESHOLD_BYTES

if TYPE_CHECKING:
    from rollmesh.endpoint.clients.probing import ProbeReport, RoundTrips, Steps


def probe_command(
    address: str,
    /,
    *,
    service: Literal["env", "model"] | None = None,
    wait: float = 0.0,
    timeout: float = 10.0,
    measure: float = 1.0,
    steps: Whole = 0,
    json: Annotated[bool, Parameter(negative=())] = False,
    flags: Annotated[ConnectFlags | None, Parameter(name="*")] = None,
) -> int:
    """Say what is served at an address, and how fast the way there is.

    Says hello, sends messages as large as the endpoint's own actions and observations there and
    back, and leaves. No model is asked, and no env reset or stepped unless --steps says so.

    Exit codes: 0 a server answered (with a free place or without), 1 nobody answered or it refused
    us, 2 bad arguments, 130 Ctrl-C.

    Parameters
    ----------
    address
        host:port or unix:///path (gRPC), rollmesh+tcp://host:port or rollmesh+unix:///path.
    service
        What is expected there; found out if left out.
    wait
        Seconds to try again where nobody answers: the server may be about to start.
    timeout
        Seconds that one try may take.
    measure
        Seconds to measure.
    steps
        Reset an env and step it so often with random actions, and measure that too.
    json
        Print the report as JSON.
    """

    def run() -> ProbeReport:
        from rollmesh.endpoint.clients.probing import probe

        return probe(
            address,
            (flags or ConnectFlags()).options(),
            service=service,
            wait_s=wait,
            timeout_s=timeout,
            measure_s=measure,
            steps=steps,
        )

    return _tell(run, as_json=json)


def _tell(run: Callable[[], ProbeReport], *, as_json: bool) -> int:
    with own_output() as output, log_to(output.note):
        try:
            report = run()
        except InvalidSpec as error:
            output.note(f"error: {error}")
            return exit_codes.BAD_ARGUMENTS
        except RollmeshError as error:
            output.note(f"error: {error}")
            return exit_codes.FAILED
        except KeyboardInterrupt:
            return exit_codes.INTERRUPTED
        output.result(_as_json(report) if as_json else "\n".join(_lines(report)))
        return exit_codes.OK if report.health in ("serving", "full") else exit_codes.FAILED


def _as_json(report: ProbeReport) -> str:
    values: dict[str, Any] = {
        **{name: value for name, value in vars(report).items() if name != "contract"},
        "round_trips": [asdict(trips) for trips in report.round_trips],
        "steps": None if report.steps is None else asdict(report.steps),
        "contract": None if report.contract is None else contract_values(report.contract),
    }
    return json_module.dumps(values, indent=2)


def _lines(report: ProbeReport) -> list[str]:
    facts = [
        ("address", report.address),
        ("health", report.health + (f": {report.detail}" if report.detail else "")),
    ]
    if report.service is not None:
        facts += [
            ("service", report.service),
            ("served by", _who(report.peer)),
            ("path", f"{report.path}, at {report.taken}"),
            ("because", report.why),
            ("can", ", ".join(report.capabilities) or "nothing special"),
            ("editions", ", ".join(report.editions)),
            ("connected", f"in {report.connect_ms or 0.0:.1f} ms"),
        ]
    lines = [f"{name:<10} {_printable(text)}" for name, text in facts]
    if report.contract is not None:
        lines += ["", *contract_lines(report.contract)]
    if report.round_trips:
        lines += ["", *map(_trips_line, report.round_trips)]
        largest = report.round_trips[-1].payload_bytes
        if "through shared memory" in report.path and largest >= THRESHOLD_BYTES:
            lines.append("measured through the socket; in a run they go through shared memory")
    if report.steps is not None:
        lines.append(_steps_line(report.steps))
    return lines


def _steps_line(steps: Steps) -> str:
    return (
        f"{steps.count:,} random steps: {steps.steps_per_s:,.0f} a second; at the env "
        f"{steps.env_us:,.1f} µs, there and back p50 {steps.way_p50_us:,.1f} µs, "
        f"p99 {steps.way_p99_us:,.1f} µs, {steps.mb_per_s:,.1f} MB/s"
    )


def _trips_line(trips: RoundTrips) -> str:
    return (
        f"{trips.what} of {trips.payload_bytes:,} bytes there and back: "
        f"p50 {trips.p50_us:,.1f} µs, p99 {trips.p99_us:,.1f} µs, {trips.mb_per_s:,.1f} MB/s "
        f"({trips.count:,} times)"
    )


def _who(peer: dict[str, str]) -> str:
    name = " ".join(filter(None, (peer.get("component", ""), peer.get("package_version", ""))))
    language = " ".join(filter(None, (peer.get("language", ""), peer.get("language_version", ""))))
    where = peer.get("host", "")
    return ", ".join(filter(None, (name, language, where and f"on {where}"))) or "unknown"


def _printable(text: str) -> str:
    """Return a peer's words without what would disturb a terminal."""
    return "".join([letter if letter.isprintable() else f"\\x{ord(letter):02x}" for letter in text])
