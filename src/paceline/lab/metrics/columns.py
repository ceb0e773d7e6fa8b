"""The records of a run as arrays: when each request got its tokens, and how many.

Legend: [n] requests in order of planned time, then id; [m] token chunks of all requests, one after the other. Times are
seconds from the start of the load, nan where the thing did not happen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paceline.contracts.artefact import NEVER, ChunkKind, RequestRecord, TokenSource
from paceline.contracts.slo import Outcome

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_QUIET = (Outcome.CLIENT_CANCEL, Outcome.DISCONNECT)  # the client's own doing


@dataclass(frozen=True, slots=True)
class Columns:
    records: list[RequestRecord]
    plan: Floats  # [n]
    send: Floats
    close: Floats
    first: Floats  # first token chunk
    last: Floats  # last token chunk
    answer: Floats  # first content or tool chunk
    tokens: Floats  # N: completion tokens; nan unknown
    first_tokens: Floats  # n_f: tokens of the first token chunk; nan unknown
    chunk_tokens: Floats  # what the chunks' own counts add up to; nan where the server did not say
    ok: Bools  # ended well, with at least one token
    left: Bools  # the client left on purpose: cancel or disconnect
    streamed: Bools
    start: Ints  # [n + 1] where a request's chunks begin in the arrays below
    t: Floats  # [m] token chunks
    count: Floats  # [m] tokens of each, scaled to N; nan unknown

    def __len__(self) -> int:
        return len(self.records)

    @property
    def owner(self) -> Ints:
        """[m] the request of each token chunk."""
        return np.repeat(np.arange(len(self), dtype=np.int64), np.diff(self.start))


def _seconds(values: list[int]) -> Floats:
    ns = np.asarray(values, dtype=np.float64)
    return np.where(ns == NEVER, np.nan, ns / 1e9)


def columns_of(records: Sequence[RequestRecord]) -> Columns:
    """Flattens records. A token chunk is one of kind reasoning, content or tool with a payload (`num_bytes` > 0).

    Tokens that a server counts in a chunk without payload (half a character, the end token) belong to the next token
    chunk, with which they become visible, or to the last one.
    """
    ordered = sorted(records, key=lambda r: (r.t_plan_ns, r.id, r.t_send_ns))
    reasoning, content, tool, role = ChunkKind.REASONING, ChunkKind.CONTENT, ChunkKind.TOOL, ChunkKind.ROLE
    times: list[int] = []
    counts: list[int] = []
    start = [0]
    answer: list[int] = []
    for record in ordered:
        carried, seen, to_answer = 0, len(times), NEVER
        for chunk in record.chunks:
            kind, num_tokens = chunk.kind, chunk.num_tokens
            if chunk.num_bytes > 0 and (kind is content or kind is reasoning or kind is tool):
                times.append(chunk.t_ns)
                counts.append(num_tokens + carried if num_tokens >= 0 else -1)
                carried = 0
                if to_answer < 0 and kind is not reasoning:
                    to_answer = chunk.t_ns
            elif num_tokens > 0 and (kind is content or kind is reasoning or kind is tool or kind is role):
                carried += num_tokens
        if carried and len(times) > seen and counts[-1] >= 0:
            counts[-1] += carried
        start.append(len(times))
        answer.append(to_answer)
    begin = np.asarray(start, dtype=np.int64)
    t = np.asarray(times, dtype=np.float64) / 1e9
    num_chunks = np.diff(begin)
    has = num_chunks > 0
    first, last = np.full(len(ordered), np.nan), np.full(len(ordered), np.nan)
    first[has], last[has] = t[begin[:-1][has]], t[begin[1:][has] - 1]
    told = np.asarray([r.completion_tokens for r in ordered], dtype=np.float64)
    by_chunk = np.asarray([r.token_source is TokenSource.CHUNK_USAGE for r in ordered], dtype=bool)
    count, tokens, chunk_tokens = _count_tokens(np.asarray(counts, dtype=np.float64), begin, told, by_chunk)
    first_tokens = np.full(len(ordered), np.nan)
    first_tokens[has] = count[begin[:-1][has]]
    outcomes = [r.outcome for r in ordered]
    return Columns(
        records=ordered,
        plan=_seconds([r.t_plan_ns for r in ordered]),
        send=_seconds([r.t_send_ns for r in ordered]),
        close=_seconds([r.t_close_ns for r in ordered]),
        first=first,
        last=last,
        answer=_seconds(answer),
        tokens=tokens,
        first_tokens=first_tokens,
        chunk_tokens=chunk_tokens,
        ok=np.asarray([o is Outcome.OK for o in outcomes], dtype=bool) & has,
        left=np.asarray([o in _QUIET for o in outcomes], dtype=bool),
        streamed=np.asarray([r.streamed for r in ordered], dtype=bool),
        start=begin,
        t=t,
        count=count,
    )


def _count_tokens(raw: Floats, begin: Ints, told: Floats, by_chunk: Bools) -> tuple[Floats, Floats, Floats]:
    """(tokens of each chunk, N of each request, sum of the chunks' own counts), nan where nothing counts tokens.

    Where each chunk has its count, that is it. Where only the total N is known, the first chunk counts as one token and
    the others share the N - 1 that are left; a single chunk has them all. A chunk is never taken for a token.
    """
    n = len(told)
    num_chunks = np.diff(begin)
    owner = np.repeat(np.arange(n), num_chunks)
    known = (raw >= 0) & by_chunk[owner]
    num_known = np.bincount(owner[known], minlength=n)
    sum_known = np.bincount(owner[known], weights=raw[known], minlength=n)
    every = by_chunk & (num_known == num_chunks) & (num_chunks > 0)
    tokens = np.where(told >= 0, told, np.where(every, sum_known, np.nan))
    count = np.full(len(raw), np.nan)

    counted = every[owner]
    count[counted] = raw[counted]
    some = by_chunk & (num_known > 0) & (num_known < num_chunks) & (told >= 0)
    gaps = some[owner]
    share = np.maximum(tokens - sum_known, 0.0) / np.maximum(num_chunks - num_known, 1)
    count[gaps] = np.where(known[gaps], raw[gaps], share[owner[gaps]])

    spread = (told >= 0) & ~every & ~some & (num_chunks > 0)
    rest = np.maximum(tokens - 1.0, 0.0) / np.maximum(num_chunks - 1, 1)
    scaled = spread[owner]
    count[scaled] = rest[owner[scaled]]
    head = begin[:-1][spread]
    count[head] = np.where(num_chunks[spread] == 1, tokens[spread], np.minimum(1.0, tokens[spread]))
    return count, tokens, np.where(every, sum_known, np.nan)
