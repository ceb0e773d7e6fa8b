"""PL102: KV is planned for sequences much longer than any that come, and fewer run at once for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from paceline.contracts.lint import Finding, Fix, Severity
from paceline.contracts.slo import percentile
from paceline.cost.memory import format_bytes
from paceline.planner.lint.facts import EngineFacts, Facts, RunFacts
from paceline.planner.lint.prices import Prices
from paceline.planner.lint.rule import Rule
from paceline.planner.lint.words import CONFIGURED, RECOMPUTED, SERVER, fact, flag, plural

_TOO_LONG = 2.0  # planned over needed: below it, room for growth
_TAIL = 0.999
_WHOLE = 8  # the profile rounds rows down to a multiple of it
_SHORT = 0.98  # of the KV that was wanted


def check(facts: Facts) -> Iterator[Finding]:
    engine = facts.engine
    assert engine is not None, "needs()"
    if facts.run is not None:
        yield from _measured(facts.run, engine)
    else:
        assert facts.prices is not None, "needs()"
        lengths = [r.num_input + r.num_output for r in facts.load.requests] if facts.load is not None else []
        yield from _predicted(facts.prices, engine, lengths)


def needs(facts: Facts) -> str:
    engine = facts.engine
    if engine is None or engine.max_num_seqs is None or engine.expected_context is None:
        return "the server's resolved options: max_num_seqs and expected_context"
    if facts.run is None:
        return "" if facts.prices is not None and engine.kv_room_bytes is not None else "the memory of a device"
    if engine.kv_tokens is None or engine.prefix_cache_reserve is None:
        return "the size of the server's KV cache in tokens"
    if not any(s.num_waiting is not None and s.num_running is not None for s in facts.run.samples):
        return "the server's metrics: running and waiting"
    return ""


def _predicted(prices: Prices, engine: EngineFacts, lengths: Sequence[int]) -> Iterator[Finding]:
    rows, context, room = engine.max_num_seqs, engine.expected_context, engine.kv_room_bytes
    assert rows is not None, "needs()"
    assert context is not None, "needs()"
    assert room is not None, "needs()"
    fits = room // max(1, prices.kv_bytes(context))
    if fits >= rows + _WHOLE:
        return  # memory is not what limits them
    evidence = [
        fact("max_num_seqs", rows, "", CONFIGURED),
        fact("expected_context", context, "tokens", CONFIGURED),
        fact("memory for KV", room, "bytes", "predicted (first principles)"),
        fact("sequences that it holds", fits, "", "predicted (first principles)"),
    ]
    if not lengths:
        if context != engine.max_model_len:
            return
        sentence = (
            f"Every sequence is planned at the whole length of {context:,} tokens: {format_bytes(room)} hold "
            f"{plural(fits, 'sequence')}. Nothing says how long requests really are."
        )
        fix = Fix(words=f"{flag('expected_context')} at what requests reach; `paceline lint RUN` tells from a run")
        yield RULE.finding(Severity.INFO, sentence, fix, tuple(evidence))
        return
    needed = _needed(lengths)
    if context < _TOO_LONG * needed:
        return
    better = room // max(1, prices.kv_bytes(needed))
    if better <= fits:
        return
    evidence += [
        fact("longest request but one in a thousand", percentile(lengths, _TAIL), "tokens", CONFIGURED),
        fact("sequences of that length", better, "", "predicted (first principles)"),
    ]
    sentence = (
        f"KV is planned for sequences of {context:,} tokens and {format_bytes(room)} hold {fits}; the workload's stay "
        f"below {needed:,}, of which {better} would fit."
    )
    yield RULE.finding(Severity.WARNING, sentence, _fix(needed, f"{fits} -> {better} sequences in the same memory"),
                       tuple(evidence))  # fmt: skip


def _measured(run: RunFacts, engine: EngineFacts) -> Iterator[Finding]:
    rows, context, tokens = engine.max_num_seqs, engine.expected_context, engine.kv_tokens
    reserve = engine.prefix_cache_reserve
    assert rows is not None, "needs()"
    assert context is not None, "needs()"
    assert tokens is not None, "needs()"
    assert reserve is not None, "needs()"
    lengths = [r.num_tokens for r in run.requests if r.ok and r.num_tokens is not None]
    waiting = [s for s in run.samples if s.num_waiting and s.num_running is not None and s.num_running >= rows]
    wanted = rows * context * (1 + reserve)
    # KV that got all it asked for: then time, and not memory, set the number of rows
    if not lengths or not waiting or tokens >= _SHORT * wanted:
        return
    needed = _needed(lengths)
    better = round(tokens / needed)
    if context < _TOO_LONG * needed or better <= rows:
        return
    evidence = [
        fact("max_num_seqs", rows, "", CONFIGURED),
        fact("expected_context", context, "tokens", CONFIGURED),
        fact("KV cache", tokens, "tokens", CONFIGURED),
        fact("longest request but one in a thousand", percentile(lengths, _TAIL), "tokens", RECOMPUTED),
        fact("looks with every row taken and requests waiting", len(waiting), "", SERVER),
        fact("of looks", len(run.samples), "", SERVER),
    ]
    usage = [s.kv_usage for s in run.samples if s.kv_usage is not None]
    if usage:
        evidence.append(fact("KV in use, most", max(usage), "share", SERVER))
    sentence = (
        f"KV is planned for {rows} sequences of {context:,} tokens and requests waited for a row; the longest here had "
        f"{max(lengths):,} tokens, of which the same memory holds {better}."
    )
    fix = _fix(needed, f"{rows} -> up to {better} sequences in the same memory, as far as their steps stay in time")
    yield RULE.finding(Severity.WARNING, sentence, fix, tuple(evidence))


def _needed(lengths: Sequence[int]) -> int:
    """Tokens that all but one request in a thousand stay below, in whole blocks of 16."""
    return max(16, -(-int(percentile(lengths, _TAIL)) // 16) * 16)


def _fix(needed: int, gain: str) -> Fix:
    return Fix(words=f"{flag('expected_context')} {needed}", options={"expected_context": needed}, gain=gain)


RULE = Rule(
    code="PL102",
    title="planned for lengths that do not come",
    what="Memory is planned for sequences of expected_context tokens: the longer that is, the fewer run at once. A "
    "long max_model_len alone costs nothing here, for KV is given out block by block; planning every sequence at it "
    "does. Servers that reserve max_model_len for each row lose the same way.",
    evidence="From a configuration: how many sequences the memory holds at expected_context and at the 99.9th "
    "percentile of the workload's lengths; only where memory limits the rows. From a run: the lengths in the raw "
    "records, and looks at the server with every row taken and requests waiting.",
    fix="expected_context at the 99.9th percentile of the lengths that come.",
    sources=("config", "run"),
    check=check,
    needs=needs,
)
