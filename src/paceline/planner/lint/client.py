"""Numbers that are the client's: PL206 it was too slow or too busy, PL209 it sent requests again.

From a configuration both are foreseen by an earlier run of the client that will send the load.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator

from paceline.contracts.lint import Finding, Fix, Severity
from paceline.planner.lint.facts import ClientFacts, Facts, LoadFacts, RunFacts
from paceline.planner.lint.rule import Rule
from paceline.planner.lint.words import CONFIGURED, fact, ms, share

_BUSY, _FULL = 0.80, 0.95  # of one core: as the lab takes a client's own figures to be doubtful, and void
_ROOM = 0.7  # of one core, that a fix leaves a process at
_MOST_US = 1e6  # for one piece of an answer: more is no measurement
_CLIENT = "an earlier run of the client that will send it (--client)"

# --- PL206

_CAUTIONS = ("client_bound", "client_loop_lag", "client_busy", "client_lost")
_CLIENT_FIX = "run the client on another machine, give it a core of its own, raise --processes, or lower the rate"


def check_client(facts: Facts) -> Iterator[Finding]:
    """A client that sent late, or was too busy to be believed, in a run; or that will be."""
    if facts.run is not None:
        yield from _was_late(facts.run)
        return
    assert facts.client is not None, "needs()"
    assert facts.load is not None, "needs()"
    yield from _will_be_busy(facts.client, facts.load)


def needs_client(facts: Facts) -> str:
    if facts.run is not None:
        return ""
    if facts.client is None:
        return _CLIENT
    health = facts.client.health
    if not 0 < health.cpu_us_per_chunk < _MOST_US or health.num_processes < 1:
        return "a client whose processes and their time were measured"
    if facts.load is None or facts.load.rate_rps is None:
        return "an open workload with a duration (--workload)"
    return ""


def _will_be_busy(client: ClientFacts, load: LoadFacts) -> Iterator[Finding]:
    """A token is a piece of an answer, and each takes what it took before; processes share them evenly."""
    rate, here = load.rate_rps, [r for r in load.requests if r.in_window]
    assert rate is not None, "needs()"
    health = client.health
    pieces = sum(r.num_output for r in here) / load.window_s
    busy = pieces * health.cpu_us_per_chunk / 1e6 / health.num_processes
    if busy <= _BUSY:
        return
    carried = float(f"{rate * _ROOM / busy:.3g}")
    num = math.ceil(health.num_processes * busy / _ROOM)
    sentence = (
        f"Each of {pieces:,.3g} tokens a second takes this client {health.cpu_us_per_chunk:.3g} us, as in "
        f"{client.name}: {share(busy)} of a core for each of its {health.num_processes} processes. What comes later "
        "than it is read is counted as the server's."
    )
    fix = Fix(
        words=f"--processes {num}, on cores of their own; or --rate {carried:g}",
        workload={"rate": carried},
        gain="numbers that are the server's",
    )
    evidence = (
        fact("planned", rate, "req/s", CONFIGURED),
        fact("tokens to read", pieces, "1/s", CONFIGURED),
        fact("client's processor time for each", health.cpu_us_per_chunk, "us", "the client, earlier"),
        fact("processes", health.num_processes, "", "the client, earlier"),
        fact("each process, share of a core", busy, "share", "predicted (as it was earlier)"),
    )
    severity = Severity.ERROR if busy > _FULL else Severity.WARNING
    yield CLIENT.finding(severity, sentence, fix, evidence, subject=client.name)


def _was_late(run: RunFacts) -> Iterator[Finding]:
    found = [caution for caution in run.metrics.cautions if caution.code in _CAUTIONS]
    if not found:
        return
    health = run.info.client
    lags = sorted(r.lag_s for r in run.requests if r.in_window and r.lag_s is not None)
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
    evidence="From a run: lag from planned to sent time, recomputed from the raw records; sent against planned rate; "
    "how late the client's event loop was; its busiest core. From a configuration: the tokens that will come, at the "
    "processor time that each took this client in an earlier run.",
    fix=_CLIENT_FIX[:1].upper() + _CLIENT_FIX[1:] + ".",
    sources=("config", "run"),
    check=check_client,
    needs=needs_client,
)


# --- PL209


def again(ids: Iterable[int]) -> tuple[int, int, int]:
    """Requests that have several records, how many these are, and the first of the requests (-1: none)."""
    counts = {number: count for number, count in Counter(ids).items() if count > 1}
    return len(counts), sum(counts.values()), min(counts, default=-1)


def check_retries(facts: Facts) -> Iterator[Finding]:
    """Requests of a run that stand in its records more than once; or a client that did so before."""
    if facts.run is None:
        assert facts.client is not None, "needs()"
        yield from _will_retry(facts.client)
        return
    num, attempts, first = again(r.id for r in facts.run.requests)
    if not num:
        return
    sentence = (
        f"{num} requests have {attempts} records between them (first: request {first}): something sent them "
        "again, and a success at the second attempt hides the failure and the wait of the first."
    )
    evidence = (
        fact("requests sent more than once", num),
        fact("attempts of these", attempts),
        fact("records", len(facts.run.requests)),
    )
    yield RETRIES.finding(Severity.ERROR, sentence, _NO_RETRIES, evidence)


def _will_retry(client: ClientFacts) -> Iterator[Finding]:
    if not client.num_again:
        return
    sentence = (
        f"The client that is to send this load sent {client.num_again} requests more than once in {client.name}: "
        "where the server refuses or fails, it will again, and the failure will not be counted."
    )
    evidence = (
        fact("requests sent more than once, earlier", client.num_again),
        fact("records of these", client.num_attempts),
    )
    yield RETRIES.finding(Severity.WARNING, sentence, _NO_RETRIES, evidence, subject=client.name)


_NO_RETRIES = Fix(
    words="switch retries off in the client, the SDK and every proxy on the way (max_retries = 0)",
    gain="failures count as failures",
)

RETRIES = Rule(
    code="PL209",
    title="retries hide failures",
    what="A retry turns an error into a slow success: the error rate looks like zero, the load is higher than planned, "
    "and TTFT is counted from the last attempt. paceline's own client never retries.",
    evidence="More than one record of one planned request; from a configuration, in an earlier run of the client.",
    fix="No retries while measuring; one attempt is one record.",
    sources=("config", "run"),
    check=check_retries,
    needs=lambda facts: "" if facts.run is not None or facts.client is not None else _CLIENT,
)

RULES = (CLIENT, RETRIES)
