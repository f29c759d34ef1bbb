"""Report of a processor's checks."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any


class ConformanceError(AssertionError):
    """A processor breaks the contract, or does not do what it declares."""


class Outcome(Enum):
    """ADVICE: it works but could be better. SKIPPED: named in `skip`, or a needed check failed or was skipped."""

    PASS = "pass"
    FAIL = "FAIL"
    ADVICE = "advice"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Finding:
    """Result of one check; `message` describes what was checked, or the fault and its fix."""

    check: str
    outcome: Outcome
    message: str


@dataclass(frozen=True)
class StepTime:
    """Milliseconds of a step with `rows` rows, all using the processor, and a vocabulary of `vocab_size` tokens."""

    rows: int
    vocab_size: int
    milliseconds: float


@dataclass(frozen=True)
class CheckReport:
    """Findings about one processor in the order of the checks, and the times of its steps.

    arguments: the requests' arguments that the checks used. steps: number of steps that they ran.
    """

    name: str
    spec: str
    dialect: str
    arguments: tuple[dict[str, Any], ...]
    findings: tuple[Finding, ...]
    times: tuple[StepTime, ...] = ()
    steps: int = 0

    @property
    def passed(self) -> bool:
        """True if no check failed; advice does not count."""
        return not self.of(Outcome.FAIL)

    def of(self, outcome: Outcome) -> list[str]:
        """Returns the names of the checks with this outcome."""
        return [finding.check for finding in self.findings if finding.outcome is outcome]

    def require_passed(self) -> None:
        """Raises ConformanceError with the whole report unless it passed."""
        if not self.passed:
            raise ConformanceError(f"\n{self}")

    def as_dict(self) -> dict[str, Any]:
        """Returns the report as a dict for JSON."""
        return {
            "name": self.name,
            "spec": self.spec,
            "dialect": self.dialect,
            "passed": self.passed,
            "arguments": list(self.arguments),
            "findings": [asdict(finding) | {"outcome": finding.outcome.value.lower()} for finding in self.findings],
            "times": [asdict(each) for each in self.times],
            "steps": self.steps,
        }

    def __str__(self) -> str:
        # Passed and skipped checks would hide the failed ones.
        shown = [each for each in self.findings if self.passed or each.outcome in (Outcome.FAIL, Outcome.ADVICE)]
        width = max(len(finding.check) for finding in shown)
        lines = [f"{self.name} ({self.dialect}, {self.spec})"]
        lines += [f"  {each.outcome.value:<7}  {each.check:<{width}}  {each.message}" for each in shown]
        lines += self._table()
        counts = {outcome: len(self.of(outcome)) for outcome in Outcome}
        lines.append(
            f"{counts[Outcome.PASS]} passed, {counts[Outcome.FAIL]} failed, {counts[Outcome.ADVICE]} with advice, "
            f"{counts[Outcome.SKIPPED]} skipped; {self.steps} steps ran"
        )
        return "\n".join(lines)

    def _table(self) -> list[str]:
        if not self.times:
            return []
        sizes = sorted({each.vocab_size for each in self.times})
        lines = ["ms a step, by rows and size of the vocabulary:", "  rows" + "".join(f"{size:>10}" for size in sizes)]
        for rows in sorted({each.rows for each in self.times}):
            here = {each.vocab_size: each.milliseconds for each in self.times if each.rows == rows}
            lines.append(f"  {rows:>4}" + "".join(f"{here[size]:>10.3f}" for size in sizes))
        return lines
