"""What a call takes from its tenant's limits and what it is charged: one record for each sequence, exactly once.

A record is made when the engine has said its last word about a sequence, whether or not anybody still listens, or when
the call is turned away before the engine had it. The lease goes back with the last sequence.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec

from paceline.contracts.request import Usage
from paceline.contracts.slo import Outcome, Timeline
from paceline.errors import EngineError, QueueFullError, RateLimitError
from paceline.server.tenancy.usage_record import UsageRecord

if TYPE_CHECKING:
    from paceline.contracts.request import FinishReason, RequestOutput
    from paceline.server.api.choice import Choice
    from paceline.server.state import ServerState
    from paceline.server.tenancy.classes import Terms
    from paceline.server.tenancy.tenants import Lease, Tenant


class Meter:
    """Of one call. Used from the event loop alone."""

    def __init__(
        self,
        state: ServerState,
        tenant: Tenant,
        terms: Terms,
        *,
        request_id: str,
        arrival: float,
        num_prompt_tokens: int,
        num_sequences: int,
    ) -> None:
        self.closed_at: float | None = None  # when the client left
        self._state = state
        self._tenant = tenant
        self._terms = terms
        self._request_id = request_id
        self._arrival = arrival
        self._num_prompt_tokens = num_prompt_tokens
        self._num_sequences = num_sequences
        self._lease: Lease | None = None
        self._num_open = 0  # sequences at the engine, or on their way there
        self._num_output_tokens = 0
        self._served = False  # the engine had some of it
        self._verdict: Outcome | None = None  # overrules the engine's word: it cannot know why we gave up

    def admit(self, max_output_tokens: int) -> None:
        """Raises RateLimitError, or RequestError for a call the tenant's limits could never let in."""
        self._lease = self._state.tenants.admit(
            self._tenant,
            self._num_prompt_tokens,
            max_output_tokens,
            time.monotonic(),
            num_sequences=self._num_sequences,
        )

    def headers(self) -> dict[str, str]:
        """What a client may know about its limits; empty without limits."""
        return {} if self._lease is None else self._lease.headers(time.monotonic())

    def handing_over(self, num_sequences: int) -> None:
        """So many sequences go to the engine."""
        self._num_open += num_sequences

    def came_back(self, num_sequences: int) -> None:
        """The engine refused them."""
        self._num_open -= num_sequences
        self._settle()

    def first_token(self) -> None:
        if self._lease is not None:
            self._lease.started()

    def last_word(self, choice: Choice, output: RequestOutput) -> None:
        """The engine's, about one sequence."""
        choice.last = output
        usage, timeline = output.usage, output.timeline
        if usage is None:  # the engine died: what had come counts
            usage = Usage(prompt_tokens=choice.request.num_prompt, output_tokens=choice.num_tokens)
        if timeline is None:
            timeline = self._lost(Outcome.STREAM_ERROR)
        if self._verdict is not None:
            timeline = msgspec.structs.replace(timeline, outcome=self._verdict)
        self._served = True
        self._num_output_tokens += usage.output_tokens
        self._record(choice.index, timeline, usage, output.finish)
        self._num_open -= 1
        self._settle()

    def give_up(self, error: BaseException, num_adopted: int) -> None:
        """The call ends here, before all of it was taken in. Sequences from `num_adopted` on have no other record; a
        client's mistake gets none at all."""
        self._verdict = _verdict_of(error)
        if self._verdict is not None:
            for index in range(num_adopted, self._num_sequences):
                self._record(index, self._lost(self._verdict), None, None)
        self._settle()

    def _record(self, index: int, timeline: Timeline, usage: Usage | None, finish: FinishReason | None) -> None:
        record = UsageRecord.of(
            time=time.time(),
            request_id=self._request_id,
            tenant=self._tenant.name,
            service_class=self._terms.service_class.name,
            model=self._state.model.id,
            slo=self._terms.slo,
            timeline=timeline,
            usage=usage,
            finish=finish,
            choice=index,
            closed_at=self.closed_at,
        )
        self._state.usage.record(record)
        self._state.metrics.on_finish(record, timeline)
        self._state.live.on_finish(timeline)

    def _settle(self) -> None:
        if self._lease is not None and self._num_open == 0:
            used = self._num_prompt_tokens + self._num_output_tokens if self._served else None
            self._lease.settle(used, time.monotonic())

    def _lost(self, outcome: Outcome) -> Timeline:
        """Of a sequence about which the engine says nothing."""
        return Timeline(planned=self._arrival, arrival=self._arrival, end=time.monotonic(), outcome=outcome)


def _verdict_of(error: BaseException) -> Outcome | None:
    """How a call ended that the engine never had as a whole; None for a client that was wrong, or left."""
    if isinstance(error, (QueueFullError, RateLimitError)):
        return Outcome.REJECTED
    return Outcome.HTTP_ERROR if isinstance(error, EngineError) else None
