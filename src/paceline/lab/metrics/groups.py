"""The numbers of the whole run, and of each class, tenant, stream, length bucket and turn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from paceline.contracts.artefact import Estimate, RequestRecord, Window
from paceline.contracts.metrics import GroupMetrics, Latency
from paceline.lab.metrics.columns import Bools, Columns, Floats
from paceline.lab.metrics.fluidity import fluidity
from paceline.lab.metrics.judge import NO_TOKEN, Judgement, Times
from paceline.lab.metrics.latency import Gaps, latency_of
from paceline.lab.stats.bootstrap import mean_estimate
from paceline.lab.stats.dependence import correlation_time
from paceline.lab.stats.proportion import WILSON, share_estimate, wilson

_WHOLE = "not_truncated"  # the validator
ONE_REQUEST = "one request: not a throughput"
_INPUT_EDGES = (128, 512, 2048, 8192, 32768)
_OUTPUT_EDGES = (32, 128, 512, 2048)
_TABLES = ("ttft", "ttft_send", "ttfa", "tpot", "icl_max", "e2e", "e2e_send", "tail", "lag")
_DECISIONS = ("ttft", "ttfa", "tpot", "icl_max", "e2e")
_NEEDS_STREAM = frozenset({"ttft", "ttft_send", "ttfa", "tpot", "icl_max"})


@dataclass(frozen=True, slots=True)
class Run:
    """What every group draws from."""

    columns: Columns
    times: Times
    judgement: Judgement
    window: Window
    planned: Bools  # [n] planned in the window
    on_time: tuple[Floats, Floats]  # [n] tokens in time, tokens
    closed_loop: bool
    icl: Gaps
    itl: Gaps


def bucket_of(record: RequestRecord) -> str:
    """By the lengths that were asked, so that a request is in the same bucket whatever came of it."""
    num_in = record.num_input_asked if record.num_input_asked > 0 else record.prompt_tokens
    num_out = record.num_output_asked if record.num_output_asked > 0 else record.completion_tokens
    return f"in {_range(num_in, _INPUT_EDGES)}, out {_range(num_out, _OUTPUT_EDGES)}"


def _range(value: int, edges: tuple[int, ...]) -> str:
    if value < 0:
        return "unknown"
    low = 0
    for edge in edges:
        if value < edge:
            return f"{low}-{edge - 1}"
        low = edge
    return f"{low}+"


def keys_of(records: list[RequestRecord]) -> Iterator[tuple[str, list[str]]]:
    """(kind, name of each record's group). Tenants and turns only where there is more than one."""
    yield "all", ["all"] * len(records)
    yield "class", [r.slo_class for r in records]
    if any(r.tenant is not None for r in records):
        yield "tenant", [r.tenant or "default" for r in records]
    yield "stream", [r.stream for r in records]
    yield "bucket", [bucket_of(r) for r in records]
    if any(r.turn > 0 for r in records):
        yield "turn", [f"turn {r.turn}" for r in records]


def groups_of(run: Run) -> tuple[GroupMetrics, ...]:
    """ "all" first, then by kind; names in order of their first request, turns and buckets sorted."""
    found: list[GroupMetrics] = []
    for kind, names in keys_of(run.columns.records):
        array = np.asarray(names, dtype=object)
        present = list(dict.fromkeys(np.asarray(names, dtype=object)[run.planned])) if len(names) else []
        if kind == "all":
            present = ["all"]
        if kind in ("bucket", "turn"):
            present.sort(key=lambda name: (len(name), name) if kind == "turn" else (0, name))
        for name in present:
            members = run.planned & (array == name) if len(names) else run.planned
            found.append(_group(run, kind, str(name), members))
    return tuple(found)


def _group(run: Run, kind: str, name: str, members: Bools) -> GroupMetrics:
    c, judged = run.columns, run.judgement
    index = np.flatnonzero(members)
    records = [c.records[i] for i in index]
    seconds = run.window.seconds
    num_ok = int((c.ok & members).sum())
    prompts = [r.prompt_tokens for r in records if r.prompt_tokens >= 0]
    tokens = c.tokens[members & np.isfinite(c.tokens)]
    valid, num_cut = valid_of(records)
    return GroupMetrics(
        kind=kind,
        name=name,
        num_requests=len(records),
        outcomes=_outcomes(run, index.tolist()),
        goodput_rps=goodput(run, members),
        good_tokens_per_s=good_tokens(run, members),
        attainment=attainment(run, members),
        missed={term: count for term, who in judged.missed.items() if (count := int((who & members).sum()))},
        valid=valid,
        num_cut=num_cut,
        num_vacuous=int((judged.vacuous & members).sum()),
        request_rps=num_ok / seconds if seconds > 0 else None,
        input_tokens=sum(prompts),
        output_tokens=round(float(tokens.sum())),
        cached_tokens=sum(r.cached_tokens for r in records if r.cached_tokens >= 0),
        prefix_hit=prefix_hit(records),
        prefix_hit_planned=prefix_hit_planned(records),
        latency=_tables(run, members),
        slo_latency=_decisions(run, members),
        fluidity=fluidity(*run.on_time, members),
    )


def _outcomes(run: Run, index: list[int]) -> dict[str, int]:
    """As the client saw them; a good end without any token is called no_token."""
    none = run.judgement.missed[NO_TOKEN]
    return dict(sorted(Counter(NO_TOKEN if none[i] else run.columns.records[i].outcome.value for i in index).items()))


def valid_of(records: list[RequestRecord]) -> tuple[dict[str, tuple[int, int]], int]:
    """Validator -> (passed, judged), and how many answers were cut: those met their limit of tokens before they were
    whole, which says nothing about what the server enforces. What was cut and passes all the same counts as passed."""
    judged: Counter[str] = Counter()
    passed: Counter[str] = Counter()
    num_cut = 0
    for record in records:
        cut = record.reason == "length" and not record.valid.get(_WHOLE, True)
        failed = {name for name, well in record.valid.items() if not well} - {_WHOLE}
        num_cut += cut and bool(failed)
        for name, well in record.valid.items():
            judged[name] += not (cut and name in failed)
            passed[name] += well
    return {name: (passed[name], judged[name]) for name in sorted(judged)}, num_cut


def attainment(run: Run, members: Bools) -> Estimate:
    """Good requests over those that count, Wilson's interval with the samples they are worth."""
    good = run.judgement.good[members & run.judgement.counts]
    tau = correlation_time(good)
    return share_estimate(float(good.sum()), len(good), n_eff=len(good) / tau)


def goodput(run: Run, members: Bools) -> Estimate:
    """Good requests per second of the window.

    Open loop: the schedule is given, so what is uncertain is which of its requests end well: attainment's interval
    times the rate of those that count. Closed loop: how many are asked depends on the server too: block bootstrap over
    time, or that interval where it is wider (none good in all bins is not surely none).
    """
    seconds = run.window.seconds
    if seconds <= 0:
        return Estimate(unit="req/s", reason="the window is empty")
    good = members & run.judgement.good
    value = float(good.sum()) / seconds
    num = int(members.sum())
    if num <= 1:
        return Estimate(value=value, n=num, unit="req/s", reason=ONE_REQUEST if num else "no requests")
    share = attainment(run, members)
    if share.value is None or share.lo is None or share.hi is None:
        return Estimate(value=value, n=num, unit="req/s", reason=share.reason)
    rate = share.n / seconds
    low, high = share.lo * rate, share.hi * rate
    if run.closed_loop:
        num_bins = max(10, min(int(seconds), num // 5))
        edges = np.linspace(run.window.start_ns / 1e9, run.window.end_ns / 1e9, num_bins + 1)
        counts, _ = np.histogram(run.columns.plan[good], bins=edges)
        found = mean_estimate(counts, scale=num_bins / seconds, unit="req/s")
        if found.lo is not None and found.hi is not None:
            low, high = min(low, found.lo), max(high, found.hi)
        return Estimate(value=value, lo=low, hi=high, n=num, n_eff=found.n_eff, method=found.method, unit="req/s")
    return Estimate(value=value, lo=low, hi=high, n=num, n_eff=share.n_eff, method=WILSON, unit="req/s")


def good_tokens(run: Run, members: Bools) -> Estimate:
    """Tokens of good requests per second. Interval: the token-weighted share that is good, Wilson with Kish's n_eff;
    a request without a known number of tokens weighs what it was asked for."""
    seconds = run.window.seconds
    if seconds <= 0:
        return Estimate(unit="tokens/s", reason="the window is empty")
    c = run.columns
    counted = members & run.judgement.counts
    good = run.judgement.good[counted]
    num = len(good)
    weight = c.tokens[counted]
    if num and np.isnan(weight[good]).any():
        return Estimate(n=num, unit="tokens/s", reason="answers came without a token count")
    value = float(weight[good].sum()) / seconds
    if int(members.sum()) <= 1:
        return Estimate(value=value, n=num, unit="tokens/s", reason=ONE_REQUEST if num else "no requests")
    asked = np.asarray([c.records[i].num_output_asked for i in np.flatnonzero(counted)], dtype=np.float64)
    # what failed was asked for more than it brought
    weight = np.where(good, weight, np.fmax(np.nan_to_num(weight), asked))
    total = float(weight.sum())
    if total <= 0:
        return Estimate(value=value, n=num, unit="tokens/s", reason="no tokens")
    n_eff = total**2 / float(weight @ weight) / correlation_time(good)
    lo, hi = wilson(value * seconds / total, n_eff)
    rate = total / seconds
    return Estimate(
        value=value, lo=lo * rate, hi=hi * rate, n=num, n_eff=n_eff, method=f"{WILSON}, by token", unit="tokens/s"
    )


def prefix_hit(records: list[RequestRecord]) -> Estimate:
    """Cached over prompt tokens of the requests whose usage names both. Interval: normal, of a ratio of sums."""
    known = [(r.cached_tokens, r.prompt_tokens) for r in records if r.cached_tokens >= 0 and r.prompt_tokens > 0]
    if not known:
        return Estimate(reason="the server does not say what came from its cache")
    cached, prompt = (np.asarray(column, dtype=np.float64) for column in zip(*known, strict=True))
    n = len(known)
    ratio = float(cached.sum() / prompt.sum())
    if n < 2:
        return Estimate(value=ratio, n=n, reason="one request: no interval")
    residual = cached - ratio * prompt
    tau = correlation_time(residual)
    error = float(np.sqrt(residual @ residual * tau * n / (n - 1))) / float(prompt.sum())
    lo, hi = max(0.0, ratio - 1.96 * error), min(1.0, ratio + 1.96 * error)
    return Estimate(value=ratio, lo=lo, hi=hi, n=n, n_eff=n / tau, method="ratio of sums 95 %")


def prefix_hit_planned(records: list[RequestRecord]) -> float | None:
    """Shared prefix tokens over input tokens that were asked; None for sessions, whose history is shared as well, and
    for passages, which are hits only after the same ones in the same order."""
    if any(r.turn > 0 or r.num_shared_asked for r in records):
        return None
    asked = sum(r.num_input_asked for r in records)
    return sum(r.num_prefix_asked for r in records) / asked if asked > 0 else None


def _tables(run: Run, members: Bools) -> dict[str, Latency]:
    """Of requests that ended well. `lag` is the client's own and covers all that were sent."""
    tables: dict[str, Latency] = {}
    for name in _TABLES:
        values: Floats = getattr(run.times, name)
        wanted = members & (np.isfinite(run.columns.send) if name == "lag" else run.columns.ok)
        has = wanted & np.isfinite(values)
        tables[name] = latency_of(values[has], num_undefined=int((wanted & ~has).sum()))
    tables["icl"] = run.icl.latency(members)
    tables["itl"] = run.itl.latency(members)
    return tables


def _decisions(run: Run, members: Bools) -> dict[str, Latency]:
    """Of all requests that count, +inf for those that failed or lack the time; vacuous ones are left out.

    Requests that are not streamed are judged by their end, so they are left out of the terms that need a stream.
    """
    tables: dict[str, Latency] = {}
    c = run.columns
    for name in _DECISIONS:
        values: Floats = getattr(run.times, name)
        use = members & run.judgement.counts
        if name in _NEEDS_STREAM:
            use &= c.streamed
        if name in ("tpot", "icl_max"):
            use &= ~(c.ok & run.times.vacuous)
        tables[name] = latency_of(np.where(c.ok & np.isfinite(values), values, np.inf)[use])
    return tables
