"""What is right where a case's own `check` is not the whole story, or holds for some variants only.

`JUDGEMENTS` says for each such case how it is prepared, driven and judged; what is not there is
judged by its file alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tests.cases import by_hand
from tests.cases import by_server as servers
from tests.cases import judges_episodes as episodes
from tests.cases import judges_faults as faults
from tests.cases import judges_values as values
from tests.cases.by_hand import Exit
from tests.cases.case_run import CaseRun
from tests.cases.judging import Judge
from tests.cases.recording import Outcome


def no_reason(run: CaseRun, way: str) -> str | None:
    """Return no reason: every way is driven."""
    del run, way
    return None


@contextlib.contextmanager
def nothing(run: CaseRun) -> Iterator[None]:
    """Prepare nothing."""
    del run
    yield


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """How a case is prepared, driven and judged beyond what its file says.

    Attributes:
        judge: Decides; None leaves it to `check` and `check_error`.
        skips: Says why a variant cannot be driven in a way, or None.
        drive: Drives it by hand, in place of the ways.
        judge_exit: Decides from how the child process ended.
        needs_child: Whether a variant needs a process of its own; None: see the source.
        keeps_steps: Whether every step is kept for `check`.
        limits: Limits to run with.
        around: Prepares and tidies up.
        quick: Environment that makes the case small, set unless the full size is asked for.
        is_slow: Whether a variant is left to the slow runs.
        extra: Parts that no way drives: what they are, and what drives and judges them.
    """

    judge: Judge | None = None
    skips: Callable[[CaseRun, str], str | None] = no_reason
    drive: Callable[[CaseRun, Outcome], None] | None = None
    judge_exit: Callable[[Exit], str | None] | None = None
    needs_child: Callable[[Any], bool] | None = None
    keeps_steps: bool = True
    limits: Mapping[str, float] | None = None
    around: Callable[[CaseRun], contextlib.AbstractContextManager[None]] = nothing
    quick: Mapping[str, str] | None = None
    is_slow: Callable[[Any], bool] | None = None
    extra: Mapping[str, Callable[[CaseRun], str | None]] | None = None


def by_function(act: Callable[[CaseRun], str | None], **given: Any) -> Judgement:
    """Return the judgement of a case that a function drives and judges, variant by variant."""
    return Judgement(drive=servers.driven(act), judge=servers.judge_driven, **given)


def in_child(variant: Any) -> bool:
    del variant
    return True


JUDGEMENTS: dict[str, Judgement] = {
    "C04": Judgement(judge=episodes.judge_c04),
    "C15": Judgement(judge=episodes.judge_c15),
    "C16": Judgement(judge=episodes.judge_c16),
    "C18": Judgement(judge=episodes.judge_c18),
    "C20": Judgement(judge=episodes.judge_c20),
    "C23": Judgement(judge=values.judge_c23),
    "C25": Judgement(judge=values.judge_c25),
    "C26": Judgement(judge=values.judge_c26),
    "C29": Judgement(judge=values.judge_c29),
    "C31": Judgement(judge=values.judge_c31),
    "C33": Judgement(
        judge=values.judge_c33, keeps_steps=False, is_slow=lambda variant: variant == 300
    ),
    "C34": Judgement(judge=values.judge_c34),
    "C36": Judgement(judge=values.judge_c36),
    "C39": Judgement(judge=values.judge_c39),
    "C40": Judgement(judge=values.judge_c40),
    "C41": Judgement(judge=episodes.judge_c41),
    "C42": Judgement(judge=episodes.judge_c42),
    "C44": Judgement(judge=faults.judge_c44),
    "C45": Judgement(
        judge=faults.judge_c45,
        limits={"close_s": 1.5},  # time for a busy machine to ask for it
        needs_child=lambda variant: variant == "hang",
    ),
    "C47": Judgement(
        judge=faults.judge_c47, judge_exit=faults.judge_exit_c47, skips=faults.skip_c47
    ),
    "C48": Judgement(
        judge=faults.judge_c48, skips=faults.skip_c48, needs_child=lambda variant: False
    ),
    "C51": Judgement(judge=faults.judge_c51, skips=faults.skip_c51),
    "C52": Judgement(judge=faults.judge_c52, extra={"then SIGINT, SIGTERM": servers.c52_signals}),
    "C53": Judgement(judge=faults.judge_c53, around=faults.around_c53, needs_child=in_child),
    "C54": Judgement(
        judge=faults.judge_c54,
        quick={"CASE_SLOW_S": "0.3"},
        extra={"second client": servers.c54_second_client},
    ),
    "C56": by_function(servers.c56_client_vanishes),
    "C58": Judgement(
        judge=faults.judge_c58,
        drive=by_hand.drive_c58,
        judge_exit=by_hand.judge_exit_c58,
        needs_child=in_child,
    ),
    "C59": by_function(servers.c59_address_in_use),
    "C60": by_function(servers.c60_bind, extra={"tracebacks": servers.c60_tracebacks}),
    "C61": by_function(servers.c61_path_lengths, needs_child=in_child),
    "C63": Judgement(
        judge=faults.judge_c63,
        skips=faults.skip_c63,
        around=faults.around_c63,
        extra={"raw bytes": servers.c63_raw_bytes},
    ),
    "C64": Judgement(judge=faults.judge_c64, drive=by_hand.drive_c64),
    "C65": Judgement(
        judge=faults.judge_c65,
        skips=faults.skip_c65,
        drive=faults.drive_c65,
        keeps_steps=False,
        quick={"CASE_STEPS": "4000", "CASE_EPISODES": "200"},
        needs_child=in_child,
    ),
    "C66": Judgement(judge=faults.judge_c66),
    "C67": Judgement(skips=faults.skip_c67),
    "C68": Judgement(judge=faults.judge_c68, drive=by_hand.drive_c68),
    "C69": Judgement(judge=faults.judge_c69, keeps_steps=False),
}

BY_FILE = Judgement()
"""How a case without an entry is judged."""
