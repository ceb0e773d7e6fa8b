"""PL105: affinity to cached prefixes sends too much to one replica."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from paceline.contracts.lint import Finding, Fix, Severity
from paceline.planner.lint.facts import Asked, EngineFacts, Facts, LoadFacts, Timed
from paceline.planner.lint.fleet import FleetFacts
from paceline.planner.lint.prices import Prices
from paceline.planner.lint.rule import Rule
from paceline.planner.lint.words import CONFIGURED, RECOMPUTED, fact, ms, share

_HOT = 1.3  # most loaded replica over the mean
_FULL = 0.8  # of what a replica carries: beyond it queues grow long before they grow for ever
_MIN_REQUESTS = 8  # of a replica
BY_PREFIX = {"longest-prefix": 0.0, "prefix-affinity": 0.3}  # router -> share of the prompt from which a hit binds
_FIX = Fix(
    words="--router predicted-seconds: a hit is weighed against what waits before it",
    fleet={"router": "predicted-seconds"},
)


def check(facts: Facts) -> Iterator[Finding]:
    fleet = facts.fleet
    assert fleet is not None, "needs()"
    if facts.run is not None:
        yield from _measured(fleet, facts.run.requests)
    elif fleet.router in BY_PREFIX:
        assert facts.load is not None, "needs()"
        assert facts.prices is not None, "needs()"
        assert facts.engine is not None, "needs()"
        yield from _predicted(fleet, facts.load, facts.prices, facts.engine)


def needs(facts: Facts) -> str:
    fleet = facts.fleet
    if fleet is None or fleet.num_replicas < 2:
        return "several replicas (--replicas)"
    if not fleet.even:
        return "replicas that are alike all the time: none scaled, failed or apart from the others"
    if facts.run is not None:
        told = any(r.replica is not None for r in facts.run.requests)
        return "" if told else "records that name the replica"
    if facts.load is None or facts.load.rate_rps is None:
        return "an open workload with a duration (--workload)"
    if facts.prices is None or facts.engine is None or facts.engine.max_num_seqs is None:
        return "the cost model of a device"
    return ""


# --- from a configuration


def _predicted(fleet: FleetFacts, load: LoadFacts, prices: Prices, engine: EngineFacts) -> Iterator[Finding]:
    """Groups of requests that begin alike stay together, so even the best division of them over the replicas is uneven
    where one is popular. Divided without regard to prefixes, each replica computes each prefix once; or every time,
    where it cannot keep them."""
    rows = engine.max_num_seqs
    assert rows is not None, "needs()"
    here = [r for r in load.requests if r.in_window] or list(load.requests)
    if not here:
        return  # a rate so low that nothing comes
    least = BY_PREFIX[fleet.router]
    context = max(1, round(sum(r.num_input + r.num_output / 2 for r in here) / len(here)))
    step = prices.decode(rows, context)
    prefill = {num: prices.prefill_ms(num) / max(1, num) for num in {r.num_input for r in here}}  # ms per token
    bound: dict[int, float] = {}
    prefixes: dict[int, Asked] = {}
    free_ms = saved_ms = 0.0
    for r in here:
        work_ms = (r.num_input - r.num_cached) * prefill[r.num_input] + r.num_output * step.value / rows
        saved_ms += r.num_cached * prefill[r.num_input]
        if r.group is not None and r.num_prefix > 0 and r.num_prefix >= least * r.num_input:
            bound[r.group] = bound.get(r.group, 0.0) + work_ms
            prefixes.setdefault(r.group, r)
        else:
            free_ms += work_ms
    if not bound:
        return
    num = fleet.num_replicas
    loads = [0.0] * num
    for group_ms in sorted(bound.values(), reverse=True):  # the largest first, to whoever has least
        loads[loads.index(min(loads))] += group_ms
    loads = _filled(loads, free_ms)
    mean = sum(loads) / num
    kept = sum(prices.kv_bytes(r.num_prefix) for r in prefixes.values()) + rows * prices.kv_bytes(context)
    fits = engine.kv_room_bytes is not None and kept <= engine.kv_room_bytes
    again_ms = sum(r.num_prefix * prefill[r.num_input] for r in prefixes.values()) * (num - 1) if fits else saved_ms
    hot, even = (each / 1e3 / load.window_s for each in (max(loads), (sum(loads) + again_ms) / num))
    if max(loads) <= _HOT * mean or hot <= _FULL or hot <= even:
        return
    popular = max(bound, key=lambda group: bound[group])
    of_all = sum(r.group == popular for r in here) / len(here)
    sentence = (
        f"{fleet.router} keeps each of {len(bound)} prefixes on one replica, and the most popular one begins "
        f"{share(of_all)} of all requests: however they lie, the busiest of {num} replicas gets "
        f"{max(loads) / mean:.2g} times the mean, {share(hot)} of what it carries. Evenly, with every prefix computed "
        f"on each replica, it would be {share(even)}."
    )
    origin = f"predicted ({step.tier})"
    evidence = (
        fact("replicas", num, "", CONFIGURED),
        fact("prefixes", len(bound), "", CONFIGURED),
        fact("requests with the most popular one", of_all, "share", CONFIGURED),
        fact("busiest replica over the mean", max(loads) / mean, "x", origin),
        fact("busiest replica, of what it carries", hot, "share", origin),
        fact("each replica, evenly", even, "share", origin),
        fact("prefill that hits save", saved_ms / 1e3 / load.window_s / num, "share", origin),
        fact("prefill that even routing adds", again_ms / 1e3 / load.window_s / num, "share", origin),
    )
    fix = Fix(words=_FIX.words, fleet=_FIX.fleet, gain=f"busiest replica {share(hot)} -> about {share(even)}")
    severity = Severity.ERROR if hot >= 1 > even else Severity.WARNING
    yield RULE.finding(severity, sentence, fix, evidence, subject=fleet.router)


def _filled(loads: Sequence[float], free: float) -> list[float]:
    """What is bound nowhere goes to those with least, until they are level."""
    done = sorted(loads)
    for i in range(1, len(done) + 1):
        level = done[i] if i < len(done) else float("inf")
        room = sum(level - each for each in done[:i])
        if room >= free:
            even = (sum(done[:i]) + free) / i
            return [even] * i + done[i:]
    return done


# --- from a run


class _Replica(NamedTuple):
    number: int
    num_requests: int
    num_open: float  # on average over the run
    ttft_s: float  # mean
    queue_s: float
    num_cached: float  # prompt tokens of a request that came from the cache, mean


def _measured(fleet: FleetFacts, requests: Sequence[Timed]) -> Iterator[Finding]:
    told = [r for r in requests if r.replica is not None and r.send_s is not None and r.end_s is not None]
    begin, end = min((r.send_s or 0.0 for r in told), default=0.0), max((r.end_s or 0.0 for r in told), default=0.0)
    if end <= begin:
        return
    by_replica: dict[int, list[Timed]] = {}
    for r in told:
        assert r.replica is not None
        by_replica.setdefault(r.replica, []).append(r)
    each = [_replica(index, own, end - begin) for index, own in sorted(by_replica.items())]
    mean = sum(one.num_open for one in each) / max(fleet.num_replicas, len(each))
    hot = max(each, key=lambda one: one.num_open)
    if fleet.router and fleet.router not in BY_PREFIX:
        return  # whatever made it hot, it was not affinity
    if mean <= 0 or hot.num_open <= _HOT * mean or hot.num_requests < _MIN_REQUESTS:
        return
    rest = [r for r in told if r.replica != hot.number]
    token_s = _token_s(rest) or _token_s(told)
    if token_s is None or not hot.num_cached:
        return  # nothing was reused
    elsewhere = [r.first_s - r.send_s for r in rest if r.first_s is not None and r.send_s is not None]
    # of replicas that answered nothing, only this is known: nobody would have queued there
    others = _mean(elsewhere) if elsewhere else hot.ttft_s - hot.queue_s
    saved_s, lost_s = hot.num_cached * token_s, hot.ttft_s - others
    if lost_s <= saved_s:
        return
    ratio = hot.num_open / mean
    worth = f"the {hot.num_cached:,.0f} prompt tokens that a request found in its cache are worth {ms(saved_s)}."
    if elsewhere:
        sentence = (
            f"Replica {hot.number} had {ratio:.2g} times the open requests of the mean of {fleet.num_replicas}, and "
            f"its first tokens came {ms(lost_s)} later than those of the others; {worth}"
        )
        beside = fact("TTFT of the others, mean", 1e3 * others, "ms")
    else:
        sentence = (
            f"Replica {hot.number} of {fleet.num_replicas} answered everything, and no other gave a first token: a "
            f"request waited {ms(lost_s)} in its queue, and {worth}"
        )
        beside = fact("requests of the others that got a first token", 0)
    evidence = (
        fact("router", fleet.router or "not told", "", CONFIGURED),
        fact("busiest replica over the mean, open requests", ratio, "x"),
        fact("open requests there, mean", hot.num_open),
        fact("requests there", hot.num_requests),
        fact("requests of a replica, mean", len(told) / max(fleet.num_replicas, len(each))),
        fact("TTFT there, mean", 1e3 * hot.ttft_s, "ms"),
        fact("of that in the queue", 1e3 * hot.queue_s, "ms"),
        beside,
        fact("cached prompt tokens there, of a request", hot.num_cached, "tokens"),
        fact(f"prefill of a token, {'of the others' if rest else 'there'}", 1e3 * token_s, "ms", RECOMPUTED),
    )
    gain = f"up to {ms(lost_s - saved_s)} of TTFT for a request of that replica"
    fix = Fix(words=_FIX.words, fleet=_FIX.fleet, gain=gain)
    yield RULE.finding(Severity.ERROR, sentence, fix, evidence, subject=fleet.router)


def _replica(number: int, requests: Sequence[Timed], seconds: float) -> _Replica:
    return _Replica(
        number=number,
        num_requests=len(requests),
        num_open=sum((r.end_s or 0.0) - (r.send_s or 0.0) for r in requests) / seconds,
        ttft_s=_mean([r.first_s - r.send_s for r in requests if r.first_s is not None and r.send_s is not None]),
        queue_s=_mean([r.queue_s for r in requests if r.queue_s is not None]),
        num_cached=_mean([float(r.num_cached) for r in requests if r.num_cached is not None]),
    )


def _token_s(requests: Sequence[Timed]) -> float | None:
    """Seconds of prefill for each prompt token that was computed, of requests that computed many: those of few mostly
    wait for a step to end."""
    known = [
        (r.num_prompt - r.num_cached, r.prefill_s)
        for r in requests
        if r.prefill_s and r.num_prompt is not None and r.num_cached is not None
    ]
    most = max((tokens for tokens, _ in known), default=0)
    many = [(tokens, seconds) for tokens, seconds in known if 2 * tokens >= most > 0]
    return sum(seconds for _, seconds in many) / sum(tokens for tokens, _ in many) if many else None


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


RULE = Rule(
    code="PL105",
    title="prefix routing made a hot spot",
    what="Affinity sends a popular prefix to one replica: it queues while others idle, and the prefill that its hits "
    "saved is less than the wait.",
    evidence="Most loaded replica over the mean, against the prefill that its hits saved. From a configuration: the "
    "best that can be done with the workload's prefixes when each stays on one replica, priced. From a run: open "
    "requests, TTFT and cached tokens of each replica, from the raw records.",
    fix="Routing by predicted seconds, or a bound on the imbalance.",
    sources=("config", "run"),
    check=check,
    needs=needs,
)
