"""PL108: a new replica is ready later than the burst it is started for can wait."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.contracts.lint import Finding, Fix, Severity
from paceline.planner.lint.facts import Facts
from paceline.planner.lint.rule import Rule
from paceline.planner.lint.words import CONFIGURED, fact


def check(facts: Facts) -> Iterator[Finding]:
    budget = facts.start_budget_s
    assert budget is not None, "needs()"
    if facts.source == "config":
        load_s = facts.engine.load_s if facts.engine is not None else None
        if load_s is not None and load_s > budget:
            yield _predicted(load_s, budget)
        return
    for kind in dict.fromkeys(start.kind for start in facts.starts):
        starts = [start for start in facts.starts if start.kind == kind]
        slowest = max(starts, key=lambda start: start.seconds)
        if slowest.seconds <= budget:
            continue
        phases = sorted(slowest.phases.items(), key=lambda item: -item[1])
        evidence = (
            fact("scale-up budget", budget, "s", CONFIGURED),
            fact(f"slowest {kind} start", slowest.seconds, "s", "measured"),
            fact("starts", len(starts), "", "measured"),
            *(fact(f"phase {name}", seconds, "s", "the server") for name, seconds in phases[:3]),
        )
        most = f", {phases[0][1]:.3g} s of it in the phase {phases[0][0]}" if phases else ""
        sentence = (
            f"The slowest of {len(starts)} {kind} starts took {slowest.seconds:.3g} s{most}; a replica must be there "
            f"within {budget:g} s."
        )
        words = "keep a replica ready ahead of the load"
        if phases:
            words += f", or shorten {phases[0][0]}: {_SHORTER.get(phases[0][0], 'see what it does in that time')}"
        yield RULE.finding(Severity.WARNING, sentence, Fix(words=words), evidence, subject=kind)


def needs(facts: Facts) -> str:
    if facts.start_budget_s is None:
        return "the budget of a scale-up (--start-budget)"
    if facts.source == "config":
        timed = facts.engine is not None and facts.engine.load_s is not None
        return "" if timed else "a timed load: `paceline calibrate` takes one"
    return "" if facts.starts else "a measured start: a run or experiment that started its own server"


def _predicted(load_s: float, budget: float) -> Finding:
    sentence = (
        f"Loading the weights alone takes {load_s:.3g} s at the timed rate; a replica must be there within "
        f"{budget:g} s."
    )
    evidence = (
        fact("scale-up budget", budget, "s", CONFIGURED),
        fact("loading the weights", load_s, "s", "predicted (at the rate that a calibration timed)"),
    )
    fix = Fix(words=f"keep a replica ready ahead of the load, or {_SHORTER['weights']}")
    return RULE.finding(Severity.ERROR, sentence, fix, evidence)


_SHORTER = {
    "files": "fetch the model onto the machine beforehand",
    "weights": "a more quantised file, or one that is already in the page cache",
    "torch": "an image whose libraries are in the page cache",
    "memory": "fix kv_cache_memory and max_num_seqs, so that less is tried out",
}

RULE = Rule(
    code="PL108",
    title="starts too late to scale",
    what="Capacity that comes after the burst has passed was paid for and served nobody. Loading, compiling and "
    "warming up decide it; nothing is compiled at start in this version.",
    evidence="Against --start-budget: from a configuration, the bytes of the weights over the rate at which a "
    "calibration loaded them, which is the least a start takes; from runs, starts that the lab timed, or that a "
    "simulation was given, by phase.",
    fix="Replicas kept ready, weights near the machine, less done at start.",
    sources=("config", "run", "experiment"),
    check=check,
    needs=needs,
)
