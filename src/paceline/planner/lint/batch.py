"""PL101: so many sequences run together that each of them gets its tokens too late."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.contracts.lint import Finding, Fix, Severity
from paceline.contracts.slo import percentile
from paceline.contracts.workload import SloClass
from paceline.planner.lint.facts import Facts, LoadFacts, RunFacts, Timed
from paceline.planner.lint.rule import Rule
from paceline.planner.lint.words import CONFIGURED, SERVER, fact, flag, ms, plural, share

Floats = NDArray[np.float64]

_MIN_REQUESTS = 8  # of a class, below which a share of them says nothing
_TOGETHER = 1.5  # rows beside each other on average, from which the batch can be the reason
_VARIES = 0.2  # of the mean, from which a line through the numbers together says something
_AIM = 0.98  # of the target: no line is that exact


def check(facts: Facts) -> Iterator[Finding]:
    if facts.run is not None:
        yield from _measured(facts, facts.run)
        return
    for terms in facts.slo:
        if terms.tpot_s is not None:
            yield from _predicted(facts, terms, terms.tpot_s)


def needs(facts: Facts) -> str:
    if all(terms.tpot_s is None for terms in facts.slo):
        return "a TPOT target (--slo, --workload)"
    if facts.run is None and (facts.prices is None or facts.engine is None or facts.engine.max_num_seqs is None):
        return "the cost model of a device"
    return ""


# --- from a configuration


def _predicted(facts: Facts, terms: SloClass, target_s: float) -> Iterator[Finding]:
    assert facts.prices is not None, "needs()"
    assert facts.engine is not None, "needs()"
    assert facts.engine.max_num_seqs is not None, "needs()"
    rows = facts.engine.max_num_seqs
    context = _context(facts.load, facts.engine.expected_context)
    full, alone = facts.prices.decode(rows, context), facts.prices.decode(1, context)
    if full.value / 1e3 <= target_s:
        return
    best = facts.prices.largest_batch(1e3 * target_s, context, rows)
    evidence = (
        fact("TPOT target", 1e3 * target_s, "ms", CONFIGURED),
        fact("max_num_seqs", rows, "", CONFIGURED),
        fact("TPOT of a full batch", full.value, "ms", f"predicted ({full.tier})"),
        fact("its interval, from", full.lo, "ms", f"predicted ({full.tier})"),
        fact("its interval, to", full.hi, "ms", f"predicted ({full.tier})"),
        fact("TPOT alone", alone.value, "ms", f"predicted ({alone.tier})"),
        fact("context of a sequence", context, "tokens", CONFIGURED),
    )
    severity = Severity.ERROR if full.lo / 1e3 > target_s else Severity.WARNING
    says = f"A step that decodes {plural(rows, 'sequence')} of {context} tokens takes {full.value:.3g} ms"
    if best < 1:
        sentence = f"{says}, and alone {alone.value:.3g} ms: no batch meets the TPOT target of {ms(target_s)}."
        words = f"loosen the target beyond {alone.value:.3g} ms, or serve a smaller or more quantised model"
        yield RULE.finding(severity, sentence, Fix(words=words), evidence, subject=terms.name)
        return
    after = facts.prices.decode(best, context)
    fix = Fix(
        words=f"{flag('max_num_seqs')} {best}",
        options={"max_num_seqs": best},
        gain=f"TPOT of a full batch {full.value:.3g} -> {after.value:.3g} ms; others wait, which shows in TTFT",
    )
    sentence = f"{says}; the TPOT target is {ms(target_s)}. {plural(best, 'sequence')} stay within it."
    yield RULE.finding(severity, sentence, fix, evidence, subject=terms.name)


def _context(load: LoadFacts | None, expected_context: int | None) -> int:
    """Tokens that a running sequence holds on average: its prompt and half its answer; else half of what is planned."""
    if load is not None and load.requests:
        return max(1, round(sum(r.num_input + r.num_output / 2 for r in load.requests) / len(load.requests)))
    return max(1, (expected_context or 2) // 2)


# --- from a run


def _measured(facts: Facts, run: RunFacts) -> Iterator[Finding]:
    beside = mean_rows(run.requests)
    rows = dict(zip((r.id for r in run.requests), beside, strict=True))
    for terms in facts.slo:
        if terms.tpot_s is None:
            continue
        timed = [r for r in run.requests if r.slo_class == terms.name and r.in_window and r.ok and r.tpot_s is not None]
        if len(timed) >= _MIN_REQUESTS:
            yield from _of_class(facts, terms, terms.tpot_s, timed, [rows[r.id] for r in timed])


def _of_class(
    facts: Facts, terms: SloClass, target_s: float, timed: Sequence[Timed], rows: Sequence[float]
) -> Iterator[Finding]:
    tpots = [r.tpot_s for r in timed if r.tpot_s is not None]
    tail = percentile(tpots, terms.share)
    mean = sum(rows) / len(rows)
    if tail <= target_s or mean < _TOGETHER:
        return
    fit = _line(rows, tpots)
    if fit is not None and fit.per_row <= 0:
        return  # those with more beside them were no slower: something else is
    most = _meets(fit, target_s, tail, max(rows))
    name = f"TPOT p{100 * terms.share:g}"
    evidence = [
        fact("TPOT target", 1e3 * target_s, "ms", CONFIGURED),
        fact(name, 1e3 * tail, "ms"),
        fact("requests of the class", len(timed)),
        fact("sequences decoding together, mean", mean),
        fact("sequences decoding together, most of a request", max(rows)),
    ]
    if fit is not None:
        evidence.append(fact("TPOT alone, fitted", 1e3 * fit.alone, "ms"))
        evidence.append(fact("TPOT of a sequence more, fitted", 1e3 * fit.per_row, "ms"))
    limit = facts.engine.max_num_seqs if facts.engine is not None else None
    if limit is not None:
        evidence.append(fact("max_num_seqs", limit, "", CONFIGURED))
    running = [s.num_running for s in facts.run.samples if s.num_running is not None] if facts.run is not None else []
    if running:
        evidence.append(fact("running, most", max(running), "", SERVER))
    says = f"{name} is {ms(tail)} with {mean:.2g} sequences decoding together on average"
    if most < 1:
        alone = "" if fit is None else f", and a sequence alone would take about {ms(fit.alone)}"
        sentence = f"{says}; the target is {ms(target_s)}{alone}."
        words = "loosen the target, or serve a smaller or more quantised model: no batch meets it"
        yield RULE.finding(Severity.ERROR, sentence, Fix(words=words), tuple(evidence), subject=terms.name)
        return
    if limit is not None and most >= limit:
        return  # the limit is not what let them in: something else slowed these steps down
    few = [t for t, beside in zip(tpots, rows, strict=True) if beside <= most + 0.5]
    missed = sum(t > target_s for t in tpots) / len(tpots)
    gain = f"{share(missed)} of the class miss the target now"
    if few:
        late = sum(t > target_s for t in few) / len(few)
        gain += f"; of the {len(few)} that had at most {most} beside them {share(late)}"
    fix = Fix(
        words=f"{flag('max_num_seqs')} {most}, at most; what does not fit waits, and shows in TTFT",
        options={"max_num_seqs": most},
        gain=gain,
    )
    sentence = f"{says}; the target is {ms(target_s)}, which about {most} together would meet."
    yield RULE.finding(Severity.ERROR, sentence, fix, tuple(evidence), subject=terms.name)


class _Line(NamedTuple):
    """TPOT over the number of sequences that decode together, in seconds."""

    at_zero: float
    per_row: float

    @property
    def alone(self) -> float:
        return self.at_zero + self.per_row


def _line(rows: Sequence[float], tpots: Sequence[float]) -> _Line | None:
    """Least squares; None where the numbers together hardly differ."""
    x, y = np.asarray(rows), np.asarray(tpots)
    spread = x - x.mean()
    if float(np.abs(spread).max()) < _VARIES * float(x.mean()):
        return None
    slope = float((spread * (y - y.mean())).sum() / (spread**2).sum())
    return _Line(float(y.mean()) - slope * float(x.mean()), slope)


def _meets(fit: _Line | None, target_s: float, tail_s: float, most: float) -> int:
    """Sequences together that would meet the target. A step has a fixed part, so it shrinks by less than its rows do:
    in proportion is an upper bound, and the fit, shifted up to the tail, is the estimate."""
    bound = most * target_s / tail_s
    if fit is None:
        return max(1, math.floor(bound))
    above = max(0.0, tail_s - (fit.at_zero + fit.per_row * most))
    found = math.floor(min(bound, (_AIM * target_s - above - fit.at_zero) / fit.per_row))
    return max(found, 1 if fit.alone <= target_s else 0)


def mean_rows(requests: Sequence[Timed]) -> list[float]:
    """For each request, how many sequences decoded during its own decode, itself included; 1 where that is not known.
    Those of another replica are not beside it."""
    by_replica: dict[int | None, list[int]] = {}
    for i, r in enumerate(requests):
        by_replica.setdefault(r.replica, []).append(i)
    found = [1.0] * len(requests)
    for own in by_replica.values():
        for i, mean in zip(own, _mean_rows([requests[i] for i in own]), strict=True):
            found[i] = mean
    return found


def _mean_rows(requests: Sequence[Timed]) -> list[float]:
    """Of one replica. With F the number of first tokens and L that of last tokens seen up to t, F - L decode at t; its
    integral over the request's decode, divided by how long that was, is the mean."""
    begin = np.asarray([math.nan if r.first_s is None else r.first_s for r in requests], dtype=np.float64)
    end = np.asarray([math.nan if r.last_s is None else r.last_s for r in requests], dtype=np.float64)
    known = end > begin  # nan: no
    first, last = np.sort(begin[known]), np.sort(end[known])
    rows = np.ones(len(requests))
    area = _area(first, end[known]) - _area(last, end[known]) - _area(first, begin[known]) + _area(last, begin[known])
    rows[known] = area / (end[known] - begin[known])
    return [float(value) for value in rows]


def _area(events: Floats, t: Floats) -> Floats:
    """Integral up to t of the number of `events` (sorted) that have happened: the sum of (t - event) over those."""
    before = np.searchsorted(events, t, side="right")
    total = np.concatenate(([0.0], np.cumsum(events)))
    return np.asarray(before * t - total[before], dtype=np.float64)


RULE = Rule(
    code="PL101",
    title="batch too big for its targets",
    what="Each sequence more makes every step longer, and a step's length is everybody's TPOT. Beyond the size at "
    "which a step takes as long as the TPOT target, throughput still grows and goodput falls to nothing.",
    evidence="From a configuration: the cost model's time of a step with max_num_seqs rows, with its interval and "
    "tier. From a run: the TPOT at the class's share, how many sequences decoded together during each request, and "
    "the line through both.",
    fix="max_num_seqs at the largest batch that meets the target; where even one sequence does not, another target or "
    "model.",
    sources=("config", "run"),
    check=check,
    needs=needs,
)
