"""Replicas whose KV cache has lower tiers: where evicted blocks go, and requests that wait for theirs.

    arrival      its prompt's blocks behind the device's own hit are looked up; `restores` chooses how many to bring
    on the way   it waits beside the scheduler, and counts as waiting for the router; the links are taken
    there        the blocks are in the device's prefix cache; the scheduler takes the request, and finds a hit

So the engine's part is the engine's. A second request that wants blocks on their way waits for the same transfer. A
transfer goes on when its client leaves; when its replica fails, what it brought and the replica's own tiers are lost.

A replica is looked at (`note`) when a request comes, has its blocks, or ends; at these moments it is where single steps
would be (`Replica.settle`), so runs of steps change nothing.

Not modelled: room kept for blocks on their way (at most what is available is brought; what finds no room is computed),
requests that are preempted and find blocks in tiers when they come back, waiting ones in the bounds of the queue.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from paceline.contracts.kv import BlockKey, BlockStored
from paceline.contracts.request import FinishReason, Request, RequestOutput, Usage
from paceline.contracts.slo import Outcome, Timeline
from paceline.engine.kv_manager import SequenceKeys
from paceline.errors import QueueFullError, RequestError
from paceline.sim.cluster import Cluster
from paceline.sim.outcome import Ended, Open
from paceline.sim.replica import News, Replica
from paceline.sim.restores import NOTHING, Choice, Offer, RestorePolicy, choose, prefill_ms
from paceline.sim.tiers import Stack, Tier, TierSpec, check_order

MOST_EVENTS = 1 << 22  # of a replica's cache between two looks


class Tiering(msgspec.Struct, frozen=True, kw_only=True):
    """The tiers of each replica, nearest first, and when they are read."""

    tiers: tuple[TierSpec, ...]
    policy: RestorePolicy = "priced"

    def __post_init__(self) -> None:
        check_order(self.tiers)


class Found(msgspec.Struct, frozen=True):
    """Blocks behind a device's hit that are on their way to it or in its tiers, one after the other."""

    begin: int  # blocks that the device has
    sources: list[Tier | None]  # by block; None: on its way
    choice: Choice


class Transfer(msgspec.Struct, frozen=True):
    """Blocks that come for one request."""

    request: Request
    keys: SequenceKeys
    blocks: list[int]  # of its sequence, those that are fetched for it
    num_tokens: int  # from the start of its sequence, that the device should then have
    leaves_after: int | None
    may_leave: bool


