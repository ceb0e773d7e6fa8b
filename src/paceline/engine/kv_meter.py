"""What admissions found in the prefix cache, summed up: what `KVStats` says of hits and misses."""

from __future__ import annotations

from collections import Counter

from paceline.engine.sequence_kv import Quote


class HitMeter:
    """Told of each reservation. A request that comes back after preemption, or shares a sibling's blocks, counts for
    what it saved alone: its tokens were asked for before."""

    __slots__ = ("hit_tokens", "miss_reasons", "query_tokens", "saved_tokens")

    def __init__(self) -> None:
        self.hit_tokens = 0
        self.query_tokens = 0
        self.saved_tokens = 0
        self.miss_reasons: Counter[str] = Counter()

    def note(self, quote: Quote) -> None:
        self.saved_tokens += quote.hit_tokens
        if quote.readmission or quote.sibling is not None:
            return
        self.query_tokens += quote.num_known_tokens
        self.hit_tokens += quote.hit_tokens
        if quote.miss_reason:
            self.miss_reasons[quote.miss_reason] += 1
