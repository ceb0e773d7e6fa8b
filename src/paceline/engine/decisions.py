"""The ring of recent decisions, found by request. Bounded: the oldest give way."""

from __future__ import annotations

from collections import deque

from paceline.contracts.decision import Decision, Kind, Reason


class DecisionRing:
    """Keeps the newest `capacity` decisions of the scheduler, in order. 0: nobody asks, and none are made."""

    def __init__(self, capacity: int = 4096) -> None:
        assert capacity >= 0
        self.capacity = capacity
        self.num_recorded = 0
        self._ring: deque[Decision] = deque()
        self._by_request: dict[int, deque[Decision]] = {}

    def __len__(self) -> int:
        return len(self._ring)

    def record(self, decision: Decision) -> None:
        assert self.capacity, "a ring without room is not told"
        if len(self._ring) == self.capacity:
            oldest = self._ring.popleft()
            of_request = self._by_request[oldest.request_id]
            of_request.popleft()  # one request's decisions leave in the order they came
            if not of_request:
                del self._by_request[oldest.request_id]
        self._ring.append(decision)
        self._by_request.setdefault(decision.request_id, deque()).append(decision)
        self.num_recorded += 1

    def of_request(self, request_id: int) -> list[Decision]:
        """What was decided about one request and is still remembered, oldest first."""
        return list(self._by_request.get(request_id, ()))

    def tail(self, count: int = 20) -> list[Decision]:
        """The newest decisions, oldest first."""
        # a copy first: a watchdog looks while another thread records
        return list(self._ring)[-count:] if count > 0 else []

    def dump(self, count: int = 20) -> str:
        """The newest decisions as text, one per line: what a watchdog prints."""
        return "\n".join(describe(d) for d in self.tail(count))


def describe(decision: Decision) -> str:
    """One line for people: `t=1.250 step 7 request 3 wait no_blocks new_blocks=12 available=4 (request 1)`."""
    words = [
        f"t={decision.time:.3f}",
        f"step {decision.step}",
        f"request {decision.request_id}",
        decision.kind.value,
        decision.reason.value,
        *(f"{name}={value:g}" for name, value in decision.numbers.items()),
    ]
    if decision.other is not None:
        words.append(f"(request {decision.other})")
    return " ".join(words)


def behind(head: Decision, request_id: int, position: int) -> Decision:
    """The decision about a request that waits only because `head.request_id` is before it in the queue.

    Never stored: derived from queue order when somebody asks. It carries the head's reason, and how many are before it.
    """
    return Decision(
        time=head.time,
        step=head.step,
        request_id=request_id,
        kind=Kind.WAIT,
        reason=head.reason,
        numbers={"behind": float(position)},
        other=head.request_id,
    )


__all__ = ["Decision", "DecisionRing", "Kind", "Reason", "behind", "describe"]
