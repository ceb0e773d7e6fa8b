"""Why something happened: the reason codes of the scheduler, each with its numbers.

A decision is recorded when a request's reason changes, not at every step. A request behind a blocked one needs none of
its own: "behind X" is derived from queue order when somebody asks.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Kind(StrEnum):
    ADMIT = "admit"
    WAIT = "wait"
    CHUNK = "chunk"
    PREEMPT = "preempt"
    REFUSE = "refuse"
    FINISH = "finish"
    CLAMP = "clamp"


class Reason(StrEnum):
    # wait
    NO_ROWS = "no_rows"  # max_num_seqs rows are taken
    NO_BLOCKS = "no_blocks"  # its prompt plus headroom does not fit now
    NO_BUDGET = "no_budget"  # this step's tokens are spent
    TENANT_SHARE = "tenant_share"  # its tenant runs more than an equal part, and others are about
    PREFIX_IN_FLIGHT = "prefix_in_flight"  # another request is computing its next block
    LEADER_PREFILL = "leader_prefill"  # choice 0 of the same call is computing the prompt
    BATCH_WAIT = "batch_wait"  # max_wait_ms has not passed and the batch is not full
    STATIC_BATCH = "static_batch"  # static batching: the running batch must end first
    PACE = "pace"  # with one more row, running ones would miss their TPOT target
    LATE = "late"  # its TTFT target cannot be met any more: those in time go first
    AFTER_PREEMPTION = "after_preemption"  # nothing is admitted in a step that preempted
    # clamp
    TPOT_OUT_OF_REACH = "tpot_out_of_reach"  # a row alone would miss its TPOT target, so none is scheduled for
    # admit, chunk
    COLD = "cold"  # nothing cached for its first block
    CACHE_HIT = "cache_hit"
    RESUMED = "resumed"
    CHUNKED = "chunked"  # the prompt is longer than what this step may take
    PACED = "paced"  # the step takes in so much of the prompt that rows keep to their TPOT target
    FIRST_TOKEN_FIRST = "first_token_first"  # rows of tenants above their part skip the step of its first token
    FIRST_TOKEN_HELD = "first_token_held"  # all but its last position: its first token can wait, other prompts cannot
    # preempt
    BLOCKS_FOR_DECODE = "blocks_for_decode"
    ROW_FOR_PRIORITY = "row_for_priority"
    ROW_FOR_SHARE = "row_for_share"  # its tenant ran more than an equal part, the other's less
    BLOCKS_FOR_PRIORITY = "blocks_for_priority"
    CACHE_RESET = "cache_reset"
    # refuse
    NEVER_FITS = "never_fits"
    TOO_LONG = "too_long"
    INVALID = "invalid"
    QUEUE_REQUESTS = "queue_requests"
    QUEUE_TOKENS = "queue_tokens"
    TOO_LATE = "too_late"  # its first token would miss its target
    # finish
    STOP_TOKEN = "stop_token"
    STOP_STRING = "stop_string"
    GRAMMAR_END = "grammar_end"  # its grammar is complete: nothing could follow
    LENGTH = "length"
    ABORTED = "aborted"
    DEADLINE = "deadline"
    QUEUE_TIMEOUT = "queue_timeout"
    FAULT = "fault"


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    time: float
    step: int
    request_id: int
    kind: Kind
    reason: Reason
    numbers: dict[str, float] = msgspec.field(default_factory=dict)
    other: int | None = None  # the request it waits for, or was preempted for
