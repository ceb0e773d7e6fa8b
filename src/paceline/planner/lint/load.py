"""Loads that cannot show what they are to: PL202 one length, PL203 closed loop, PL210 one at a time, PL211 calm."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

from paceline.contracts.lint import Finding, Fix, Severity
from paceline.contracts.workload import SloClass
from paceline.planner.lint.facts import Asked, Facts, LoadFacts
from paceline.planner.lint.rule import Rule
from paceline.planner.lint.words import CONFIGURED, fact, listed, plural

_BURSTY = 1.5  # coefficient of variation of gaps; 1 is Poisson
_CALM = 1.25
_MIN_ARRIVALS = 20
_BELOW = 0.8  # of what a closed loop reached: an open one at that rate has room


def with_load(facts: Facts) -> str:
    return "" if facts.load is not None else "a workload (--workload)"


# --- PL202


def check_lengths(facts: Facts) -> Iterator[Finding]:
    """A load all of whose requests have one pair of lengths."""
    load = _load(facts)
    streams: dict[str, list[Asked]] = {}
    for request in load.requests:
        streams.setdefault(request.stream, []).append(request)
    alike = {
        name: requests[0]
        for name, requests in streams.items()
        if len(requests) > 1 and len({(r.num_input, r.num_output) for r in requests}) == 1
    }
    if not alike or len(alike) < len(streams) or len({(r.num_input, r.num_output) for r in alike.values()}) > 1:
        return
    one = next(iter(alike.values()))
    if not one.num_input or not one.num_output:
        return  # nobody wrote down what was asked
    sentence = (
        f"All {len(load.requests):,} requests ask for {one.num_input:,} tokens in and {one.num_output:,} out: no "
        "request is long, so no tail, no preemption and no head-of-line blocking can show."
    )
    fix = Fix(
        words=f'input = {{ kind = "lognormal", p50 = {one.num_input}, p99 = {4 * one.num_input} }}, and output alike',
        workload={"input": _spread(one.num_input), "output": _spread(one.num_output)},
        gain="percentiles that a service with these means would have",
    )
    evidence = (
        fact("requests", len(load.requests), "", CONFIGURED),
        fact("input tokens of each", one.num_input, "tokens", CONFIGURED),
        fact("output tokens of each", one.num_output, "tokens", CONFIGURED),
        fact("variance of lengths", 0.0, "", CONFIGURED),
    )
    yield LENGTHS.finding(Severity.WARNING, sentence, fix, evidence, subject=listed(list(alike)))


def _spread(tokens: int) -> dict[str, float | str]:
    return {"kind": "lognormal", "p50": tokens, "p99": 4 * tokens}


LENGTHS = Rule(
    code="PL202",
    title="one length for all",
    what="Means hide the tail: real lengths spread over two orders of magnitude, and the long ones decide p99, memory "
    "and who waits behind whom. Public traces have a p99 of 3.6 to 9 times their mean.",
    evidence="The planned lengths have no variance at all.",
    fix="A distribution (lognormal with a p99, a histogram) or a trace for input and output.",
    sources=("config", "run"),
    check=check_lengths,
    needs=with_load,
)


# --- PL203


def check_closed(facts: Facts) -> Iterator[Finding]:
    """Targets of a closed loop, with a rate for an open one: below what a run reached, where there is one."""
    load = _load(facts)
    asked = [terms.name for terms in facts.slo if _has_terms(terms)]
    if not load.closed_loop or not asked:
        return
    reached = _reached_rps(facts)
    rate = 1.0 if reached is None else float(f"{_BELOW * reached:.3g}")
    sentence = (
        f"{plural(load.slots, 'client') if load.slots else 'Clients'} that wait for each other ask for targets of "
        f"{listed(asked)}: a slow server is asked less, so its TTFT never shows the queue that users would stand in."
    )
    evidence = [
        fact("closed loop, slots", load.slots or 0, "", CONFIGURED),
        fact("classes with targets", len(asked), "", CONFIGURED),
    ]
    if reached is not None:
        evidence.append(fact("requests it came to", reached, "req/s"))
    fix = Fix(
        words=f'arrival = {{ kind = "poisson", rate = {rate:g} }}, or `paceline tune` with a [search] for the rate',
        workload={"arrival": {"kind": "poisson", "rate": rate}},
        gain="TTFT from the schedule, and goodput at a rate",
    )
    yield CLOSED.finding(Severity.WARNING, sentence, fix, tuple(evidence))


def _reached_rps(facts: Facts) -> float | None:
    return facts.run.metrics.whole.request_rps if facts.run is not None else None


CLOSED = Rule(
    code="PL203",
    title="targets asked of a closed loop",
    what="In a closed loop each client waits for its answer before it asks again: overload lowers the rate and not the "
    "latency (coordinated omission). Attainment and goodput from it hold for no rate.",
    evidence="A closed arrival, and classes with targets.",
    fix="An open arrival: poisson, gamma or a trace; the rate below what the closed loop reached.",
    sources=("config", "run"),
    check=check_closed,
    needs=with_load,
)


# --- PL210


def check_alone(facts: Facts) -> Iterator[Finding]:
    """Targets that were only ever asked of one request at a time."""
    load = _load(facts)
    asked = [terms.name for terms in facts.slo if _has_terms(terms)]
    if len(load.requests) < 2 or not asked:
        return
    if facts.run is not None:
        most = most_in_flight([(r.send_s, r.end_s) for r in facts.run.requests])
        if most is None or most > 1:
            return
        seen = fact("requests in flight, most", most)
    else:
        if not load.closed_loop or load.slots != 1 or load.at_s:
            return
        seen = fact("slots", 1, "", CONFIGURED)
    sentence = (
        f"The {len(load.requests):,} requests come one at a time: this is the latency of an idle server, and says "
        "nothing about batching, queueing, speculation or goodput under load."
    )
    fix = Fix(
        words="an open arrival at the rate the service has, or slots = 8 beside slots = 1",
        workload={"arrival": {"kind": "closed", "slots": 8}},
        gain="the batch that the service would run",
    )
    yield ALONE.finding(Severity.WARNING, sentence, fix, (seen, fact("requests", len(load.requests), "", CONFIGURED)))


def most_in_flight(spans: Sequence[tuple[float | None, float | None]]) -> int | None:
    """Most requests between sent and ended at once; None where nothing was sent."""
    known = [(begin, end) for begin, end in spans if begin is not None and end is not None]
    # an end at the moment of a beginning comes first
    edges = sorted([(begin, 1) for begin, _ in known] + [(end, -1) for _, end in known])
    most = now = 0
    for _, step in edges:
        now += step
        most = max(most, now)
    return most if edges else None


ALONE = Rule(
    code="PL210",
    title="one request at a time",
    what="What helps a lone request (a draft model, tensor parallelism, small batches) costs a full server. A result "
    "at one request in flight must not be claimed for load.",
    evidence="From a workload: a closed loop of one slot. From a run: never two requests in flight at once.",
    fix="Several requests at a time: an open arrival, or more slots.",
    sources=("config", "run"),
    check=check_alone,
    needs=with_load,
)


# --- PL211


def check_bursts(facts: Facts) -> Iterator[Finding]:
    """A load whose gaps vary far less than those of a trace of the service."""
    load, trace = _load(facts), facts.trace
    assert trace is not None, "needs()"
    planned = gap_cv(load.at_s)
    if planned is None or planned > _CALM or trace.cv < _BURSTY:
        return
    rate = len(load.at_s) / (load.at_s[-1] - load.at_s[0])
    sentence = (
        f"The gaps between planned requests vary by {planned:.2g} of their mean, those of {trace.name} by "
        f"{trace.cv:.2g}: the queue that its bursts make is not in this load."
    )
    fix = Fix(
        words=f'arrival = {{ kind = "gamma", rate = {rate:.3g}, cv = {trace.cv:.3g} }}, or the trace itself',
        workload={"arrival": {"kind": "gamma", "rate": float(f"{rate:.3g}"), "cv": float(f"{trace.cv:.3g}")}},
        gain="TTFT under the bursts that come",
    )
    evidence = (
        fact("coefficient of variation, planned", planned, "", CONFIGURED),
        fact("coefficient of variation, trace", trace.cv, "", "recomputed"),
        fact("requests of the trace", trace.num_requests),
    )
    yield BURSTS.finding(Severity.WARNING, sentence, fix, evidence, subject=trace.name)


def needs_trace(facts: Facts) -> str:
    if facts.load is None:
        return with_load(facts)
    if facts.trace is None:
        return "a trace of the service (--trace)"
    return "" if len(facts.load.at_s) >= _MIN_ARRIVALS else f"{_MIN_ARRIVALS} planned arrivals"


def gap_cv(at_s: Sequence[float]) -> float | None:
    """Standard deviation of the gaps between arrivals over their mean; None for fewer than two, or none of length."""
    gaps = [b - a for a, b in pairwise(at_s)]
    if len(gaps) < 2 or sum(gaps) <= 0:
        return None
    mean = sum(gaps) / len(gaps)
    return math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) / mean


BURSTS = Rule(
    code="PL211",
    title="calmer than the service",
    what="Poisson arrivals are those of many independent users. Agents, batch jobs and retries come in bursts: public "
    "traces vary by 1.1 to 13 times the mean gap, and a queue grows with the square of that.",
    evidence="The coefficient of variation of planned gaps, and that of --trace.",
    fix="A gamma or weibull arrival of that variation, or the trace itself.",
    sources=("config", "run"),
    check=check_bursts,
    needs=needs_trace,
)


def _load(facts: Facts) -> LoadFacts:
    assert facts.load is not None, "needs()"
    return facts.load


def _has_terms(terms: SloClass) -> bool:
    return any(t is not None for t in (terms.ttft_s, terms.tpot_s, terms.e2e_s, terms.ttfa_s, terms.icl_max_s))


RULES = (LENGTHS, CLOSED, ALONE, BURSTS)
