"""What a check of an env or model found, as plain sentences (layer 7)."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field


class Level(enum.Enum):
    """How bad a finding is."""

    OK = "ok"
    WARN = "warn"
    FAIL = "FAIL"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        level: `OK`; `WARN` where a run works but its user should know; `FAIL` where it breaks or
            its numbers cannot be trusted.
        rule: What was looked at (`"seeds"`), one or two words.
        sentence: What was seen and, unless it is ok, what to do.
    """

    level: Level
    rule: str
    sentence: str

    def __str__(self) -> str:
        """Return the finding as one line."""
        return f"{self.level.value:<4}  {self.rule}: {self.sentence}"


@dataclass
class CheckReport:
    """Everything a check found, in the order it looked.

    Attributes:
        subject: What was checked.
        findings: One or more a rule.
    """

    subject: str
    findings: list[Finding] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether nothing failed; warnings pass."""
        return not self.failures

    @property
    def failures(self) -> list[Finding]:
        """The findings that failed."""
        return [f for f in self.findings if f.level is Level.FAIL]

    @property
    def warnings(self) -> list[Finding]:
        """The findings that only warn."""
        return [f for f in self.findings if f.level is Level.WARN]

    def ok(self, rule: str, sentence: str) -> None:
        """Note that a rule holds, unless something was found against it already."""
        if not any(f.rule == rule for f in self.findings):
            self.findings.append(Finding(Level.OK, rule, sentence))

    def warn(self, rule: str, sentence: str) -> None:
        """Note a thing to know; the same words once."""
        self._add(Finding(Level.WARN, rule, sentence))

    def fail(self, rule: str, sentence: str) -> None:
        """Note a thing to repair; the same words once."""
        self._add(Finding(Level.FAIL, rule, sentence))

    def _add(self, finding: Finding) -> None:
        if finding not in self.findings:
            self.findings.append(finding)

    def __str__(self) -> str:
        """Return the whole report, a line a finding and a verdict."""
        count, warned = len(self.failures), len(self.warnings)
        verdict = "passed" if self.passed else f"failed ({count} to repair)"
        if warned:
            verdict += f", {warned} to know about"
        return "\n".join([*map(str, self.findings), f"{self.subject}: {verdict}"])
