"""Windows that say less than they seem to: PL204 too few requests for the percentile, PL212 no steady state."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

from paceline.contracts.lint import Finding, Fix, Severity
from paceline.contracts.slo import min_samples
from paceline.planner.lint.facts import Facts, LoadFacts, RunFacts
from paceline.planner.lint.rule import Rule
from paceline.planner.lint.words import CONFIGURED, fact, ms

_BELOW = 0.8  # of what saturates: beyond it queues grow long before they grow for ever


# --- PL204


def check_thin(facts: Facts) -> Iterator[Finding]:
    load = facts.load
    assert load is not None, "needs()"
    counted = Counter(request.slo_class for request in load.requests if request.in_window)
    for terms in facts.slo:
        if not 0 < terms.share < 1:
            continue
        have, need = counted[terms.name], min_samples(terms.share)
        if have == 0 or have >= need:
            continue
        percentile = f"p{100 * terms.share:g}"
        sentence = (
            f"{have} requests of class {terms.name} lie in the window. That {100 * terms.share:g} % of all meet its "
            f"targets can be shown, with 95 % confidence, from {need} on, and only if none of them is late."
        )
        longer = _longer(load, need / have)
        fix = Fix(words=longer[0], workload=longer[1], gain=f"an upper bound of {percentile}")
        evidence = (
            fact("requests in the window", have, "", CONFIGURED if facts.run is None else "recomputed"),
            fact(f"needed for {percentile}", need, "", "ln(0.05) / ln(share)"),
        )
        yield THIN.finding(Severity.WARNING, sentence, fix, evidence, subject=terms.name)


def needs_thin(facts: Facts) -> str:
    if facts.load is None:
        return "a workload (--workload)"
    return "" if facts.slo else "classes with targets (--slo)"


def _longer(load: LoadFacts, factor: float) -> tuple[str, dict[str, float]]:
    """Half as much again as is needed, for arrivals are random."""
    if load.window_s > 0 and not load.closed_loop:
        seconds = math.ceil(1.5 * factor * load.window_s)
        return f"duration_s = {seconds} (--duration {seconds})", {"duration_s": seconds}
    num = math.ceil(1.5 * factor * len(load.requests))
    return f"num_requests = {num} (--num-requests {num})", {"num_requests": num}


THIN = Rule(
    code="PL204",
    title="too few requests for the percentile",
    what="The p99 of a hundred requests is nearly their largest and moves from run to run. A share can be shown only "
    "with enough requests: 59 for 95 %, 299 for 99 %, 2,995 for 99.9 %.",
    evidence="Requests of each class in the window, against the least for which a one-sided 95 % bound exists.",
    fix="A longer window or more requests; or a smaller share.",
    sources=("config", "run"),
    check=check_thin,
    needs=needs_thin,
)


# --- PL212


def check_steady(facts: Facts) -> Iterator[Finding]:
    if facts.run is not None:
        yield from _unsteady(facts.run)
        return
    load, engine, prices = facts.load, facts.engine, facts.prices
    assert load is not None, "needs()"
    assert engine is not None, "needs()"
    assert prices is not None, "needs()"
    rate, rows = load.rate_rps, engine.max_num_seqs
    num = 1 if facts.fleet is None else facts.fleet.num_replicas
    assert rate is not None, "needs()"
    assert rows is not None, "needs()"
    here = [r for r in load.requests if r.in_window] or list(load.requests)
    if not here:
        return  # a rate so low that nothing comes
    cached = engine.prefix_caching is not False
    num_input = sum(r.num_input for r in here) / len(here)
    computed = sum(r.num_input - (r.num_cached if cached else 0) for r in here) / len(here)
    num_output = sum(r.num_output for r in here) / len(here)
    step = prices.decode(rows, max(1, round(num_input + num_output / 2)))
    prefill_ms = prices.prefill_ms(max(1, round(computed)))
    each_s = (prefill_ms + num_output * step.value / rows) / 1e3
    least_s = (prefill_ms * step.lo / step.value + num_output * step.lo / rows) / 1e3 if step.value > 0 else each_s
    if rate * each_s < num:
        return
    carried = _BELOW * num / each_s
    what = "it" if num == 1 else f"{num} replicas"
    sentence = (
        f"Each request takes {ms(each_s)} of the device with every row full, so {num / each_s:.3g} requests/s saturate "
        f"{what} and {rate:.3g} are planned: queue and TTFT grow for as long as the load lasts."
    )
    fix = Fix(
        words=f"--rate {carried:.3g}, or more replicas",
        workload={"rate": float(f"{carried:.3g}")},
        gain="a window in which a percentile is a property of the server",
    )
    evidence = (
        fact("planned", rate, "req/s", CONFIGURED),
        fact("saturated at", num / each_s, "req/s", f"predicted ({step.tier})"),
        fact("at most", num / least_s, "req/s", f"predicted ({step.tier})"),
        fact("prompt tokens to compute, mean", computed, "tokens", CONFIGURED),
        fact("prefill of a request", prefill_ms, "ms", f"predicted ({step.tier})"),
        fact("decode step of full rows", step.value, "ms", f"predicted ({step.tier})"),
        fact("output tokens, mean", num_output, "tokens", CONFIGURED),
    )
    severity = Severity.ERROR if rate * least_s >= num else Severity.WARNING
    yield STEADY.finding(severity, sentence, fix, evidence)


def needs_steady(facts: Facts) -> str:
    if facts.run is not None:
        return ""
    if facts.load is None or facts.load.rate_rps is None:
        return "an open workload with a duration (--workload)"
    if facts.prices is None or facts.engine is None or facts.engine.max_num_seqs is None:
        return "the cost model of a device"
    return ""


def _unsteady(run: RunFacts) -> Iterator[Finding]:
    steady, window = run.metrics.steady, run.metrics.window
    if steady.answer in ("steady", "unknown"):
        return
    num = sum(r.ok and r.in_window for r in run.requests)
    evidence = [
        fact("the window is", steady.answer),
        fact("window", window.seconds, "s"),
        fact("requests that ended well", num),
    ]
    for name, value, unit in (
        ("trend, p", steady.trend_p, ""),
        ("shift, p", steady.shift_p, ""),
        ("in flight, slope", steady.in_flight_slope, "1/s"),
        ("warm-up to drop", steady.warmup_s or None, "s"),
    ):
        if value is not None:
            evidence.append(fact(name, value, unit))
    if steady.answer == "saturated":
        reached = _ended_rps(run)
        rate = float(f"{_BELOW * reached:.3g}")
        fix = Fix(words=f"--rate {rate:g}, below what it carried", workload={"rate": rate} if rate > 0 else {})
    elif steady.answer == "warming":
        warmup = math.ceil(max(steady.warmup_s, 0.25 * window.seconds))
        fix = Fix(words=f"warmup_s = {warmup} more, or a longer window", workload={"warmup_s": warmup})
    elif steady.answer == "too short":
        seconds = math.ceil(window.seconds * max(2.0, 30.0 / max(1, num)))
        fix = Fix(words=f"a window of {seconds} s", workload={"duration_s": seconds})
    else:
        fix = Fix(words="find what changed at that moment, or measure again; a jump is no property of the server")
    severity = Severity.WARNING if steady.answer in ("too short", "warming") else Severity.ERROR
    sentence = f"The window is not one regime ({steady.answer}): {steady.sentence}"
    yield STEADY.finding(severity, sentence, fix, tuple(evidence))


def _ended_rps(run: RunFacts) -> float:
    """Answers that ended within the window, per second: what it carried, whenever they were asked for."""
    window = run.metrics.window
    ends = (1e9 * r.end_s for r in run.requests if r.ok and r.end_s is not None)
    return sum(window.start_ns <= end < window.end_ns for end in ends) / window.seconds if window.seconds > 0 else 0.0


STEADY = Rule(
    code="PL212",
    title="no steady state",
    what="A mean or percentile over a window in which the server warms up, drowns or changes is a number about the "
    "window. Above saturation every figure grows with the length of the run.",
    evidence="From a configuration: planned rate against what the cost model says saturates the device, with every row "
    "full (the most it could carry). From a run: the steady-state test, recomputed: trend, jump, growing queue.",
    fix="A rate below saturation, a warm-up that is dropped, a longer window.",
    sources=("config", "run"),
    check=check_steady,
    needs=needs_steady,
)

RULES = (THIN, STEADY)
