"""Which requests were good: the times of each, and the terms of its class.

good = ended well, every term of the class within its limit, every validator passed. A TPOT or longest gap that does not
exist because all tokens came in one chunk is vacuously met; every other missing time misses its term. A request that is
not streamed shows only its end, so only an end-to-end term can judge it: with one, the others do not apply; without,
they are missed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from paceline.contracts.workload import SloClass
from paceline.lab.metrics.columns import Bools, Columns, Floats, Ints

TERMS = ("ttft", "ttfa", "tpot", "icl_max", "e2e")
NO_TOKEN = "no_token"  # ended well, it says, and brought nothing


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds, nan where undefined. All [n]."""

    lag: Floats
    ttft: Floats
    ttft_send: Floats
    ttfa: Floats
    tpot: Floats
    icl_max: Floats
    e2e: Floats
    e2e_send: Floats
    tail: Floats
    vacuous: Bools  # no time between tokens, for all came in the first chunk


def times_of(columns: Columns) -> Times:
    c = columns
    with np.errstate(invalid="ignore"):
        later = c.tokens - c.first_tokens
        tpot = np.where(c.streamed & (later > 0), (c.last - c.first) / np.where(later > 0, later, 1.0), np.nan)
    single = np.diff(c.start) == 1
    tpot[single] = np.nan
    stream_only = np.where(c.streamed, 0.0, np.nan)
    # with unknown counts only a single chunk is surely "all in the first"
    vacuous = c.streamed & (np.diff(c.start) >= 1) & (single | (later <= 0))
    return Times(
        lag=c.send - c.plan,
        ttft=c.first - c.plan + stream_only,
        ttft_send=c.first - c.send + stream_only,
        ttfa=c.answer - c.plan + stream_only,
        tpot=tpot,
        icl_max=_longest_gap(c) + stream_only,
        e2e=c.last - c.plan,
        e2e_send=c.last - c.send,
        tail=c.close - c.last,
        vacuous=vacuous,
    )


def _longest_gap(columns: Columns) -> Floats:
    longest = np.full(len(columns), np.nan)
    many = np.diff(columns.start) >= 2
    if not many.any():
        return longest
    gaps = np.diff(columns.t)
    inside = np.ones(len(gaps), dtype=bool)
    inside[columns.start[1:-1][(columns.start[1:-1] > 0) & (columns.start[1:-1] < len(columns.t))] - 1] = False
    owner = columns.owner[1:][inside]
    longest[many] = -np.inf
    np.maximum.at(longest, owner, gaps[inside])
    return longest


@dataclass(frozen=True, slots=True)
class Judgement:
    good: Bools  # [n]
    counts: Bools  # in the denominator of attainment
    vacuous: Bools  # good, and TPOT or the longest gap was asked and undefined
    missed: Mapping[str, Bools]  # term, "outcome", "no_token" or a validator -> who missed it


def judge(columns: Columns, times: Times, classes: Mapping[str, SloClass]) -> Judgement:
    """Classes that `classes` does not name ask nothing but a good end."""
    n = len(columns)
    names = np.asarray([r.slo_class for r in columns.records], dtype=object)
    missed: dict[str, Bools] = {}
    vacuous = np.zeros(n, dtype=bool)
    left_late = np.zeros(n, dtype=bool)
    for name, terms in classes.items():
        members = np.flatnonzero(names == name)
        if not len(members):
            continue
        for term in TERMS:
            limit = limit_of(terms, term)
            if limit is None:
                continue
            value = getattr(times, term)[members]
            meets = value <= limit  # nan: no
            if term in ("tpot", "icl_max"):
                empty = times.vacuous[members] & np.isnan(value)
                meets |= empty
                vacuous[members] |= empty
            if term != "e2e" and terms.e2e_s is not None:
                meets |= ~columns.streamed[members]
            missed.setdefault(term, np.zeros(n, dtype=bool))[members] = ~meets
        left_late[members] = _too_late(columns, times, terms, members)
        for validator in terms.validators:
            fails = [_fails(columns.records[i].valid, validator) for i in members]
            missed.setdefault(validator, np.zeros(n, dtype=bool))[members] = fails
    ok = columns.ok
    for who in missed.values():
        who &= ok  # a request that failed missed its outcome, nothing else is told
    no_token = np.asarray([r.outcome.value == "ok" for r in columns.records], dtype=bool) & ~ok
    counts = ~columns.left | left_late
    missed["outcome"] = ~ok & ~no_token & counts
    missed[NO_TOKEN] = no_token
    good = ok.copy()
    for who in missed.values():
        good &= ~who
    return Judgement(good=good, counts=counts, vacuous=vacuous & good, missed=missed)


def limit_of(terms: SloClass, term: str) -> float | None:
    limit = getattr(terms, f"{term}_s")
    return None if limit is None else float(limit)


def _fails(valid: Mapping[str, bool], validator: str) -> bool:
    """A validator that does not apply to a request is left out of its results; no results at all is not a pass."""
    return not valid.get(validator, bool(valid))


def _too_late(columns: Columns, times: Times, terms: SloClass, members: Ints) -> Bools:
    """Had a target been missed when the client left? Then it counts, as bad; else it says nothing."""
    waited = (columns.close - columns.plan)[members]
    late = np.zeros(len(members), dtype=bool)
    if terms.e2e_s is not None:
        late |= waited > terms.e2e_s
    for limit, came in ((terms.ttft_s, times.ttft), (terms.ttfa_s, times.ttfa)):
        if limit is not None:
            late |= np.where(np.isnan(came[members]), waited, came[members]) > limit
    if terms.tpot_s is not None:
        late |= times.tpot[members] > terms.tpot_s
    if terms.icl_max_s is not None:
        silent = (columns.close - columns.last)[members]  # no token came since
        late |= np.fmax(times.icl_max[members], silent) > terms.icl_max_s
    return np.asarray(late)
