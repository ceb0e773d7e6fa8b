"""Which sequences a response was made of: from the id a client knows to the numbers the engine knows.

Only the newest calls are remembered, as the engine remembers only its newest decisions. Two calls of clients who chose
the same id are both found by it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

MAX_CALLS = 4096


class RecentCalls:
    def __init__(self, max_calls: int = MAX_CALLS) -> None:
        assert max_calls >= 1
        self._max_calls = max_calls
        self._order: deque[str] = deque()
        self._numbers: dict[str, deque[tuple[int, ...]]] = {}

    def note(self, request_id: str, numbers: Sequence[int]) -> None:
        """A call (or one prompt of it) is given to the engine as these sequences."""
        if len(self._order) == self._max_calls:
            oldest = self._order.popleft()
            of_oldest = self._numbers[oldest]
            of_oldest.popleft()
            if not of_oldest:
                del self._numbers[oldest]
        self._order.append(request_id)
        self._numbers.setdefault(request_id, deque()).append(tuple(numbers))

    def numbers_of(self, request_id: str) -> list[int]:
        """Sequences of every remembered call with this id, oldest first; empty: none is remembered."""
        return [number for numbers in self._numbers.get(request_id, ()) for number in numbers]
