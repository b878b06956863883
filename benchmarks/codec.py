"""Codec rows: what one W3 row costs to encode and decode, payload copies not counted.

Encoding copies on purpose (a result never aliases the env's buffers), and copying two images
costs more than all else. So a bare copy of the same bytes takes its turn, and is subtracted round
by round; the same tree with tiny images is the cross-check.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks import table, workloads
from benchmarks.harness import Subject, Timing, compare
from benchmarks.table import Line

ENCODE_LIMIT_S = 15e-6
DECODE_LIMIT_S = 8e-6
_ROW = "codec W3 row"
_CALLS = 200
_TINY_SIDE = 2


def _calls(name: str, call: Callable[[], Any]) -> Subject:
    """Return a subject whose bout is `_CALLS` calls."""

    def run(bouts: int) -> int:
        for _ in range(bouts * _CALLS):
            call()
        return bouts * _CALLS

    return Subject(name=name, run=run)


def _codec(side: int) -> tuple[Any, dict[str, Any]]:
    from rollmesh.spaces.gymnasium import from_gymnasium

    return from_gymnasium(workloads.robot_space(side)).codec, workloads.robot_row(side)


def codec_row(timing: Timing) -> list[Line]:
    """Return encode (with the default checks) and decode of one row, and the bare copy."""
    from rollmesh.spaces.conformance import Checker

    def checker() -> Checker:
        return Checker(root="observation", policy="warn", report=_refuse)

    codec, value = _codec(256)
    tiny_codec, tiny = _codec(_TINY_SIDE)
    leaves, tiny_leaves = codec.encode(value, checker()), tiny_codec.encode(tiny, checker())
    arrays = [np.asarray(each) for each in value.values() if not isinstance(each, str)]
    checks, tiny_checks = checker(), checker()
    comparison = compare(
        [
            _calls("bare copy", lambda: [each.copy() for each in arrays]),
            _calls("encode", lambda: codec.encode(value, checks)),
            _calls("encode, no checks", lambda: codec.encode(value)),
            _calls("encode, tiny images", lambda: tiny_codec.encode(tiny, tiny_checks)),
            _calls("decode", lambda: codec.decode(leaves)),
            _calls("decode, tiny images", lambda: tiny_codec.decode(tiny_leaves)),
            _calls("decode into copies", lambda: codec.decode(leaves, copy=True)),
        ],
        timing,
    )
    net = {
        "encode": comparison.extra_cost_s("encode", "bare copy"),
        "encode, no checks": comparison.extra_cost_s("encode, no checks", "bare copy"),
        "encode, tiny images": comparison.cost_s("encode, tiny images"),
        "decode": comparison.cost_s("decode"),
        "decode, tiny images": comparison.cost_s("decode, tiny images"),
        "decode into copies": comparison.extra_cost_s("decode into copies", "bare copy"),
    }
    limits = {"encode": ENCODE_LIMIT_S, "decode": DECODE_LIMIT_S}
    subtracted = ("encode", "encode, no checks", "decode into copies")
    lines = [
        Line(row=_ROW, subject="bare copy", figure=table.time_text(comparison.cost_s("bare copy")))
    ]
    for name, spread in net.items():
        limit = limits.get(name)
        lines.append(
            Line(
                row=_ROW,
                subject=f"{name}, less the copy" if name in subtracted else name,
                figure=table.time_text(spread),
                target="" if limit is None else f"<= {limit * 1e6:g} µs",
                verdict="" if limit is None else table.at_most(spread.median, limit),
                numbers={"unit": "s", "median": spread.median, "most": limit},
            )
        )
    return lines


def _refuse(path: str, detail: str) -> None:
    """Stop: the row measured must be a good one."""
    raise ValueError(f"the benchmark's own row is not conforming at {path}: {detail}")
