"""PL106: drafts are verified with compute that other rows need."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from paceline.contracts.lint import Finding, Fix, Severity
from paceline.planner.lint.batch import mean_rows
from paceline.planner.lint.facts import Facts, LoadFacts, PairFacts
from paceline.planner.lint.prices import Prices
from paceline.planner.lint.rule import Rule
from paceline.planner.lint.words import CONFIGURED, RECOMPUTED, fact, plural
from paceline.planner.speculation import DraftChoice, choose_drafts

_GROUP = "speculation"
_PAYS = 0.99  # tokens with drafts over those without: a hundredth is no loss
_ROUNDS = 30  # of a fixed point that rises


def check(facts: Facts) -> Iterator[Finding]:
    for pair in facts.pairs:
        if _switched_on(pair):
            yield from _slower(pair)
    fleet, prices = facts.fleet, facts.prices
    if fleet is None or prices is None or not fleet.acceptance:
        return
    if facts.run is not None:
        timed = [(r, rows) for r, rows in zip(facts.run.requests, mean_rows(facts.run.requests), strict=True) if r.ok]
        steps = [r.tokens_per_step for r, _ in timed if r.tokens_per_step is not None]
        if not steps:
            return
        rows = max(1, round(sum(rows for _, rows in timed) / len(timed)))
        context = max(1, round(sum(r.num_tokens or 0 for r, _ in timed) / len(timed)))
        yield from _judged(prices, fleet.acceptance, rows, context, RECOMPUTED, measured=sum(steps) / len(steps))
        return
    assert facts.engine is not None, "needs()"
    assert facts.engine.max_num_seqs is not None, "needs()"
    most, context = facts.engine.max_num_seqs, max(1, (facts.engine.expected_context or 2) // 2)
    rows = most
    if facts.load is not None and facts.load.requests:
        context = max(1, round(_mean([r.num_input + r.num_output / 2 for r in facts.load.requests])))
        rows = _running(prices, facts.load, fleet.num_replicas, most, context)
    yield from _judged(prices, fleet.acceptance, rows, context, CONFIGURED)


def needs(facts: Facts) -> str:
    if any(_switched_on(pair) for pair in facts.pairs):
        return ""
    if facts.fleet is None or not facts.fleet.acceptance:
        return "speculation with an acceptance curve (--speculative), or a run without it (--against)"
    if facts.prices is None:
        return "the cost model of a device"
    if facts.run is None and (facts.engine is None or facts.engine.max_num_seqs is None):
        return "the server's resolved options: max_num_seqs"
    return ""


def _running(prices: Prices, load: LoadFacts, num_replicas: int, most: int, context: int) -> int:
    """Rows that decode on a replica at the workload's rate, by Little's law; all there are without a rate."""
    if load.rate_rps is None:
        return min(most, max(1, (load.slots or most * num_replicas) // num_replicas))
    tokens = _mean([float(r.num_output) for r in load.requests])
    rows = 1
    for _ in range(_ROUNDS):
        busy = load.rate_rps / num_replicas * tokens * prices.decode(rows, context).value / 1e3
        after = min(most, max(rows, round(busy)))
        if after == rows:
            break
        rows = after
    return rows


def _judged(
    prices: Prices, curve: Sequence[float], rows: int, context: int, origin: str, *, measured: float | None = None
) -> Iterator[Finding]:
    """`measured`: tokens that a step of a sequence brought with all drafts."""
    lengths = [*curve[:-1], curve[-1] if measured is None else max(1.0, measured)]
    lengths = [min(length, lengths[-1]) for length in lengths]
    plain = prices.decode(rows, context)
    choice = choose_drafts(rows, lengths, lambda tokens: prices.verify(tokens, rows, context).value)
    num = len(lengths)
    now = choice.speedups[-1]
    if now >= _PAYS:
        return
    positions = rows * (num + 1)
    verified = prices.verify(positions, rows, context)
    sentence = (
        f"{plural(rows, 'row')} with {plural(num, 'draft')} each are {positions:,} positions a step: it takes "
        f"{verified.value:.3g} ms instead of {plain.value:.3g} and brings {lengths[-1]:.3g} tokens a row, "
        f"{now:.2g} times the tokens per second"
    )
    if prices.ridge is not None:
        side = "beyond" if positions > prices.ridge else "near"
        sentence += f"; that is {side} the {prices.ridge:.0f} positions from which a step computes longer than it reads"
    evidence = [
        fact("rows that decode together", rows, "", origin),
        fact("drafts of a row", num, "", CONFIGURED),
        fact("positions of a step", positions, "", origin),
        fact("tokens that a step brings a row", lengths[-1], "", CONFIGURED if measured is None else RECOMPUTED),
        fact("step without drafts", plain.value, "ms", f"predicted ({plain.tier})"),
        fact("step that verifies them", verified.value, "ms", f"predicted ({verified.tier})"),
        fact("tokens per second, with over without", now, "x", f"predicted ({verified.tier})"),
    ]
    if prices.ridge is not None:
        evidence.append(
            fact("positions at which reading and computing are even", prices.ridge, "", "the device's rates")
        )
    yield RULE.finding(Severity.WARNING, f"{sentence}.", _fewer(choice, curve), tuple(evidence))


def _fewer(choice: DraftChoice, curve: Sequence[float]) -> Fix:
    best, now = choice.num_drafts, choice.speedups[-1]
    kept = ",".join(f"{length:g}" for length in curve[:best])
    words = f"{plural(best, 'draft')} at this load: --speculative {kept}" if best else "no drafts at this load"
    return Fix(
        words=words,
        fleet={"speculative": kept},
        gain=f"tokens per second {now:.2g} -> {choice.speedup:.2g} of those without drafts",
    )


def _switched_on(pair: PairFacts) -> bool:
    return any(change.group == _GROUP and change.after for change in pair.changes)


def _slower(pair: PairFacts) -> Iterator[Finding]:
    """The deciding figure answers for the step."""
    if not pair.ratios or pair.ratios[0].answer != "worse":
        return
    head = pair.ratios[0]
    changed = [change for change in pair.changes if change.group == _GROUP]
    told = ", ".join(f"{c.name} {c.before} -> {c.after}" for c in changed)
    bounds = f", 95 % interval {head.lo:.3g} to {head.hi:.3g}" if head.lo is not None and head.hi is not None else ""
    value = "is worse" if head.ratio is None else f"is {head.ratio:.3g} times"
    figure = head.figure.replace("_", " ")
    sentence = f"{pair.after} differs from {pair.before} in {told}, and its {figure} {value} as before{bounds}."
    evidence = tuple(
        fact(f"{r.figure} after / before", r.ratio, "x")
        for r in pair.ratios
        if r.ratio is not None and r.answer in ("better", "worse")
    )
    fix = Fix(
        words="no drafts at this load, or fewer of them", fleet={"speculative": ""}, gain=f"{figure} of {pair.before}"
    )
    yield RULE.finding(Severity.ERROR, sentence, fix, evidence, subject=f"{pair.before} -> {pair.after}")


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


RULE = Rule(
    code="PL106",
    title="speculation on a full device",
    what="Drafts use compute that a small batch leaves idle. At rows * (drafts + 1) above the ridge they take it from "
    "others: a step gets longer by more than the tokens it yields.",
    evidence="Rows times drafts against the ridge, and the cost model's step with and without them at the measured "
    "acceptance. From a configuration: rows at the workload's rate, or all of them. From a run: rows that decoded "
    "together and tokens per step in the raw records; or good tokens per second against a run without (--against).",
    fix="A draft length that follows the load, or none.",
    sources=("config", "run", "pair", "experiment"),
    check=check,
    needs=needs,
)
