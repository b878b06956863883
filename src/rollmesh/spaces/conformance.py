"""How strict a codec is with the values it is given (layer 2).

A `Checker` travels with each `encode`. It decides what happens to a value that has the right
structure but not the right content: reported once and delivered (`warn`), refused (`strict`), or
not looked at (`off`). Structure is never its business: a wrong shape, a missing key or a number
that would have to be cut is refused by the codec under every policy.

What is delivered although its space does not hold it can also be kept (`keeping`), so that every
observation is counted where the text about it is told once. A value that conforms costs nothing.

It knows no space and no codec.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from rollmesh.errors import InvalidValue

logger = logging.getLogger(__name__)

Policy: TypeAlias = Literal["warn", "strict", "off"]
NanPolicy: TypeAlias = Literal["policy", "refuse"]
Report: TypeAlias = Callable[[str, str], None]
"""Takes the path (`observation['wrist'][2]`) and a sentence about it."""

Found: TypeAlias = "tuple[str, str, Sequence[int]]"
"""Kind and path of a finding, and the rows of the batch that it was found in."""

POLICIES = ("warn", "strict", "off")
NAN_POLICIES = ("policy", "refuse")
_LOGGED = "conformance path=%s detail=%s"


@dataclass(frozen=True, kw_only=True, slots=True)
class OddObservations:
    """Observations of one episode, or of several, that their space does not hold.

    Attributes:
        kind: `nan`, `bounds` (outside of them), `length` or `charset` (of a text).
        path: Where in the observation: `observation['wrist'][2]`; `…` stands for several.
        count: How many observations were so. One with two odd elements at a path counts once.
    """

    kind: str
    path: str
    count: int


def log_report(path: str, detail: str) -> None:
    """Log one finding as a warning; what a `Checker` does unless told otherwise."""
    logger.warning(_LOGGED, path, detail)


class Checker:
    """Decides about values that do not fit the content of their space.

    Args:
        root: First word of every path: `observation` or `action`.
        policy: `warn` reports each kind of finding once per path and delivers the value unchanged;
            `strict` refuses it; `off` does not look for any.
        nan: `refuse` refuses NaN, and integers outside their domain unless the policy is `off`
            (for actions); `policy` treats them like any other finding (for observations).
        report: Called once per kind and path under `warn`; by default a warning is logged, or an
            information where nothing has to be done about it.

    Attributes:
        looks: Whether values are checked at all.
        found: What was delivered although its space does not hold it, until the owner takes it;
            None unless made by `keeping`.

    Guarantees: safe to share between threads unless it keeps; a finding may then be reported twice
    in a race.

    Raises:
        InvalidValue: An unknown policy.
    """

    __slots__ = ("_children", "_report", "_seen", "found", "looks", "nan", "policy", "root")

    def __init__(
        self,
        root: str = "observation",
        policy: Policy = "warn",
        nan: NanPolicy = "policy",
        report: Report | None = None,
    ) -> None:
        if policy not in POLICIES:
            raise InvalidValue("conformance", f"wants one of {', '.join(POLICIES)}, got {policy!r}")
        if nan not in NAN_POLICIES:
            raise InvalidValue("nan", f"wants one of {', '.join(NAN_POLICIES)}, got {nan!r}")
        self.root = root
        self.policy: Policy = policy
        self.nan: NanPolicy = nan
        self.looks = policy != "off" or nan == "refuse"
        self._report: Report = log_report if report is None else report
        self._seen: set[tuple[str, str]] = set()
        self._children: dict[str, Checker] = {}
        self.found: list[Found] | None = None

    def __repr__(self) -> str:
        return f"Checker(root={self.root!r}, policy={self.policy!r}, nan={self.nan!r})"

    def at(self, suffix: str) -> Checker:
        """Return the checker of an inner value; it shares what was reported."""
        child = self._children.get(suffix)
        if child is None:
            child = Checker(self.root + suffix, self.policy, self.nan, self._report)
            child._seen, child.found = self._seen, self.found
            self._children[suffix] = child
        return child

    def keeping(self) -> Checker:
        """Return a checker that shares what was reported, and keeps what it finds for its owner.

        For one thread, which empties `found` after each value.
        """
        twin = Checker(self.root, self.policy, self.nan, self._report)
        twin._seen, twin.found = self._seen, []
        return twin

    def keep(self, kind: str, path: str, rows: Sequence[int] = (0,)) -> None:
        """Keep a finding about what is delivered all the same, where somebody wants it.

        Args:
            kind: Kind of the finding.
            path: Path below the root.
            rows: The rows of the batch that it was found in.
        """
        if self.found is not None:
            self.found.append((kind, self.root + path, rows))

    def keep_as_row(self, row: int, first: int) -> None:
        """Have what was kept from place `first` on belong to this row, whose parts were looked at.

        Args:
            row: A row of the batch.
            first: How much had been kept before.
        """
        found = self.found
        if found is not None and len(found) > first:
            found[first:] = [(kind, path, (row,)) for kind, path, _ in found[first:]]

    def wants(self, kind: str, path: str, *, refuse: bool = False, is_usual: bool = False) -> bool:
        """Return whether a finding of this kind would do anything, so that its text can be saved.

        Args:
            kind: Kind of the finding: `nan`, `bounds`, `dtype`, …
            path: Path below the root.
            refuse: Whether the finding would be passed to `note` with `refuse`.
            is_usual: Whether it would be passed to `note` with `is_usual`.
        """
        if self.policy == "off":
            return refuse
        is_refused = refuse or (self.policy == "strict" and not is_usual)
        return is_refused or (kind, self.root + path) not in self._seen

    def note(
        self, kind: str, path: str, detail: str, *, refuse: bool = False, is_usual: bool = False
    ) -> None:
        """Take a finding: report it, refuse it, or let it pass.

        Args:
            kind: Kind of the finding.
            path: Path below the root.
            detail: A sentence about it.
            refuse: Whether it is refused under every policy.
            is_usual: Whether nothing has to be done about it: it is logged as an information, and
                no policy refuses it.

        Raises:
            InvalidValue: The policy is `strict` and it is not usual, or `refuse` is set.
        """
        where = self.root + path
        if refuse or (self.policy == "strict" and not is_usual):
            raise InvalidValue(where, detail)
        if self.policy == "off":
            return
        if (kind, where) not in self._seen:
            self._seen.add((kind, where))
            if is_usual and self._report is log_report:
                logger.info(_LOGGED, where, detail)
            else:
                self._report(where, detail)

    @property
    def refuses_nan(self) -> bool:
        """Whether NaN is refused whatever the policy."""
        return self.nan == "refuse"

    @property
    def refuses_integers(self) -> bool:
        """Whether integers outside their domain are refused though the policy is `warn`."""
        return self.nan == "refuse" and self.policy != "off"


STRUCTURE_ONLY = Checker("value", "off")
"""Checks structure and nothing else; what codecs use when they get no checker."""
