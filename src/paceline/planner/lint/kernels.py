"""PL103: weights or activations were quantised, and nothing got faster."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.contracts.lint import Finding, Fix, Severity
from paceline.cost.memory import format_bytes
from paceline.planner.lint.facts import Facts, PairFacts, WeightFacts
from paceline.planner.lint.rule import Rule
from paceline.planner.lint.words import CONFIGURED, fact, flag

_GROUP = "quantisation"
_WIDER = 1.5  # held over stored bytes, from which weights are not kept as stored


def check(facts: Facts) -> Iterator[Finding]:
    weights = facts.engine.weights if facts.engine is not None else None
    if weights is not None:
        yield from _widened(weights)
    for pair in facts.pairs:
        if any(change.group == _GROUP for change in pair.changes):
            yield from _slower(pair)


def needs(facts: Facts) -> str:
    if facts.engine is not None and facts.engine.weights is not None:
        return ""
    if any(change.group == _GROUP for pair in facts.pairs for change in pair.changes):
        return ""
    return "a quantised model, or a run before and after quantising (--against)"


def _widened(weights: WeightFacts) -> Iterator[Finding]:
    if weights.held_bytes < _WIDER * weights.stored_bytes:
        return
    factor = weights.held_bytes / weights.stored_bytes
    sentence = (
        f"Weights are stored as {weights.stored} ({format_bytes(weights.stored_bytes)}) and held as floats "
        f"({format_bytes(weights.held_bytes)}): a decode step reads {factor:.2g} times as much as it could"
    )
    if weights.instead:
        words = " ".join(f"{flag(name)} {value}" for name, value in weights.instead.items())
    else:
        words = "`paceline doctor` shows which kernels serve and why; without one, a smaller model gains more"
    saved = format_bytes(weights.held_bytes - weights.stored_bytes)
    fix = Fix(
        words=words,
        options=weights.instead,
        gain=f"up to {factor:.2g} times less to read in each decode step, and {saved} of memory",
    )
    evidence = (
        fact("stored", weights.stored, "", "the model's file"),
        fact("weights as stored", weights.stored_bytes, "bytes", "the model's file"),
        fact("weights as held", weights.held_bytes, "bytes", CONFIGURED),
    )
    because = f" ({weights.why})" if weights.why else ""
    yield RULE.finding(Severity.WARNING, f"{sentence}{because}.", fix, evidence)


def _slower(pair: PairFacts) -> Iterator[Finding]:
    """The deciding figure answers for the step; where it does not, no latency may speak alone."""
    if not pair.ratios or pair.ratios[0].answer != "worse":
        return
    head = pair.ratios[0]
    changed = [change for change in pair.changes if change.group == _GROUP]
    told = ", ".join(f"{c.name} {c.before} -> {c.after}" for c in changed)
    bounds = f", 95 % interval {head.lo:.3g} to {head.hi:.3g}" if head.lo is not None and head.hi is not None else ""
    value = "is worse" if head.ratio is None else f"is {head.ratio:.3g} times"
    figure = head.figure.replace("_", " ")
    sentence = f"{pair.after} differs from {pair.before} in {told}, and its {figure} {value} as before{bounds}."
    evidence = [
        fact(f"{r.figure} after / before", r.ratio, "x", "recomputed")
        for r in pair.ratios
        if r.ratio is not None and r.answer in ("better", "worse")
    ]
    back = {c.name: c.before for c in changed if c.before is not None}
    words = "go back to " + ", ".join(f"{flag(name)} {value}" for name, value in back.items()) if back else "go back"
    fix = Fix(words=words, options=back, gain=f"{figure} of {pair.before}")
    yield RULE.finding(Severity.ERROR, sentence, fix, tuple(evidence), subject=f"{pair.before} -> {pair.after}")


RULE = Rule(
    code="PL103",
    title="quantised, but not faster",
    what="Fewer bits are faster only where a kernel multiplies them as they are stored. Without one they are widened "
    "first, and the model takes the memory and the bandwidth of floats with the quality of few bits. Even with one, "
    "large batches multiply more than they read, and may be slower.",
    evidence="From a configuration: bytes of the weights in the file and as this device would hold them. From two "
    "runs or a step of an experiment that changes the group quantisation: the deciding figure after over before, with "
    "its interval.",
    fix="The option that keeps weights as stored (quantization=auto, numerics=fast, dtype=float32 on a CPU), or back "
    "to what was faster.",
    sources=("config", "run", "pair", "experiment"),
    check=check,
    needs=needs,
)
