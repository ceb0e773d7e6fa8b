"""Results that are not the server's, or not one change's: PL205 two changes, PL206 the client, PL209 hidden retries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from paceline.contracts.lint import Finding, Fix, Severity
from paceline.planner.lint.facts import Change, Facts, PairFacts
from paceline.planner.lint.rule import Rule
from paceline.planner.lint.words import CONFIGURED, fact, listed, ms

# --- PL205


def check_changes(facts: Facts) -> Iterator[Finding]:
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
        yield CHANGES.finding(Severity.ERROR, sentence, fix, evidence, subject=f"{pair.before} -> {pair.after}")


def _names(pair: PairFacts, group: str) -> str:
    return listed([change.name for change in pair.changes if change.group == group])


def _is_option(change: Change) -> bool:
    return change.group not in ("workload", "slo", "model")


CHANGES = Rule(
    code="PL205",
    title="two things changed",
    what="Better or worse after two changes says nothing about either: they may even have opposite effects. Options "
    "that the server derives from others count as well.",
    evidence="Every option that differs between two resolved configurations, by group of variables; and workload, "
    "targets or model where they differ.",
    fix="One group at a time, everything else held fixed.",
    sources=("pair", "experiment"),
    check=check_changes,
    needs=lambda facts: "" if facts.pairs else "another configuration, run or experiment (--against)",
)


# --- PL206

_CLIENT = ("client_bound", "client_loop_lag", "client_busy", "client_lost")
_CLIENT_FIX = "run the client on another machine, give it a core of its own, raise --processes, or lower the rate"


def check_client(facts: Facts) -> Iterator[Finding]:
    """A client that sent late, or was too busy to be believed, in a run."""
    assert facts.run is not None, "needs()"
    found = [caution for caution in facts.run.metrics.cautions if caution.code in _CLIENT]
    if not found:
        return
    health = facts.run.info.client
    lags = sorted(r.lag_s for r in facts.run.requests if r.in_window and r.lag_s is not None)
    evidence = [
        fact("planned", health.offered_rps, "req/s", CONFIGURED),
        fact("sent", health.achieved_rps, "req/s", "the client"),
        fact("event loop late, p99", health.loop_lag_p99_ms, "ms", "the client"),
        fact("busiest process, share of a core", health.cpu_share_max, "share", "the client"),
    ]
    if lags:
        worst = lags[min(len(lags) - 1, int(0.99 * len(lags)))]
        evidence.insert(0, fact("planned to sent, p99", 1e3 * worst, "ms"))
        evidence.insert(1, fact("planned to sent, most", 1e3 * lags[-1], "ms"))
    severe = [caution for caution in found if caution.invalidates]
    sentence = " ".join(caution.sentence for caution in severe or found)
    if lags and severe:
        sentence += f" The latest request was sent {ms(lags[-1])} after its time."
    severity = Severity.ERROR if severe else Severity.WARNING
    fix = Fix(words=_CLIENT_FIX, gain="numbers that are the server's")
    yield CLIENT.finding(severity, sentence, fix, tuple(evidence))


CLIENT = Rule(
    code="PL206",
    title="the client was the bottleneck",
    what="A client that sends late, reads late or runs out of a core measures itself: its own queue looks like the "
    "server's latency, and the rate it asks for is never reached.",
    evidence="Lag from planned to sent time, recomputed from the raw records; sent against planned rate; how late the "
    "client's event loop was; its busiest core.",
    fix=_CLIENT_FIX[:1].upper() + _CLIENT_FIX[1:] + ".",
    sources=("run",),
    check=check_client,
    needs=lambda facts: "" if facts.run is not None else "a run",
)


# --- PL209


def check_retries(facts: Facts) -> Iterator[Finding]:
    """Requests of a run that stand in its records more than once."""
    assert facts.run is not None, "needs()"
    counts = Counter(r.id for r in facts.run.requests)
    again = sorted(number for number, count in counts.items() if count > 1)
    if not again:
        return
    attempts = sum(counts[number] for number in again)
    sentence = (
        f"{len(again)} requests have {attempts} records between them (first: request {again[0]}): something sent them "
        "again, and a success at the second attempt hides the failure and the wait of the first."
    )
    fix = Fix(
        words="switch retries off in the client, the SDK and every proxy on the way (max_retries = 0)",
        gain="failures count as failures",
    )
    evidence = (
        fact("requests sent more than once", len(again)),
        fact("attempts of these", attempts),
        fact("records", len(facts.run.requests)),
    )
    yield RETRIES.finding(Severity.ERROR, sentence, fix, evidence)


RETRIES = Rule(
    code="PL209",
    title="retries hide failures",
    what="A retry turns an error into a slow success: the error rate looks like zero, the load is higher than planned, "
    "and TTFT is counted from the last attempt. paceline's own client never retries.",
    evidence="More than one record of one planned request.",
    fix="No retries while measuring; one attempt is one record.",
    sources=("run",),
    check=check_retries,
    needs=lambda facts: "" if facts.run is not None else "a run",
)

RULES = (CHANGES, CLIENT, RETRIES)
