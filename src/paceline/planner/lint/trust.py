"""PL205: a result that is not one change's."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.contracts.lint import Finding, Fix, Severity
from paceline.planner.lint.facts import Change, Facts, PairFacts
from paceline.planner.lint.rule import Rule
from paceline.planner.lint.words import CONFIGURED, fact, listed


def check(facts: Facts) -> Iterator[Finding]:
    """Steps of an experiment, or two runs, between which more than one group of options changed."""
    for pair in facts.pairs:
        groups = dict.fromkeys(change.group for change in pair.changes)
        if len(groups) < 2:
            continue
        told = "; ".join(f"{group}: {_names(pair, group)}" for group in groups)
        sentence = (
            f"{pair.after} differs from {pair.before} in {len(groups)} groups of variables ({told}): an effect of all "
            "at once belongs to none of them."
        )
        keep = pair.declared_group or next(iter(groups))
        back = {c.name: c.before for c in pair.changes if c.group != keep and _is_option(c) and c.before is not None}
        words = "one step for each group (`paceline tune` measures them so)"
        if back:
            words += f"; to see {keep} alone, hold " + ", ".join(f"{name} = {value}" for name, value in back.items())
        evidence = tuple(
            fact(f"{change.group}: {change.name}", f"{change.before} -> {change.after}", "", CONFIGURED)
            for change in pair.changes
        )
        fix = Fix(words=words, options=back, gain="an effect that has one cause")
        yield RULE.finding(Severity.ERROR, sentence, fix, evidence, subject=f"{pair.before} -> {pair.after}")


def _names(pair: PairFacts, group: str) -> str:
    return listed([change.name for change in pair.changes if change.group == group])


def _is_option(change: Change) -> bool:
    return change.group not in ("workload", "slo", "model")


RULE = Rule(
    code="PL205",
    title="two things changed",
    what="Better or worse after two changes says nothing about either: they may even have opposite effects. Options "
    "that the server derives from others count as well.",
    evidence="Every option that differs between two resolved configurations, by group of variables; and workload, "
    "targets or model where they differ.",
    fix="One group at a time, everything else held fixed.",
    sources=("pair", "experiment"),
    check=check,
    needs=lambda facts: "" if facts.pairs else "another configuration, run or experiment (--against)",
)
