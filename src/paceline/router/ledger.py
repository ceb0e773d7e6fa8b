"""What is under way on each replica, as whoever forwards requests and answers sees it: sent, first token, end.

It is exact the moment something is sent, so requests that arrive together do not all go where the last report showed
room. It knows nothing of what reaches a replica past this router.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from paceline.errors import EngineError


class Load:
    """One replica's requests that have not ended; all counts are of this router's own."""

    __slots__ = ("context_tokens", "num_decoding", "num_waiting", "prefill_tokens", "replica")

    def __init__(self, replica: int) -> None:
        self.replica = replica
        self.num_waiting = 0  # sent, and no token has come back
        self.num_decoding = 0  # a token has come back
        self.prefill_tokens = 0  # prompt tokens of those waiting that no cache was known to hold
        self.context_tokens = 0  # prompt tokens of those decoding

    @property
    def num_open(self) -> int:
        return self.num_waiting + self.num_decoding

    def copy(self) -> Load:
        other = Load(self.replica)
        other.num_waiting, other.num_decoding = self.num_waiting, self.num_decoding
        other.prefill_tokens, other.context_tokens = self.prefill_tokens, self.context_tokens
        return other

    def __repr__(self) -> str:
        return (
            f"Load(replica={self.replica}, waiting={self.num_waiting}, decoding={self.num_decoding}, "
            f"prefill_tokens={self.prefill_tokens}, context_tokens={self.context_tokens})"
        )


class Reports:
    """Loads as a router knows them that only reads what replicas report every so often, and counts nothing itself.

    A baseline: what is sent between two reports shows in none of them, so all that comes in between goes the same way.
    """

    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        self._next_s = 0.0
        self._seen: list[Load] = []

    def loads(self, actual: Sequence[Load], now: float) -> Sequence[Load]:
        """The loads of the last report; a new one is made when it is due, or replicas came or went."""
        if now >= self._next_s or [load.replica for load in self._seen] != [load.replica for load in actual]:
            self._seen = [load.copy() for load in actual]
            self._next_s = now + self._period_s
        return self._seen


class _Sent(msgspec.Struct, eq=False):
    """A request that has not ended."""

    load: Load
    num_prompt: int  # tokens
    num_uncached: int
    decodes: bool = False  # a token has come back


class Ledger:
    """The loads of all replicas. Each request is told of in order: `sent`, `first_token` once, `ended`."""

    def __init__(self) -> None:
        self._loads: dict[int, Load] = {}
        self.loads: list[Load] = []  # of the replicas that take requests, in the order in which they joined
        self._open: dict[int, _Sent] = {}

    def join(self, replica: int) -> None:
        """A replica takes requests from now on."""
        self._loads[replica] = Load(replica)
        self.loads = list(self._loads.values())

    def leave(self, replica: int) -> None:
        """It takes none any more, and those it had are gone."""
        gone = self._loads.pop(replica, None)
        self.loads = list(self._loads.values())
        self._open = {request: entry for request, entry in self._open.items() if entry.load is not gone}

    def load(self, replica: int) -> Load:
        return self._loads[replica]

    def sent(self, replica: int, request_id: int, num_prompt: int, num_cached: int = 0) -> None:
        """`num_cached`: tokens of the prompt that the replica's cache was thought to hold."""
        if request_id in self._open:
            raise EngineError("this request was sent already", seen=request_id, expected="an id that is not open")
        load = self._loads[replica]
        uncached = max(0, num_prompt - num_cached) if num_cached else num_prompt
        load.num_waiting += 1
        load.prefill_tokens += uncached
        self._open[request_id] = _Sent(load, num_prompt, uncached)

    def first_token(self, request_id: int) -> None:
        entry = self._open.get(request_id)
        if entry is None or entry.decodes:
            return
        entry.decodes, load = True, entry.load
        load.num_waiting -= 1
        load.prefill_tokens -= entry.num_uncached
        load.num_decoding += 1
        load.context_tokens += entry.num_prompt

    def ended(self, request_id: int) -> None:
        """However it ended; unknown ids are ignored."""
        entry = self._open.pop(request_id, None)
        if entry is None:
            return
        load = entry.load
        if entry.decodes:
            load.num_decoding -= 1
            load.context_tokens -= entry.num_prompt
        else:
            load.num_waiting -= 1
            load.prefill_tokens -= entry.num_uncached
