"""Many replicas behind a router, under a load, in virtual time: the event loop.

What happens is an event with a time: a step of a replica or a run of equal decode steps, an arrival, a client that
leaves, a replica that fails or comes up. It depends on load, seed and prices alone, never on the host's time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from paceline.contracts.request import FinishReason, Prompt, Request, RequestOutput
from paceline.contracts.slo import Outcome
from paceline.contracts.workload import PlannedRequest
from paceline.errors import ConfigError, QueueFullError, RequestError
from paceline.lab.workload import PRIME_SLOTS
from paceline.router import Ask, Ledger, Policy, Reports
from paceline.sim.client import GOES_ON, Client
from paceline.sim.events import EventHeap, EventKind
from paceline.sim.outcome import Ended, Joining, Open, Outage, Totals
from paceline.sim.prompts import Prompts
from paceline.sim.replica import NEVER, NO_NEWS, News, Replica
from paceline.sim.requests import Requests, TermsOf, by_class

_REASONS = {finish: finish.value for finish in FinishReason}


class Cluster:
    """`make_replica(index)` builds a fresh engine. `on_end` is told of each request as it ends and may forget it."""

    def __init__(
        self,
        make_replica: Callable[[int], Replica],
        num_replicas: int,
        policy: Policy,
        client: Client,
        prompts: Prompts,
        on_end: Callable[[Ended], None],
        *,
        changes: Sequence[Outage | Joining] = (),
        cold_start_s: float = 0.0,
        terms: TermsOf | None = None,
        reports: Reports | None = None,
    ) -> None:
        if num_replicas < 1:
            raise ConfigError("a cluster needs a replica", seen=num_replicas, expected="at least 1")
        self._make_replica = make_replica
        self._policy = policy
        self._client = client
        self._prompts = prompts
        self._on_end = on_end
        self._cold_start_s = cold_start_s
        self._reports = reports  # the router knows loads by these, and not by its own ledger
        self._requests = Requests(by_class({}) if terms is None else terms)
        self._events = EventHeap((r.at_s or 0.0, EventKind.ARRIVAL, r.id, 0, r) for r in client.scheduled)
        self._ledger = Ledger()
        self.replicas: list[Replica | None] = []  # None: down
        self._open: dict[int, Open] = {}
        self.num_requests: list[int] = []  # taken in, by replica
        self._num_coming = len(client.scheduled)  # arrivals still to come
        self._num_starting = 0  # replicas whose cold start is not over
        self._paid_from: dict[int, float] = {}  # replicas that are up or starting: since when
        self._retired: set[int] = set()  # replicas that take nothing new and end what they have
        self.totals = Totals()
        for _ in range(num_replicas):
            self._add()
        for change in changes:
            self._check(change)
            self._events.push(change.at_s, EventKind.CAPACITY, 0, change)

    def _check(self, change: Outage | Joining) -> None:
        if not change.at_s >= 0:
            raise ConfigError("a change of capacity has no time", seen=change.at_s, expected="0 s or later")
        if isinstance(change, Outage) and not 0 <= change.replica < len(self.replicas):
            raise ConfigError(
                "there is no such replica to fail",
                seen=change.replica,
                expected=f"0 to {len(self.replicas) - 1}",
            )

    def prime(self, requests: Sequence[PlannedRequest]) -> None:
        """Before the run: the replicas that the router picks have these prompts cached, as if they had been asked long
        ago, `PRIME_SLOTS` at once."""
        ledger, policy = self._ledger, self._policy
        for at, planned in enumerate(requests):
            if at >= PRIME_SLOTS:
                ledger.ended(requests[at - PRIME_SLOTS].id)
            prompt = self._prompts.prompt(planned)
            request = self._request(planned, prompt, 0.0, num_output=1)
            cached = self._cached(request)
            index = policy.choose(Ask(planned.id, prompt.num_tokens, cached), ledger.loads).replica
            replica = self.replicas[index]
            assert replica is not None, "nothing has failed before the run"
            ledger.sent(index, planned.id, prompt.num_tokens, cached(index) if policy.looks_at_cache else 0)
            replica.kv.take_in(replica.kv.keys_for(request), prompt.num_tokens)
        for planned in requests[-PRIME_SLOTS:]:
            ledger.ended(planned.id)

    # the loop

    def run(self) -> Totals:
        """To the end of the load, and of what it left open."""
        events, client, totals, still_open = self._events, self._client, self.totals, self._open
        step, arrival = EventKind.STEP, EventKind.ARRIVAL
        for planned in client.begin():
            self._push_arrival(0.0, planned)
        if client.end_s < NEVER:
            events.push(client.end_s, EventKind.CLIENT, -1)
        while still_open or self._num_coming:
            now, kind, number, _, what = events.pop()
            totals.num_events += 1
            if kind == step:
                if what.scheduled == now:  # else it means nothing any more
                    self._step(what, now)
            elif kind == arrival:
                self._num_coming -= 1
                self._arrive(what, now)
            elif kind == EventKind.CAPACITY:
                self._change(what, now)
            elif kind == EventKind.ARRANGED:
                what(now)
            elif what is not None:
                self._leave(number, what, now)
            else:
                self._drained(now)
                break
        totals.virtual_s = events.now
        for replica in filter(None, self.replicas):
            self._count(replica)
        totals.replica_s += sum(max(0.0, events.now - since) for since in self._paid_from.values())
        return totals

    def _push_arrival(self, time: float, planned: PlannedRequest) -> None:
        self._num_coming += 1
        self._events.push(time, EventKind.ARRIVAL, planned.id, planned)

    def _schedule(self, replica: Replica) -> None:
        """Its next event, if it comes at another time than before."""
        time = replica.next_time
        if time != replica.scheduled:
            replica.scheduled = time
            if time < NEVER:
                self._events.push(time, EventKind.STEP, replica.index, replica)

    # what happens

    def _arrive(self, planned: PlannedRequest, now: float) -> None:
        prompt = self._prompts.prompt(planned)
        loads = self._ledger.loads
        if not loads:
            return self._refused(planned, now, Outcome.HTTP_ERROR, "no replica is up", 503)
        request = self._request(planned, prompt, now)
        cached = self._cached(request) if self._policy.looks_at_cache else None
        ask = Ask(planned.id, prompt.num_tokens) if cached is None else Ask(planned.id, prompt.num_tokens, cached)
        seen = loads if self._reports is None else self._reports.loads(loads, now)
        index = self._policy.choose(ask, seen).replica
        replica = self.replicas[index]
        assert replica is not None, "a router sent a request to a replica that is down"
        faults = planned.faults
        waits_s, drops_s = faults.timeout_s, faults.disconnect_after_s
        try:
            replica.submit(request, now, faults.cancel_after_tokens, waits_s is not None or drops_s is not None)
        except RequestError as error:
            self._schedule(replica)  # a run of steps may have been settled for it
            if isinstance(error, QueueFullError):
                return self._refused(planned, now, Outcome.REJECTED, error.code, 429)
            return self._refused(planned, now, Outcome.HTTP_ERROR, error.message, 400)
        self._open[planned.id] = Open(planned, now, prompt, index)
        self.num_requests[index] += 1
        self._ledger.sent(index, planned.id, prompt.num_tokens, 0 if cached is None else cached(index))
        if drops_s is not None and (waits_s is None or drops_s < waits_s):
            how = (Outcome.DISCONNECT, "client: dropped the connection")
            self._events.push(now + drops_s, EventKind.CLIENT, planned.id, how)
        elif waits_s is not None:
            how = (Outcome.TIMEOUT, f"client: after {waits_s:g} s")
            self._events.push(now + waits_s, EventKind.CLIENT, planned.id, how)
        replica.wake(now)
        self._schedule(replica)
        return None

    def _request(
        self, planned: PlannedRequest, prompt: Prompt, now: float, *, num_output: int = 0, prior: tuple[int, ...] = ()
    ) -> Request:
        return self._requests.make(planned, prompt, now, num_output or planned.num_output_tokens or 1, prior)

    def _cached(self, request: Request) -> Callable[[int], int]:
        """Tokens of the prompt in each replica's cache, as an index that misses nothing would know them."""
        known: dict[int, int] = {}
        keys = None

        def ask(index: int) -> int:
            nonlocal keys
            if index not in known:
                replica = self.replicas[index]
                assert replica is not None
                keys = replica.kv.keys_for(request) if keys is None else keys
                most = request.num_prompt - 1
                quote = replica.kv.quote(request.request_id, keys, request.num_prompt, max_hit_tokens=most)
                known[index] = quote.hit_tokens
            return known[index]

        return ask

    def _step(self, replica: Replica, now: float) -> None:
        replica.scheduled = NEVER
        news = replica.advance(now)
        if news is not NO_NEWS:
            self._take(news, now)
            for request_id in news.left:
                self._open[request_id].left = (Outcome.CLIENT_CANCEL, "client: had enough")
                self._take(replica.abort(request_id, now), now)
        replica.begin(now)
        self._schedule(replica)

    def _leave(self, request_id: int, how: tuple[Outcome, str], now: float) -> None:
        held = self._open.get(request_id)
        if held is None:
            return  # it had its answer before
        replica = self.replicas[held.replica]
        assert replica is not None
        held.left = how
        self._take(replica.abort(request_id, now), now)
        self._schedule(replica)

    def _change(self, change: Outage | Joining | int, now: float) -> None:
        if isinstance(change, int):
            self._num_starting -= 1
            self.replicas[change] = self._make_replica(change)
            self._join(change)
        elif isinstance(change, Joining):
            self.start_replica(now)
        elif (replica := self.replicas[change.replica]) is not None:
            self._depart(change.replica)
            self.replicas[change.replica] = None
            self._lose(replica, (Outcome.STREAM_ERROR, f"replica {change.replica} failed"), now)
            self._stop(replica, now)
            if change.back and change.replica not in self._retired:
                self._start(change.replica, now + change.down_s)

    def _drained(self, now: float) -> None:
        how = (Outcome.TIMEOUT, f"drain: {self._client.drain_s:g} s after the end of the load")
        for replica in self.replicas:
            if replica is not None:
                self._lose(replica, how, now)

    def _lose(self, replica: Replica, how: tuple[Outcome, str], now: float) -> None:
        for held in self._open.values():
            if held.replica == replica.index:
                held.left = how
        self._take(replica.fail(now), now)

    # how requests end

    def _take(self, news: News, now: float) -> None:
        for request_id in news.first_tokens:
            self._ledger.first_token(request_id)
        for output in news.ends:
            self._ended(output, now)

    def _ended(self, output: RequestOutput, now: float) -> None:
        held = self._open.pop(output.request_id)
        planned, timeline = held.planned, output.timeline
        assert timeline is not None
        assert output.finish is not None
        self._ledger.ended(output.request_id)
        outcome, reason = held.left or (timeline.outcome, output.error or _REASONS[output.finish])
        assert output.usage is not None
        self._prompts.ended(planned, held.prompt, output.usage.output_tokens)
        self._tell(
            Ended(
                planned=planned,
                plan_s=held.plan_s,
                sent_s=held.plan_s,
                end_s=now,
                outcome=outcome,
                reason=reason,
                http_status=200,
                replica=held.replica,
                timeline=timeline,
                usage=output.usage,
            )
        )

    def _refused(self, planned: PlannedRequest, now: float, outcome: Outcome, reason: str, status: int) -> None:
        self._tell(
            Ended(
                planned=planned,
                plan_s=now,
                sent_s=now,
                end_s=now,
                outcome=outcome,
                reason=reason,
                http_status=status,
                replica=-1,
            )
        )

    def _tell(self, ended: Ended) -> None:
        self.totals.num_ended += 1
        self._on_end(ended)
        for at_s, planned in self._client.ended(ended.planned, ended.end_s, ended.outcome):
            self._push_arrival(at_s, planned)
        if ended.outcome in GOES_ON:
            return
        self._prompts.forget(ended.planned)
        for planned in self._client.lost(ended.planned):
            self._on_end(
                Ended(
                    planned=planned,
                    plan_s=ended.end_s,
                    sent_s=NEVER,
                    end_s=NEVER,
                    outcome=Outcome.NOT_SENT,
                    reason=f"session: an earlier turn ended with {ended.outcome}",
                    http_status=0,
                    replica=-1,
                )
            )

    # replicas

    def _add(self) -> None:
        index = len(self.replicas)
        self.replicas.append(self._make_replica(index))
        self.num_requests.append(0)
        self._paid_from[index] = 0.0
        self._join(index)

    def _join(self, index: int) -> None:
        """It takes requests from now on."""
        self._ledger.join(index)

    def _depart(self, index: int) -> None:
        """It takes none any more, and what it had is lost."""
        self._ledger.leave(index)

    def start_replica(self, now: float) -> None:
        """One more; it takes requests when its cold start is over."""
        self.replicas.append(None)
        self.num_requests.append(0)
        self._start(len(self.replicas) - 1, now)

    def _start(self, index: int, now: float) -> None:
        self._num_starting += 1
        self._paid_from[index] = now
        self._events.push(now + self._cold_start_s, EventKind.CAPACITY, 0, index)

    def retire_replica(self) -> None:
        """The one with least to do, of equals the youngest, takes nothing new and is gone when it has nothing left."""
        load = min(reversed(self._ledger.loads), key=lambda load: load.num_open)
        self._retired.add(load.replica)
        self._depart(load.replica)

    def stop_retired(self, now: float) -> None:
        """Those of the retired that have nothing left are gone."""
        for index in sorted(self._retired):
            replica = self.replicas[index]
            if replica is not None and not replica.has_work:
                self.replicas[index] = None
                self._stop(replica, now)

    def _stop(self, replica: Replica, now: float) -> None:
        self._count(replica)
        self.totals.replica_s += now - self._paid_from.pop(replica.index)

    @property
    def num_ready(self) -> int:
        """Replicas that take requests."""
        return len(self._ledger.loads)

    @property
    def num_starting(self) -> int:
        return self._num_starting

    @property
    def num_open(self) -> int:
        """Requests that were sent and have not ended."""
        return len(self._open)

    def arrange(self, time: float, what: Callable[[float], None]) -> None:
        """Call `what(time)` then, if the load goes on so long."""
        self._events.push(time, EventKind.ARRANGED, 0, what)

    def _count(self, replica: Replica) -> None:
        self.totals.num_steps += replica.num_steps
        self.totals.busy_s += replica.busy_s


__all__ = ["Cluster", "Ended", "Joining", "Outage", "Totals"]
