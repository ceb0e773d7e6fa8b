"""Prompts on some replicas, answers on others: prefill and decode apart, and the KV of a prompt carried between them.

    arrival      the router picks a prefill replica; there the request is one of a single token
    prefill ends that token and the prompt's KV leave for the decode replica with least to do, over the links of both
    KV is there  the client has its first token; the decode replica finds the prompt in its prefix cache and goes on

So TTFT is the prompt's wait and price, the wait for the links and the transfer; TPOT is the wait for a row on the
decode side and steps that hold no prompt. What the decode replica has cached is not sent. With `num_layers` above 1 the
KV of a layer leaves when that layer is computed: the transfer begins after a share 1 / num_layers of the prompt's time,
and at least the last layer's part comes after its end.

Not modelled: blocks held on the prefill side until they have left; a decode replica that is chosen, or reserves room,
before the prompt ends; blocks that arrived and were evicted before their request had a row are computed again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from paceline.contracts.request import FinishReason, Prompt, Request, RequestOutput, Usage
from paceline.contracts.slo import Outcome, Timeline
from paceline.contracts.workload import PlannedRequest
from paceline.cost.transfer import Link
from paceline.errors import ConfigError, RequestError
from paceline.router import Ask, LeastLoaded, Ledger
from paceline.sim.cluster import Cluster
from paceline.sim.events import EventKind
from paceline.sim.outcome import Open
from paceline.sim.prompts import Answers
from paceline.sim.replica import News

IN_TRANSIT = -2  # the replica of a request whose KV is on its way


class Split(msgspec.Struct, frozen=True, kw_only=True):
    """How a fleet is divided. `link`: one replica's, each way."""

    num_prefill: int  # the first so many replicas; the others decode
    link: Link
    kv_bytes_per_token: float
    num_layers: int = 1  # above 1: the KV of a layer leaves when it is computed

    def __post_init__(self) -> None:
        if self.num_prefill < 1 or self.num_layers < 1 or not 0 <= self.kv_bytes_per_token < float("inf"):
            raise ConfigError(
                "a division into prefill and decode cannot be",
                seen=f"{self.num_prefill} prefill, {self.num_layers} layers, {self.kv_bytes_per_token} bytes a token",
                expected="at least 1 replica and 1 layer, 0 bytes or more",
            )


class Links:
    """The links of all replicas: each sends one prompt's KV at a time, and receives one."""

    def __init__(self, split: Split) -> None:
        self._split = split
        self._sends_until: dict[int, float] = {}
        self._receives_until: dict[int, float] = {}
        self.busy_s = 0.0  # of all transfers
        self.waited_s = 0.0  # for links that were taken

    def send(self, source: int, target: int, num_bytes: float, *, began: float, ready: float) -> float:
        """When the last of `num_bytes` is there. The prompt was computed from `began` to `ready` (seconds)."""
        if num_bytes <= 0:
            return ready
        split = self._split
        first = ready - (ready - began) * (split.num_layers - 1) / split.num_layers
        free = max(self._sends_until.get(source, 0.0), self._receives_until.get(target, 0.0))
        takes_s = split.link.ms(num_bytes) / 1e3
        last_s = split.link.ms(num_bytes / split.num_layers) / 1e3
        there = max(max(first, free) + takes_s, ready + last_s)
        self._sends_until[source] = self._receives_until[target] = there
        self.busy_s += takes_s
        self.waited_s += max(0.0, free - first)
        return there


