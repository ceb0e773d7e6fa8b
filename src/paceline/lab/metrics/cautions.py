"""What a reader must know before trusting the numbers. A caution has a code, a sentence, and may void the run.

A run is void when its numbers speak about the client or a broken log rather than about the server.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from paceline.contracts.artefact import Caution, Estimate, RunInfo, TokenSource, Window
from paceline.contracts.metrics import GroupMetrics, Steady
from paceline.lab.metrics.columns import Bools, Columns, Floats
from paceline.lab.metrics.flow import InFlight
from paceline.lab.metrics.judge import Judgement, Times

_LAG_FLOOR_S = 0.005
_LAG_SHARE = 0.01  # of the tightest TTFT target
_ACHIEVED = 0.99
_REACHED = 0.9  # of the planned rate, against a server that takes no time: an earlier calibration may be for a bit less
_BUSY, _FULL = 0.80, 0.95  # of one core
_HIT_TOLERANCE = 0.02
_LITTLE = 0.05
_OWN_DOING = ("client_cancel", "disconnect")  # outcomes that the client chose


def client_cautions(info: RunInfo, times: Times, planned: Bools) -> Iterator[Caution]:
    """The client's own health: if it was late or busy, latencies are partly its own.

    A closed loop plans a request as it sends it, so its lag is 0 and says nothing; streams with a schedule beside it,
    and later turns, are judged all the same.
    """
    health = info.client
    targets = [c.ttft_s for c in info.slo if c.ttft_s is not None]
    limit = max(_LAG_FLOOR_S, _LAG_SHARE * min(targets)) if targets else _LAG_FLOOR_S
    lags = times.lag[planned & np.isfinite(times.lag)]
    if info.closed_loop:
        yield Caution(
            code="closed_loop",
            sentence="Closed loop: each request waited for the one before it, so nothing is said about a given rate.",
        )
        lags = lags[lags > 0]
    if len(lags):
        # of fewer than a hundred the p99 is the largest: one late wake-up of the machine would void every short run
        rank = min(int(np.ceil(0.99 * len(lags) - 1e-9)) - 1, len(lags) - 2)
        worst = float(np.sort(lags)[max(0, rank)])
        if worst > limit:
            yield Caution(
                code="client_bound",
                sentence=f"The client's own queue: p99 from planned to sent is {_ms(worst)}; {_ms(limit)} is allowed."
                + _why_late(info, worst, limit),
                invalidates=True,
            )
    if health.offered_rps > 0 and health.achieved_rps < _ACHIEVED * health.offered_rps:
        yield Caution(
            code="client_bound",
            sentence=f"The client sent {health.achieved_rps:.4g} of {health.offered_rps:.4g} planned requests/s.",
            invalidates=True,
        )
    if 0 < health.calibrated_rps < _REACHED * health.offered_rps:
        yield Caution(
            code="client_bound",
            sentence=f"The client reached {health.calibrated_rps:.4g} requests/s against a server that takes no time; "
            f"{health.offered_rps:.4g} were planned.",
            invalidates=True,
        )
    loop = health.loop_lag_p99_ms / 1e3
    if loop > limit:
        yield Caution(
            code="client_loop_lag",
            sentence=f"The client's event loop was up to {_ms(loop)} late (p99), and so are the times it wrote down.",
            invalidates=loop > 10 * limit,
        )
    if health.cpu_share_max > _BUSY:
        yield Caution(
            code="client_busy",
            sentence=f"The busiest client process used {100 * health.cpu_share_max:.0f} % of a core.",
            invalidates=health.cpu_share_max > _FULL,
        )


def _why_late(info: RunInfo, worst: float, limit: float) -> str:
    """What the client's own health and its calibration say about the reason of its lag; empty where nothing does."""
    health = info.client
    loop, null = health.loop_lag_p99_ms / 1e3, health.calibrated_lag_p99_ms / 1e3
    if 0 < loop < worst / 4:
        return " Its event loop was on time: many were due at once, or a limit on requests in flight held them back."
    if not health.calibrated_rps:
        return ""
    if null > limit:
        return f" It was {_ms(null)} against a server that takes no time: this client is slow."
    return (
        f" It was {_ms(null)} against a server that takes no time: the server under test, or something else, takes the "
        "client's cores. Leave it one, or run the client on another machine."
    )


