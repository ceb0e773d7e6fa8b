"""Who waits, and in which order: class, then tenant (in the fair policy), then slack or arrival (`line`).

Every operation is O(log n): nothing looks at all who wait. Those that leave from the middle (abort, deadline) are
marked and skipped when they reach the top; heaps are rebuilt when more than half of them are such marks.

*Parked* requests wait for something by name, a prefix being computed or the first choice of their call, and are out of
the order until it comes.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from heapq import heapify, heappop, heappush, heapreplace
from typing import TypeAlias

from paceline.engine.line import Line
from paceline.engine.request_state import Phase, RequestState
from paceline.engine.settings import Policy
from paceline.engine.shares import Arrivals

_MIN_DEAD = 64
_MAX_IDLE_CLASSES = 64  # classes with nobody waiting whose counters the fair policy remembers
_Entry: TypeAlias = tuple[float, int, int, RequestState]  # arrival, request id, serial (no two alike), request


class _Tenants:
    """Tenants of one class, least served first.

    A virtual counter per tenant grows with the predicted time of what is computed for it (`charges`). One that comes
    back after a pause is lifted to the least counter among those present, so idling earns no credit (Sheng et al.,
    "Fairness in Serving Large Language Models", OSDI 2024).
    """

    __slots__ = ("_floor", "_late", "_order", "_present", "now", "num_queued", "queues", "served")

    def __init__(self, late: list[RequestState]) -> None:
        self._late = late
        self.queues: dict[str, Line] = {}
        self.now = 0.0  # of the step that is planned, or was last
        self.served: dict[str, int] = {}  # picoseconds of predicted time
        # heap of those present: (counter, -serial of coming back, tenant). A stale counter is a lower bound; of equals
        # the one that came back last is first: it was served least lately
        self._order: list[tuple[int, int, str]] = []
        self._present: dict[str, None] = {}
        self._floor = 0
        self.num_queued = 0  # requests in the order; none: the queue does not look at this class

    def push(self, state: RequestState, serial: int) -> None:
        self.num_queued += 1
        tenant = state.tenant
        if tenant not in self._present:
            self.peek()
            floor = self._order[0][0] if self._order else self._floor
            served = max(self.served.get(tenant, 0), floor)
            self.served[tenant] = served
            self._present[tenant] = None
            heappush(self._order, (served, -serial, tenant))
            self._forget_idle()
        queue = self.queues.get(tenant)
        if queue is None:
            queue = self.queues[tenant] = Line(self._late)
        queue.push(state, serial)

    def peek(self) -> RequestState | None:
        """Who is next. Makes the top of the order true: a tenant with somebody waiting and its counter of now."""
        order = self._order
        while order:
            served, age, tenant = order[0]
            state = self.queues[tenant].peek(self.now)
            if state is None:
                heappop(order)
                del self._present[tenant]
                del self.queues[tenant]
                self._floor = max(self._floor, served)
            elif self.served[tenant] != served:
                heapreplace(order, (self.served[tenant], age, tenant))
            else:
                return state
        return None

    def pop(self) -> None:
        self.num_queued -= 1
        self.queues[self._order[0][2]].pop(self.now)

    def _forget_idle(self) -> None:
        """A tenant that would be lifted anyway need not be remembered."""
        if len(self.served) > 1024 + 2 * len(self._present):
            floor = self._order[0][0]
            self.served = {t: s for t, s in self.served.items() if t in self._present or s > floor}

    def note_dead(self, state: RequestState) -> None:
        self.num_queued -= 1
        self.queues[state.tenant].note_dead()

    def live(self) -> list[RequestState]:
        tenants = sorted(self._present, key=lambda t: (self.served[t], t))
        return [state for tenant in tenants for state in self.queues[tenant].live()]


class WaitingQueue:
    """All waiting requests. `charge` and `debt` matter to the fair policy only. `ages` False: nobody asks for the
    oldest arrival, and it is not known."""

    __slots__ = (
        "_ages",
        "_by_arrival",
        "_classes",
        "_fair",
        "_idle",
        "_late",
        "_only",
        "_parked",
        "_priorities",
        "_serial",
        "_spare",
        "arrivals",
        "now",
        "num_parked",
        "num_pushed",
        "num_requests",
        "num_tokens",
    )

    def __init__(self, policy: Policy, *, ages: bool = True) -> None:
        self._fair = policy == "fair"
        self._ages = ages
        self.now = 0.0  # of the step that is planned, or was last: who is late by then goes behind
        self._late: list[RequestState] = []  # who went behind since `take_late`
        self.arrivals = Arrivals()  # noted for the fair policy only
        # one alone needs no order; whose place time or counters change is not kept here
        self._only: RequestState | None = None
        self._classes: dict[int, _Tenants] = {}
        self._priorities: list[int] = []  # sorted; of classes with somebody in the order
        self._idle: dict[int, None] = {}  # other classes that are remembered, the one idle longest first
        self._spare: _Tenants | None = None  # one nobody is in, of a class without counters: to be used again
        self._by_arrival: list[_Entry] = []  # everybody, parked too; lazy
        self._serial = 0
        self.num_pushed = 0  # so far: whoever looks again knows whether somebody came
        self._parked: dict[bytes | int, list[RequestState]] = {}
        self.num_parked = 0
        self.num_requests = 0  # parked ones included
        self.num_tokens = 0

    def push(self, state: RequestState) -> None:
        """A request begins to wait (it is new, or was preempted)."""
        state.queued_tokens = state.known
        self.num_requests += 1
        self.num_pushed += 1
        self.num_tokens += state.queued_tokens
        self._serial += 1
        if self._ages:
            self._note_age(state)
        if self._fair:
            self.arrivals.note(state)
        self._enter(state)

    def _note_age(self, state: RequestState) -> None:
        heappush(self._by_arrival, (state.arrival, state.request_id, self._serial, state))
        if len(self._by_arrival) > _MIN_DEAD + 2 * self.num_requests:
            waiting = {e[1]: e for e in self._by_arrival if e[3].phase is Phase.WAITING}
            self._by_arrival = list(waiting.values())
            heapify(self._by_arrival)

    def _enter(self, state: RequestState) -> None:
        state.queued = True
        if self._only is not None:
            self._spread()
        elif not (self._priorities or self._fair or state.by_slack):
            self._only = state
            return
        self._order(state)

    def _spread(self) -> None:
        """The only one gets a place in the order."""
        state, self._only = self._only, None
        if state is not None:
            self._order(state)

    def _order(self, state: RequestState) -> None:
        tenants = self._classes.get(state.priority)
        if tenants is None:
            tenants, self._spare = self._spare or _Tenants(self._late), None
            self._classes[state.priority] = tenants
        if not tenants.num_queued:
            self._idle.pop(state.priority, None)
            insort(self._priorities, state.priority)
        self._serial += 1
        tenants.push(state, self._serial)

    def peek(self) -> RequestState | None:
        """The next in order, or None when nobody is in the order (parked ones are not)."""
        if not self._priorities:
            return self._only
        tenants = self._classes[self._priorities[0]]
        tenants.now = self.now
        return tenants.peek()

    def nearest(self, most: int) -> list[RequestState]:
        """Up to `most` of those in time that are next in line with the head, by when they are due."""
        head = self.peek()
        if head is None:
            return []
        if head is self._only:
            return [head]
        return self._classes[head.priority].queues[head.tenant].nearest(most)

    def _leave_class(self, priority: int) -> None:
        """Somebody left the order. A class without anybody in it is forgotten: at once where it has no counters, else
        when many have none (its tenants then begin anew, as after any long pause)."""
        tenants = self._classes[priority]
        if tenants.num_queued:
            return
        del self._priorities[bisect_left(self._priorities, priority)]
        if not self._fair:
            self._spare = self._classes.pop(priority)
            return
        tenants.peek()  # drops the marks of those that are gone
        self._idle[priority] = None
        if len(self._idle) > _MAX_IDLE_CLASSES:
            oldest = next(iter(self._idle))
            del self._idle[oldest], self._classes[oldest]

    def pop(self) -> RequestState:
        """Take out the one that `peek` just gave: it stops waiting."""
        state = self._pop()
        self._leave(state)
        return state

    def _pop(self) -> RequestState:
        if (state := self._only) is not None:
            self._only, state.queued = None, False
            return state
        state = self.peek()
        assert state is not None
        self._classes[state.priority].pop()
        state.queued = False
        self._leave_class(state.priority)
        return state

    def _leave(self, state: RequestState) -> None:
        self.num_requests -= 1
        self.num_tokens -= state.queued_tokens

    def discard(self, state: RequestState) -> None:
        """A waiting request goes away, wherever it is."""
        if state.parked_on is not None:
            state.parked_on = None
            self.num_parked -= 1
        elif state is self._only:
            self._only, state.queued = None, False
        else:
            assert state.queued
            state.queued = False
            self._classes[state.priority].note_dead(state)
            self._leave_class(state.priority)
        self._leave(state)

    def park(self, key: bytes | int) -> RequestState:
        """Take the one that `peek` just gave out of the order until `wake(key)`."""
        state = self._pop()
        state.parked_on = key
        self._parked.setdefault(key, []).append(state)
        self.num_parked += 1
        return state

    def wake(self, key: bytes | int) -> None:
        """Put those parked on `key` back at their places."""
        for state in self._parked.pop(key, ()):
            if state.parked_on == key:
                state.parked_on = None
                self.num_parked -= 1
                self._enter(state)

    def wake_all(self, keys: Sequence[bytes | int]) -> None:
        """The same for each of these."""
        if self.num_parked:
            for key in keys:
                self.wake(key)
        else:
            self._parked.clear()  # those in it are gone

    def oldest_arrival(self) -> float | None:
        """When the one that waits longest came. Only with `ages`."""
        assert self._ages, "nobody was to ask"
        heap = self._by_arrival
        while heap and heap[0][3].phase is not Phase.WAITING:
            heappop(heap)
        return heap[0][0] if heap else None

    def charge(self, state: RequestState, amount: int) -> None:
        """A request's tenant is served: picoseconds of predicted step time (`charges`)."""
        if (tenants := self._classes.get(state.priority)) is not None:
            tenants.served[state.tenant] = tenants.served.get(state.tenant, 0) + amount

    def debt(self, state: RequestState) -> float:
        """What a request's tenant was served within its class; 0 when the policy is not fair."""
        return self.debt_of(state.priority, state.tenant)

    def debt_of(self, priority: int, tenant: str) -> float:
        """The same by name."""
        if not self._fair or (tenants := self._classes.get(priority)) is None:
            return 0.0
        return tenants.served.get(tenant, 0.0)

    def take_late(self) -> Sequence[RequestState]:
        """Those whose latest start has passed since the last call."""
        if not self._late:
            return ()
        late = [state for state in self._late if state.queued]
        self._late.clear()
        return late

    def ahead_of(self, state: RequestState) -> tuple[int, int]:
        """(requests, their known tokens) that go before one that comes now: of higher classes, of its own tenant, and
        of tenants that were served no more. Looks at everybody."""
        self._spread()
        requests = tokens = 0
        for priority in self._priorities:
            if priority > state.priority:
                break
            tenants = self._classes[priority]
            own = tenants.served.get(state.tenant, 0)
            for tenant, line in tenants.queues.items():
                if priority == state.priority and tenant != state.tenant and tenants.served[tenant] > own:
                    continue
                more, their = line.ahead_of(state)
                requests, tokens = requests + more, tokens + their
        return requests, tokens

    def in_order(self) -> list[RequestState]:
        """Everybody in the order, parked ones left out. Looks at all of them: for explanations only."""
        self._spread()
        return [state for priority in self._priorities for state in self._classes[priority].live()]