class SplitCluster(Cluster):
    """`Cluster` whose first replicas compute prompts and whose others answer. Arguments: those of `Cluster`, and the
    `answers` its replicas draw. Replicas that join decode."""

    def __init__(self, *arguments: Any, split: Split, answers: Answers, **options: Any) -> None:
        self._split = split
        self._answers = answers
        self.links = Links(split)
        self._decode_ledger = Ledger()
        self._decode_policy = LeastLoaded()
        super().__init__(*arguments, **options)
        if len(self.replicas) <= split.num_prefill:
            raise ConfigError(
                "no replica is left to decode",
                seen=f"{split.num_prefill} of {len(self.replicas)} replicas compute prompts",
                expected="fewer",
            )

    def _join(self, index: int) -> None:
        (self._ledger if index < self._split.num_prefill else self._decode_ledger).join(index)

    def _depart(self, index: int) -> None:
        (self._ledger if index < self._split.num_prefill else self._decode_ledger).leave(index)

    def _request(
        self, planned: PlannedRequest, prompt: Prompt, now: float, *, num_output: int = 0, prior: tuple[int, ...] = ()
    ) -> Request:
        """Without a number of tokens: its prompt's, which is one."""
        return super()._request(planned, prompt, now, num_output=num_output or 1, prior=prior)

    def _take(self, news: News, now: float) -> None:
        for request_id in news.first_tokens:
            self._decode_ledger.first_token(request_id)
        super()._take(news, now)

    def _ended(self, output: RequestOutput, now: float) -> None:
        held = self._open[output.request_id]
        if held.first is not None:
            self._decode_ledger.ended(output.request_id)
            timeline, usage = output.timeline, output.usage
            assert timeline is not None
            assert usage is not None
            output.timeline, output.usage = _both(held.first[0], timeline), _sum(held.first[1], usage)
        elif output.finish is FinishReason.LENGTH and held.left is None:
            self._ledger.ended(output.request_id)
            self._hand_over(held, output, now)
            return
        super()._ended(output, now)

    # the way over

    def _hand_over(self, held: Open, output: RequestOutput, now: float) -> None:
        """A prompt is computed: its KV leaves."""
        timeline, usage = output.timeline, output.usage
        assert timeline is not None
        assert usage is not None
        source, held.replica, held.first = held.replica, IN_TRANSIT, (timeline, usage)
        loads = self._decode_ledger.loads
        if not loads:
            return self._lost(held, (Outcome.STREAM_ERROR, "no replica to decode is up"), now)
        planned = held.planned
        num_output = max(1, planned.num_output_tokens)
        target, num_bytes, request = -1, 0.0, None
        if num_output > 1:
            prior = (self._answers.token(planned.id, 0),)
            request = self._request(planned, held.prompt, now, num_output=num_output, prior=prior)
            target = self._decode_policy.choose(Ask(planned.id, held.prompt.num_tokens), loads).replica
            known = self._cached(request)(target)
            num_bytes = max(0, held.prompt.num_tokens - known) * self._split.kv_bytes_per_token
            # it counts there from now on, or all that leave meanwhile would go the same way
            self._decode_ledger.sent(target, planned.id, held.prompt.num_tokens, held.prompt.num_tokens)
        there = self.links.send(source, target, num_bytes, began=timeline.admitted, ready=now) if request else now
        self._events.push(there, EventKind.ARRANGED, planned.id, self._arrival_of(held, request, target))
        return None

    def _arrival_of(self, held: Open, request: Request | None, target: int) -> Callable[[float], None]:
        return lambda now: self._take_over(held, request, target, now)

    def _take_over(self, held: Open, request: Request | None, target: int, now: float) -> None:
        """KV and first token are there."""
        planned = held.planned
        if self._open.get(planned.id) is not held:
            return None  # its client has left
        assert held.first is not None
        held.first[0].chunks = [(now, 1)]
        leaves_after = planned.faults.cancel_after_tokens
        if leaves_after is not None and leaves_after <= 1:
            return self._lost(held, (Outcome.CLIENT_CANCEL, "client: had enough"), now)
        if request is None:
            return self._lost(held, (Outcome.OK, FinishReason.LENGTH.value), now)
        replica = self.replicas[target]
        if replica is None:
            return self._lost(held, (Outcome.STREAM_ERROR, f"replica {target} failed"), now)
        num_prompt = held.prompt.num_tokens
        replica.kv.take_in(replica.kv.keys_for(request), num_prompt)
        faults = planned.faults
        try:
            replica.submit(
                msgspec.structs.replace(request, arrival=now),
                now,
                leaves_after=None if leaves_after is None else leaves_after - 1,
                may_leave=faults.timeout_s is not None or faults.disconnect_after_s is not None,
            )
        except RequestError as error:
            self._schedule(replica)  # a run of steps may have been settled for it
            return self._lost(held, (Outcome.STREAM_ERROR, error.code), now)
        held.replica = target
        self.num_requests[target] += 1
        replica.wake(now)
        self._schedule(replica)
        return None

    def _lost(self, held: Open, how: tuple[Outcome, str], now: float) -> None:
        """It ends between two replicas."""
        held.left = how
        assert held.first is not None
        timeline, usage = held.first
        timeline.end = now
        self._decode_ledger.ended(held.planned.id)
        finish = FinishReason.LENGTH if how[0] is Outcome.OK else FinishReason.ABORT
        super()._ended(
            RequestOutput(request_id=held.planned.id, token_ids=[], finish=finish, usage=usage, timeline=timeline),
            now,
        )

    def _leave(self, request_id: int, how: tuple[Outcome, str], now: float) -> None:
        held = self._open.get(request_id)
        if held is not None and held.replica == IN_TRANSIT:
            assert held.first is not None
            held.first[0].chunks = []  # the first token was on its way as well
            self._lost(held, how, now)
        else:
            super()._leave(request_id, how, now)

    def _drained(self, now: float) -> None:
        super()._drained(now)
        how = (Outcome.TIMEOUT, f"drain: {self._client.drain_s:g} s after the end of the load")
        for held in [held for held in self._open.values() if held.replica == IN_TRANSIT]:
            self._leave(held.planned.id, how, now)


def _both(first: Timeline, rest: Timeline) -> Timeline:
    """From the arrival at the first replica to the end at the second."""
    return Timeline(
        planned=first.planned,
        arrival=first.arrival,
        admitted=first.admitted,
        chunks=[*first.chunks, *rest.chunks],
        end=rest.end,
        blocks_free=rest.blocks_free,
        outcome=rest.outcome,
    )


def _sum(first: Usage, rest: Usage) -> Usage:
    """What both replicas did. Cached is what the first one hit: what the second found was sent to it."""
    return Usage(
        prompt_tokens=first.prompt_tokens,
        cached_tokens=first.cached_tokens,
        restored_tokens=rest.cached_tokens,
        computed_tokens=first.computed_tokens + rest.computed_tokens,
        wasted_tokens=first.wasted_tokens + rest.wasted_tokens,
        output_tokens=first.output_tokens + rest.output_tokens,
        kv_block_seconds=first.kv_block_seconds + rest.kv_block_seconds,
        preemptions=first.preemptions + rest.preemptions,
    )