def log_cautions(info: RunInfo, columns: Columns, planned: Bools, window: Window) -> Iterator[Caution]:
    """Is the log whole, and does it hold what was planned?"""
    c = columns
    if info.status != "complete":
        yield Caution(
            code="partial",
            sentence=f"The run was interrupted; the window ends {window.end_ns / 1e9:.1f} s after its start.",
        )
    if info.cache.get("ok") is False:
        yield Caution(code="cache_protocol", sentence=_sentence(info.cache.get("sentence")), invalidates=True)
    if info.problems:
        yield Caution(
            code="client_lost",
            sentence="A process of the load generator was lost, and with it the records of its requests.",
            invalidates=True,
        )
    if window.seconds <= 0:
        yield Caution(code="no_window", sentence="The measured window is empty: no rate can be had.", invalidates=True)
    num = int(planned.sum())
    if num == 1:
        yield Caution(code="not_a_throughput", sentence="One request in the window: its rate is not a throughput.")
    elif num == 0:
        yield Caution(code="no_requests", sentence="No request was planned in the window.", invalidates=True)
    repeated = [i for i, count in Counter(r.id for r in c.records).items() if count > 1]
    if repeated:
        yield Caution(
            code="duplicate_id",
            sentence=f"{len(repeated)} requests have more than one record (first: {repeated[0]}): a hidden retry.",
            invalidates=True,
        )
    unplaced = int(np.isnan(c.plan).sum())
    if unplaced:
        yield Caution(
            code="unplaced",
            sentence=f"{unplaced} requests never got a planned time and are in no window: turns not reached.",
        )
    lost = sum(r.num_lost for r in c.records)
    if lost:
        yield Caution(code="lost_events", sentence=f"{lost} events of the server could not be read.")
    known = {s.name for s in info.slo}
    unknown = sorted({r.slo_class for r in c.records} - known)
    if not info.slo:
        yield Caution(code="no_slo", sentence="No SLO was set: every request that ended well is good.")
    elif unknown:
        yield Caution(code="unknown_class", sentence=f"No targets are known for class {', '.join(unknown)}.")
    blind = {s.name for s in info.slo if s.e2e_s is None and any((s.ttft_s, s.ttfa_s, s.tpot_s, s.icl_max_s))}
    num_blind = sum(not r.streamed and r.slo_class in blind for r in c.records)
    if num_blind:
        yield Caution(
            code="unstreamed_terms",
            sentence=f"{num_blind} requests are not streamed and their class has no e2e target: they cannot be good.",
        )


def token_cautions(columns: Columns, judgement: Judgement, planned: Bools) -> Iterator[Caution]:
    """Do the counts agree with each other, and with what was asked?"""
    c = columns
    off = np.abs(c.chunk_tokens - c.tokens) > np.maximum(1.0, 0.005 * c.tokens)  # nan: no
    if off.any():
        first = int(np.flatnonzero(off)[0])
        yield Caution(
            code="token_count_mismatch",
            sentence=f"In {int(off.sum())} requests the chunks' tokens do not add up to usage (request "
            f"{c.records[first].id}: {c.chunk_tokens[first]:.0f} against {c.tokens[first]:.0f}); usage is taken.",
        )
    bare = [r for r in c.records if r.token_source is TokenSource.CHUNKS]
    if bare:
        yield Caution(
            code="no_token_counts",
            sentence=f"{len(bare)} requests came without usage: chunks are not tokens, so their TPOT and token rates "
            "are undefined, and a TPOT target is missed. Ask for the longest gap (icl_max) instead.",
        )
    guessed = int(sum(r.token_source is TokenSource.FINAL_USAGE and r.streamed for r in c.records))
    if guessed:
        yield Caution(
            code="spread_tokens",
            sentence=f"{guessed} requests name only their total of tokens: the first chunk counts as one, the others "
            "share the rest, so TPOT is high by the bundle of the first chunk and ITL is an average.",
        )
    yield from _asked(columns, planned)
    if judgement.vacuous.any():
        yield Caution(
            code="vacuous",
            sentence=f"{int(judgement.vacuous.sum())} requests are good with all tokens in one chunk: no TPOT.",
        )
    prompts = Counter(r.prompt_sha256 for r in c.records if r.prompt_sha256)
    repeats = sum(count - 1 for count in prompts.values())
    if repeats:
        yield Caution(
            code="equal_prompts", sentence=f"{repeats} prompts repeat an earlier one of the run: caches may answer."
        )