class TieredReplica(Replica):
    """`equip` it before its first request."""

    def equip(
        self,
        stack: Stack,
        policy: RestorePolicy,
        now: float,
        arrange: Callable[[float, Transfer], None],
    ) -> None:
        """`arrange(time, transfer)`: call `land` then."""
        self.stack = stack
        self._policy = policy
        self._arrange = arrange
        self._noted = now
        self._block_size = self.kv.layout.block_size
        self._chunk_tokens = self.scheduler.settings.max_chunk_tokens
        self._coming: dict[BlockKey, float] = {}  # when blocks will have landed
        self._waiting: dict[int, Transfer] = {}  # requests
        self.restored: dict[int, tuple[int, int]] = {}  # open requests: first position that was brought, and the end

    @property
    def has_work(self) -> bool:
        return super().has_work or bool(self._waiting)

    # looking

    def note(self, now: float) -> None:
        """Take in what the device's cache has gained and evicted since the last look, of each block the last news."""
        taken = self.kv.take_events()
        assert not taken.num_dropped, "more happened to a cache than was kept"
        last: dict[BlockKey, bool] = {}
        for event in taken.events:
            key = event.key  # type: ignore[union-attr]  # a simulated cache is never cleared
            last.pop(key, None)
            last[key] = isinstance(event, BlockStored)
        if last:
            self.stack.give_up([key for key, stored in last.items() if stored])
            self.stack.push([key for key, stored in last.items() if not stored], self._noted)
        self._noted = now

    def look(self, keys: SequenceKeys, num_prompt: int, num_hit: int, now: float, *, hidden_ms: float = 0.0) -> Found:
        """What tiers hold of a prompt behind the `num_hit` tokens that the device has, and how much of it to bring.
        Changes nothing."""
        begin = num_hit // self._block_size
        most = min((num_prompt - 1) // self._block_size, len(keys))
        sources: list[Tier | None] = []
        counts: dict[Tier | None, int] = {}
        offers: list[Offer] = []
        comes = now

        def offer() -> None:
            ms = max(
                tier.read_ms(num, now) if tier is not None else 1e3 * (comes - now) for tier, num in counts.items()
            )
            offers.append(Offer(len(sources), ms))

        for key in keys.keys[begin:most]:
            when = self._coming.get(key)
            source = None if when is not None else self.stack.find(key, now)
            if when is None and source is None:
                break
            if counts and source not in counts:
                offer()
            sources.append(source)
            counts[source] = counts.get(source, 0) + 1
            comes = max(comes, when or 0.0)
        if not sources:
            return Found(begin, sources, NOTHING)
        offer()
        whole_ms = 0.0

        def saved_ms(num_blocks: int) -> float:
            nonlocal whole_ms
            whole_ms = whole_ms or self._prefill_ms(begin, num_prompt)
            return whole_ms - self._prefill_ms(begin + num_blocks, num_prompt)

        return Found(
            begin,
            sources,
            choose(offers, saved_ms, self._policy, num_running=self.scheduler.num_running, hidden_ms=hidden_ms),
        )

    def _prefill_ms(self, num_blocks: int, num_prompt: int) -> float:
        return prefill_ms(self._cost, num_blocks * self._block_size, num_prompt, self._chunk_tokens)

    def worth(self, keys: SequenceKeys, num_prompt: int, num_hit: int, now: float) -> int:
        """Tokens in the device's cache that would save as much as what tiers hold: those that it has, and those that
        it would bring, less the time that this takes."""
        choice = self.look(keys, num_prompt, num_hit, now).choice
        if not choice.num_blocks or choice.recompute_ms <= 0:
            return num_hit
        share = 1.0 - choice.restore_ms / choice.recompute_ms
        return max(0, num_hit + int(choice.num_blocks * self._block_size * share))

    # requests

    def submit(self, request: Request, now: float, leaves_after: int | None = None, may_leave: bool = False) -> None:
        """As a replica does, or later, when its blocks are there (`land`)."""
        self.settle(now)
        self.note(now)
        keys, num_prompt = self.kv.keys_for(request), request.num_prompt
        quote = self.kv.quote(request.request_id, keys, num_prompt, max_hit_tokens=num_prompt - 1)
        hidden_ms = 0.0 if self.is_idle else 1e3 * max(0.0, self.next_time - now)  # of the step that runs
        found = self.look(keys, num_prompt, quote.hit_tokens, now, hidden_ms=hidden_ms)
        num = min(found.choice.num_blocks, self.kv.num_available)
        self._tell_refused(found, num)
        if not num:
            super().submit(request, now, leaves_after=leaves_after, may_leave=may_leave)
            return
        self.kv.take_in(keys, quote.hit_tokens, ())  # what it has is used now: it should still be there then
        begin, sources, choice = found.begin, found.sources[:num], found.choice
        time, blocks = now, []
        for tier in self.stack.tiers:
            here = [begin + index for index, source in enumerate(sources) if source is tier]
            if here:
                there = tier.read([keys.keys[index] for index in here], now)
                tier.restore_ms.append(1e3 * (there - now))
                tier.recompute_ms.append(choice.recompute_ms * len(here) / choice.num_blocks)
                time = max(time, there)
                blocks += here
        for index, source in enumerate(sources):
            if source is None:
                time = max(time, self._coming[keys.keys[begin + index]])
        blocks.sort()
        self._coming |= {keys.keys[index]: time for index in blocks}
        num_tokens = (begin + num) * self._block_size
        transfer = Transfer(request, keys, blocks, num_tokens, leaves_after, may_leave)
        self._waiting[request.request_id] = transfer
        self.restored[request.request_id] = (begin * self._block_size, num_tokens)
        self._arrange(time, transfer)

    def _tell_refused(self, found: Found, num: int) -> None:
        for tier in self.stack.tiers:
            if tier in found.sources[num:]:
                tier.num_refused += 1

    def land(self, transfer: Transfer, now: float) -> bool:
        """Its blocks are there. True: its request was given to the scheduler; False: its client had left. Raises what
        `submit` raises, for this request."""
        self.settle(now)
        self.note(now)
        keys = transfer.keys
        for index in transfer.blocks:
            del self._coming[keys.keys[index]]
        self.kv.take_in(keys, transfer.num_tokens, transfer.blocks)
        if self._waiting.pop(transfer.request.request_id, None) is None:
            return False
        super().submit(transfer.request, now, leaves_after=transfer.leaves_after, may_leave=transfer.may_leave)
        return True

    def abort(self, request_id: int, now: float) -> News:
        transfer = self._waiting.pop(request_id, None)
        return super().abort(request_id, now) if transfer is None else News(ends=[_gone(transfer.request, now)])

    def fail(self, now: float) -> News:
        waiting = [_gone(transfer.request, now) for transfer in self._waiting.values()]
        self._waiting.clear()
        news = super().fail(now)
        return News(news.first_tokens, news.left, waiting + news.ends) if waiting else news


def _gone(request: Request, now: float) -> RequestOutput:
    """The end of one that no scheduler has seen."""
    return RequestOutput(
        request_id=request.request_id,
        token_ids=[],
        finish=FinishReason.ABORT,
        usage=Usage(prompt_tokens=request.num_prompt),
        timeline=Timeline(planned=request.arrival, arrival=request.arrival, end=now, blocks_free=now),
    )


class TieredCluster(Cluster):
    """`Cluster` whose replicas have tiers. `make_replica` builds a `TieredReplica`; `block_bytes` is the size of a
    block in a tier; the rest are the arguments of `Cluster`. A router that looks at caches is told what a replica's
    tiers are worth as well."""

    def __init__(
        self,
        make_replica: Callable[[int], TieredReplica],
        *arguments: Any,
        tiering: Tiering,
        block_bytes: int,
        **options: Any,
    ) -> None:
        self._tiering = tiering
        self._block_bytes = block_bytes
        self._shared = [Tier(spec, block_bytes) for spec in tiering.tiers if spec.shared]
        self.tiers: dict[str, list[Tier]] = {spec.name: [] for spec in tiering.tiers}  # all there were, by name
        for tier in self._shared:
            self.tiers[tier.spec.name].append(tier)
        super().__init__(lambda index: self._equipped(make_replica(index)), *arguments, **options)

    def _equipped(self, replica: TieredReplica) -> TieredReplica:
        now = self._events.now
        own = [Tier(spec, self._block_bytes, now) for spec in self._tiering.tiers if not spec.shared]
        for tier in own:
            self.tiers[tier.spec.name].append(tier)

        def arrange(time: float, transfer: Transfer) -> None:
            self.arrange(time, lambda there: self._landed(replica, transfer, there))

        replica.equip(Stack([*own, *self._shared]), self._tiering.policy, now, arrange)
        return replica

    def _landed(self, replica: TieredReplica, transfer: Transfer, now: float) -> None:
        if self.replicas[replica.index] is not replica:
            return  # it is gone, and so is what came
        request_id = transfer.request.request_id
        try:
            if replica.land(transfer, now):
                replica.wake(now)
        except QueueFullError as error:
            self._turned_away(request_id, now, Outcome.REJECTED, error.code, 429)
        except RequestError as error:
            self._turned_away(request_id, now, Outcome.HTTP_ERROR, error.message, 400)
        self._schedule(replica)

    def _turned_away(self, request_id: int, now: float, outcome: Outcome, reason: str, status: int) -> None:
        """The scheduler did not take it, after its wait."""
        held = self._forgotten(request_id)
        self._open.pop(request_id)
        self._ledger.ended(request_id)
        self._tell(
            Ended(
                planned=held.planned,
                plan_s=held.plan_s,
                sent_s=held.plan_s,
                end_s=now,
                outcome=outcome,
                reason=reason,
                http_status=status,
                replica=-1,
            )
        )

    def _forgotten(self, request_id: int) -> Open:
        """An open request that ends; what its replica kept about it is forgotten."""
        held = self._open[request_id]
        replica = self.replicas[held.replica]
        if isinstance(replica, TieredReplica):
            replica.restored.pop(request_id, None)
        return held

    def _cached(self, request: Request) -> Callable[[int], int]:
        held, now = super()._cached(request), self._events.now
        known: dict[int, int] = {}
        keys: SequenceKeys | None = None

        def ask(index: int) -> int:
            nonlocal keys
            if index not in known:
                replica = self.replicas[index]
                assert isinstance(replica, TieredReplica)
                keys = replica.kv.keys_for(request) if keys is None else keys
                known[index] = replica.worth(keys, request.num_prompt, held(index), now)
            return known[index]

        return ask

    def _ended(self, output: RequestOutput, now: float) -> None:
        held, usage, timeline = self._open[output.request_id], output.usage, output.timeline
        replica = self.replicas[held.replica]
        if isinstance(replica, TieredReplica):  # not one that has failed
            replica.note(now)
            begin, end = replica.restored.pop(output.request_id, (0, 0))
            if end:
                assert usage is not None
                assert timeline is not None
                usage.restored_tokens = max(0, min(usage.cached_tokens, end) - begin)
                usage.cached_tokens -= usage.restored_tokens
                timeline.arrival = timeline.planned  # it waited from then on, for its blocks and then for a row
        super()._ended(output, now)

    def _stop(self, replica: Replica, now: float) -> None:
        assert isinstance(replica, TieredReplica)
        for tier in replica.stack.own:
            tier.until = now
        super()._stop(replica, now)
