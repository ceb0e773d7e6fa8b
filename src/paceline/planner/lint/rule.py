"""What a rule is: a code, words about it, and a pure function from facts to findings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from paceline.contracts.lint import Evidence, Finding, Fix, Severity
from paceline.planner.lint.facts import Facts

Source = Literal["config", "run", "experiment", "pair"]
Check = Callable[[Facts], Iterator[Finding]]


@dataclass(frozen=True)
class Rule:
    """One rule. `needs` gives what is missing for a decision, in words; "" when it can be decided."""

    code: str
    title: str
    what: str  # the mistake, and why it costs
    evidence: str  # what it is seen by
    fix: str
    sources: tuple[Source, ...]  # pair: two of them side by side
    check: Check
    needs: Callable[[Facts], str] = lambda _facts: ""

    def finding(
        self,
        severity: Severity,
        sentence: str,
        fix: Fix,
        evidence: tuple[Evidence, ...],
        *,
        subject: str = "",
    ) -> Finding:
        return Finding(
            code=self.code,
            title=self.title,
            severity=severity,
            sentence=sentence,
            fix=fix,
            subject=subject,
            evidence=evidence,
        )