def _asked(columns: Columns, planned: Bools) -> Iterator[Caution]:
    records = [r for r, inside in zip(columns.records, planned, strict=True) if inside]
    first_turns = [r for r in records if r.prompt_tokens >= 0 and r.turn == 0]  # later ones carry a history as well
    inputs = [(r.prompt_tokens, r.num_input_asked) for r in first_turns if r.num_input_asked > 0]
    wrong = [(got, want) for got, want in inputs if abs(got - want) > max(2.0, 0.02 * want)]
    if len(wrong) > 0.05 * len(inputs):
        yield Caution(
            code="prompt_length",
            sentence=f"{len(wrong)} of {len(inputs)} prompts are not as long as asked (first: {wrong[0][0]} tokens for "
            f"{wrong[0][1]}).",
        )
    ended = np.flatnonzero(planned & columns.ok & np.isfinite(columns.tokens))
    outputs = [(float(columns.tokens[i]), columns.records[i].num_output_asked) for i in ended]
    outputs = [(got, want) for got, want in outputs if want > 0]
    short = [(got, want) for got, want in outputs if abs(got - want) > max(1.0, 0.02 * want)]
    if len(short) > 0.05 * len(outputs):
        yield Caution(
            code="output_length",
            sentence=f"{len(short)} of {len(outputs)} answers are not as long as asked (first: {short[0][0]:.0f} "
            f"tokens for {short[0][1]}).",
        )


def window_cautions(
    whole: GroupMetrics, flow: InFlight, steady: Steady, output: Estimate, num_not_sent: int
) -> Iterator[Caution]:
    """What the window's own numbers say against themselves."""
    ttft = whole.slo_latency["ttft"]
    thin = [name for name in ("p95", "p99") if "needs" in getattr(ttft, name).reason]
    if whole.num_requests > 1 and thin:
        yield Caution(
            code="thin_percentile",
            sentence=f"{' and '.join(thin)} refused: {ttft.n} requests; p95 needs 59, p99 needs 299.",
        )
    if flow.littles_law_error is not None and flow.littles_law_error > _LITTLE and whole.num_requests > 1:
        why = flow.reason or "the log is wrong, or load and service are not in balance"
        yield Caution(
            code="littles_law",
            sentence=f"Requests in flight are {100 * flow.littles_law_error:.0f} % off rate x mean E2E: {why}.",
        )
    if steady.answer not in ("steady", "unknown"):
        yield Caution(code="unsteady", sentence=f"{steady.answer.capitalize()}: {steady.sentence}")
    failed = {name: count for name, count in whole.outcomes.items() if name not in ("ok", *_OWN_DOING)}
    if failed:
        told = ", ".join(f"{name} {count}" for name, count in failed.items())
        yield Caution(
            code="failures",
            sentence=f"{sum(failed.values())} of {whole.num_requests} requests failed ({told}): never good.",
        )
    if num_not_sent:
        yield Caution(
            code="not_sent", sentence=f"{num_not_sent} requests of the window were never sent; they count as bad."
        )
    if "lower bound" in output.reason or "without a token count" in output.reason:
        yield Caution(code="uncounted_chunks", sentence=f"Output tokens per second: {output.reason}.")
    hit, plan = whole.prefix_hit, whole.prefix_hit_planned
    if hit.value is not None and plan is not None and abs(hit.value - plan) > _HIT_TOLERANCE:
        yield Caution(
            code="prefix_hit",
            sentence=f"{100 * hit.value:.1f} % of prompt tokens came from the cache; {100 * plan:.1f} % were planned.",
        )


def _sentence(words: object) -> str:
    """What the cache protocol found, as a caution says it."""
    text = str(words or "what came from the prefix cache is not what was expected").rstrip(".")
    return f"{text[:1].upper()}{text[1:]}."


def _ms(seconds: float | Floats) -> str:
    return f"{1e3 * float(seconds):.3g} ms"
