"""How much of their limits answers use: what a limit says of the tokens that are still to come.

A client's limit on tokens is often generous, and a target for a whole answer spread over tokens that never come leaves
nothing for those that do. So the *share* of its limit that each ended answer took is counted, by latency class, and a
row is expected to go on to the share that `SURE` of those came to that had gone on as long as it has. Until `LEAST`
have ended, or where a row has outlived all but a few, the limit is what is expected.

Counts are of bins a quarter of a power of two wide, rounded up, and are halved now and then: what is known is of
lately, and takes no room. It follows from the order in which answers ended, so a replay expects the same.
"""

from __future__ import annotations

from bisect import bisect_left
from math import ceil

from paceline.engine.request_state import RequestState

SURE = 0.9
LEAST = 16  # answers
LEAST_ALIKE = 4  # of those that went on as long
MOST = 512  # counted; then all are halved
MAX_CLASSES = 64
EDGES: tuple[float, ...] = tuple(2.0 ** (power / 4 - 10) for power in range(41))  # upper ends of the bins: 1/1024 to 1


class _Shares:
    """Of one class."""

    __slots__ = ("counts", "expected", "num")

    def __init__(self) -> None:
        self.counts = [0] * len(EDGES)
        self.num = 0
        self.expected: list[float] = []  # by the bin that an answer has reached: the share it comes to

    def note(self, share: float) -> None:
        self.counts[min(bisect_left(EDGES, share), len(EDGES) - 1)] += 1
        self.num += 1
        if self.num >= MOST:
            self.counts = [count // 2 for count in self.counts]
            self.num = sum(self.counts)
        if self.num >= LEAST:
            self.expected = self._expected()

    def _expected(self) -> list[float]:
        """Of those that ended in a bin or beyond, the share that `SURE` came to. It grows with the bin: one pass."""
        found = []
        left = beyond = self.num  # ended in the bin that was reached or beyond it; beyond bin `at`
        at = -1
        for count in self.counts:
            while left - beyond < SURE * left:
                at += 1
                beyond -= self.counts[at]
            found.append(EDGES[at] if left >= LEAST_ALIKE else 1.0)
            left -= count
        return found


class Lengths:
    """See the module. Asked for each row of a step: a look-up."""

    def __init__(self) -> None:
        self._of: dict[str, _Shares] = {}  # by latency class, the one of which nothing ended for longest foremost

    def note(self, state: RequestState) -> None:
        """Its answer has ended by itself or by its limit."""
        limit = state.limit - state.num_prompt
        if limit <= 0:
            return
        name = state.request.latency_class
        shares = self._of.pop(name, None)
        if shares is None:
            if len(self._of) >= MAX_CLASSES:
                del self._of[next(iter(self._of))]
            shares = _Shares()
        self._of[name] = shares
        shares.note((state.known - state.num_prompt) / limit)

    def left(self, state: RequestState) -> int:
        """Tokens that will likely still come; no more than its limit leaves."""
        most = state.limit - state.known
        shares = self._of.get(state.request.latency_class)
        if shares is None or not shares.expected or most <= 1:
            return most
        limit = state.limit - state.num_prompt
        made = limit - most
        share = shares.expected[bisect_left(EDGES, made / limit)]
        return max(1, min(most, ceil(share * limit) - made))
