"""The table of rules, and the one function that applies them."""

from __future__ import annotations

import difflib

from paceline.contracts.lint import Finding, LintResult, worst_first
from paceline.errors import ConfigError
from paceline.planner.lint import (
    batch,
    cache_state,
    client,
    drafting,
    hotspot,
    kernels,
    lengths,
    links,
    load,
    rates,
    restores,
    samples,
    starts,
    texts,
    trust,
)
from paceline.planner.lint.facts import Facts
from paceline.planner.lint.rule import Rule, Source

RULES: tuple[Rule, ...] = tuple(
    sorted(
        (
            batch.RULE,
            lengths.RULE,
            kernels.RULE,
            links.RULE,
            hotspot.RULE,
            drafting.RULE,
            restores.RULE,
            starts.RULE,
            cache_state.RULE,
            *load.RULES,
            *samples.RULES,
            trust.RULE,
            *client.RULES,
            rates.RULE,
            texts.RULE,
        ),
        key=lambda rule: rule.code,
    )
)


def rule_of(code: str) -> Rule:
    """Raises ConfigError with the nearest code."""
    wanted = code.strip().upper()
    for rule in RULES:
        if rule.code == wanted:
            return rule
    codes = [rule.code for rule in RULES]
    near = difflib.get_close_matches(wanted, codes, n=1)
    raise ConfigError(
        "no such rule", seen=code, expected=", ".join(codes), fix=f"did you mean {near[0]}?" if near else ""
    )


def lint(facts: Facts) -> LintResult:
    """Every rule that these facts can decide. Pure: the same facts give the same findings, in the same order."""
    findings: list[Finding] = []
    judged: list[str] = []
    skipped: dict[str, str] = {}
    for rule in RULES:
        if missing := _missing(rule, facts):
            skipped[rule.code] = missing
            continue
        judged.append(rule.code)
        findings += rule.check(facts)
    return LintResult(
        source=facts.source,
        name=facts.name,
        findings=worst_first(findings),
        judged=tuple(judged),
        skipped=skipped,
    )


def _missing(rule: Rule, facts: Facts) -> str:
    here: set[Source] = {facts.source}
    if facts.pairs:
        here.add("pair")
    if not here.intersection(rule.sources):
        return "is decided from " + " or ".join(_SOURCES[source] for source in rule.sources)
    missing = rule.needs(facts)
    return f"needs {missing}" if missing else ""


_SOURCES: dict[Source, str] = {
    "config": "a configuration",
    "run": "a run",
    "experiment": "an experiment",
    "pair": "two of them (--against)",
}
