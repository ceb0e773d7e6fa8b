"""What a lint found in a run, as a section of its page: code, severity, sentence, evidence, fix."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from paceline.contracts.lint import Evidence, Finding, LintResult, Severity
from paceline.lab.report.page import Cell, Row, Section, Table, Words
from paceline.lab.report.words import number

LINT = "lint.json"
_TONES: dict[Severity, Literal["", "bad", "muted"]] = {Severity.ERROR: "bad", Severity.INFO: "muted"}


def lint_section(folder: Path) -> Section | None:
    """From lint.json in the run's folder; None where nobody looked."""
    file = folder / LINT
    if not file.is_file():
        return None
    try:
        result = msgspec.json.decode(file.read_bytes(), type=LintResult)
    except (OSError, msgspec.DecodeError) as error:
        return Section("lint", "Lint", (Words(f"{LINT} cannot be read: {error}", "missing"),))
    intro = (
        f"{len(result.judged)} rules were judged, {len(result.skipped)} lack what they need. "
        "`paceline lint --explain CODE` says what a rule is about."
    )
    if not result.findings:
        return Section("lint", "Lint", (Words("Nothing was found."),), intro)
    columns = ("code", "severity", "what", "evidence", "fix")
    rows = tuple(_row(finding) for finding in result.findings)
    return Section("lint", "Lint", (Table(columns, rows, num_words=len(columns)),), intro)


def _row(finding: Finding) -> Row:
    about = f"{finding.title}: {finding.subject}" if finding.subject else finding.title
    return (
        finding.code,
        Cell(finding.severity.value, tone=_TONES.get(finding.severity, "")),
        Cell(finding.sentence, about),
        "; ".join(map(_evidence, finding.evidence)),
        Cell(finding.fix.words, finding.fix.gain),
    )


def _evidence(one: Evidence) -> str:
    value = number(one.value) if isinstance(one.value, int | float) else one.value
    return f"{one.name} {value} {one.unit}".rstrip()
