"""Every knob of the scheduler, with what it trades. One frozen value, checked once, never written afterwards."""

from __future__ import annotations

from typing import Literal

import msgspec

from paceline.contracts.ports import ExecutorCaps
from paceline.errors import ConfigError

Policy = Literal["fcfs", "priority", "fair"]
PrefillPriority = Literal["decode_first", "prefill_first"]
Preemption = Literal["recompute"]
Batching = Literal["continuous", "static"]
SchedulingMode = Literal["fixed", "auto"]


class SchedulerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Knobs of one scheduler. Raises ConfigError for a value, or a pair of values, that cannot work."""

    max_num_seqs: int = 64  # rows that run at once: more throughput, slower tokens for each
    max_num_batched_tokens: int = 2048  # positions a step aims at: faster prefill, longer gaps between tokens
    prefill_chunk_tokens: int | None = None  # most prompt positions of one request in a step; None = the step's budget
    min_prefill_tokens: int = 1  # positions kept for prefill even when decode rows and drafts would fill the step
    max_model_len: int = 4096  # prompt and output together
    policy: Policy = (
        "priority"  # fcfs: arrival only; priority: class, then arrival; fair: class, then least served tenant
    )
    prefill_priority: PrefillPriority = "decode_first"  # who takes the budget first
    max_wait_ms: float = 0.0  # hold admission this long for a fuller batch; 0 = never
    watermark: float = 0.01  # share of all blocks kept free at admission while others run
    preemption: Preemption = "recompute"  # what a victim's KV becomes
    batching: Batching = "continuous"  # static: a batch runs to its end before the next is admitted (a baseline)
    max_waiting_requests: int | None = None  # None = unbounded
    max_waiting_tokens: int | None = None  # None = unbounded
    wait_for_prefix: bool = True  # wait for a prefix that another request is computing, when that is cheaper
    scheduling_mode: SchedulingMode = "fixed"  # auto: budget, order and admission follow targets and prices (slack.py)
    num_draft_tokens: int = 0  # most draft tokens per row and step; 0 = no speculation

    def __post_init__(self) -> None:
        def need(ok: bool, name: str, expected: str) -> None:
            if not ok:
                raise ConfigError(f"{name} is out of range", seen=getattr(self, name), expected=expected)

        need(self.max_num_seqs >= 1, "max_num_seqs", "at least 1")
        need(self.max_num_batched_tokens >= 1, "max_num_batched_tokens", "at least 1")
        chunk = self.prefill_chunk_tokens
        need(chunk is None or chunk >= 1, "prefill_chunk_tokens", "at least 1, or None for the step's budget")
        need(
            1 <= self.min_prefill_tokens <= self.max_num_batched_tokens,
            "min_prefill_tokens",
            f"1 to max_num_batched_tokens ({self.max_num_batched_tokens})",
        )
        need(self.max_model_len >= 2, "max_model_len", "at least 2 (one prompt token and one output token)")
        need(0.0 <= self.max_wait_ms < float("inf"), "max_wait_ms", "0 or more milliseconds, finite")
        need(0.0 <= self.watermark < 1.0, "watermark", "0 to below 1")
        for name in ("max_waiting_requests", "max_waiting_tokens"):
            bound = getattr(self, name)
            need(bound is None or bound >= 1, name, "at least 1, or None for no bound")
        need(self.num_draft_tokens >= 0, "num_draft_tokens", "0 or more")
        for name, choices in (
            ("policy", ("fcfs", "priority", "fair")),
            ("prefill_priority", ("decode_first", "prefill_first")),
            ("preemption", ("recompute",)),
            ("batching", ("continuous", "static")),
            ("scheduling_mode", ("fixed", "auto")),
        ):
            need(getattr(self, name) in choices, name, " or ".join(choices))

        if self.by_slack and (self.batching != "continuous" or self.prefill_priority != "decode_first"):
            raise ConfigError(
                "scheduling_mode auto decides by itself what a step takes in",
                seen=f"batching={self.batching}, prefill_priority={self.prefill_priority}",
                expected="batching=continuous and prefill_priority=decode_first",
                fix="set scheduling_mode to fixed, or leave the other two alone",
            )

    def check_caps(self, caps: ExecutorCaps) -> None:
        """Refuse settings that this executor cannot run, before any request comes."""
        if self.max_num_seqs > caps.max_rows:
            raise ConfigError(
                "max_num_seqs is more than the executor has rows",
                seen=self.max_num_seqs,
                expected=f"at most {caps.max_rows}",
            )
        if self.max_num_batched_tokens > caps.max_tokens:
            raise ConfigError(
                "max_num_batched_tokens is more than a step of this executor may compute",
                seen=self.max_num_batched_tokens,
                expected=f"at most {caps.max_tokens}",
            )
        # Decode rows are never cut: all other rows decode, and the one that does not still gets its minimum.
        worst = self.max_num_seqs - 1 + self.min_prefill_tokens
        if worst > caps.max_tokens:
            raise ConfigError(
                "decode rows and the minimum share of prefill do not fit one step of this executor",
                seen=f"{self.max_num_seqs - 1} decode rows + {self.min_prefill_tokens} prefill tokens",
                expected=f"at most {caps.max_tokens} positions",
                fix="lower max_num_seqs or min_prefill_tokens, or raise the executor's max_tokens",
            )
        if self.num_draft_tokens and not caps.spec_kinds:
            raise ConfigError(
                "this executor cannot verify draft tokens",
                seen=f"num_draft_tokens={self.num_draft_tokens}",
                expected="0",
            )
        if self.num_draft_tokens and not caps.rewindable:
            raise ConfigError(
                "speculation needs a state that can be rewound, and this model's cannot",
                seen=f"num_draft_tokens={self.num_draft_tokens}",
                expected="0",
                fix="set num_draft_tokens to 0",
            )

    @property
    def by_slack(self) -> bool:
        """Targets and prices decide what a step takes in."""
        return self.scheduling_mode == "auto"

    @property
    def max_chunk_tokens(self) -> int:
        """Most positions of one request in one step."""
        chunk = self.max_num_batched_tokens if self.prefill_chunk_tokens is None else self.prefill_chunk_tokens
        return max(min(chunk, self.max_num_batched_tokens), self.min_prefill_tokens, 1 + self.num_draft_tokens)

    def max_uncommitted_tokens(self, max_in_flight: int) -> int:
        """Most positions of one request that are planned and not yet computed: the KV manager's `max_chunk_tokens`."""
        return self.max_chunk_tokens * max_in_flight
