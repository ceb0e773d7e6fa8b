"""What this machine could do at best: seconds of each load from bytes, operations and the rates that were measured.

A step takes as long as the longer of two things: reading the weights once and the KV of its rows, or its arithmetic,
products of weights at the int8 rate and attention at the bfloat16 rate. Weights are those of the file; KV has 16 bits.
Prompts are one step each load, for a chunk changes nothing here. Nothing else is counted, neither norms nor sampling
nor a scheduler, so no engine reaches it. Blocks that rows share are read once.
(Williams, Waterman and Patterson, "Roofline", 2009.)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.peers.engines.workloads import Load, figure_of

KV_BYTES = 2  # of a number


@dataclass(frozen=True)
class Rates:
    """Measured on all cores."""

    bytes_per_s: float  # reading as much memory as the weights take, again and again
    int8_ops: float  # per second, a product of matrices
    bf16_ops: float


@dataclass(frozen=True)
class Sizes:
    """Of a model. Linear weights are those every token meets; the head's only where a next token is wanted."""

    weight_bytes: int  # as stored, the head's included
    num_linear: int
    num_head: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int

    @property
    def kv_bytes_per_token(self) -> int:
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * KV_BYTES

    @property
    def ops_per_pair(self) -> int:
        """Attention: one query token and one key token, all heads and layers; scores and values."""
        return 4 * self.num_layers * self.num_heads * self.head_dim


@dataclass(frozen=True)
class Work:
    """Of one step."""

    linear_ops: float
    attention_ops: float
    num_bytes: float

    def seconds(self, rates: Rates) -> float:
        arithmetic = self.linear_ops / rates.int8_ops + self.attention_ops / rates.bf16_ops
        return max(self.num_bytes / rates.bytes_per_s, arithmetic)


def step(sizes: Sizes, *, num_tokens: int, num_sampled: int, num_pairs: int, num_kv_tokens: int) -> Work:
    """`num_pairs` of query and key tokens; `num_kv_tokens` are read from the cache."""
    return Work(
        linear_ops=2.0 * (sizes.num_linear * num_tokens + sizes.num_head * num_sampled),
        attention_ops=float(sizes.ops_per_pair * num_pairs),
        num_bytes=float(sizes.weight_bytes + sizes.kv_bytes_per_token * num_kv_tokens),
    )


def causal(num_tokens: int, before: int = 0) -> int:
    """Pairs of a prompt whose tokens see each other backwards, and `before` tokens in front of it."""
    return num_tokens * before + num_tokens * (num_tokens + 1) // 2


def steps(load: Load, sizes: Sizes) -> Iterator[Work]:
    """Those that the load's figure counts: W1 is decoding alone."""
    rows, own = load.num_prompts, load.num_in - load.num_shared
    if load.name != "W1":
        yield step(
            sizes,
            num_tokens=load.num_shared + rows * own,
            num_sampled=rows,
            num_pairs=causal(load.num_shared) + rows * causal(own, load.num_shared),
            num_kv_tokens=0,
        )
    for done in range(1, load.num_out):  # the first token came with the prompt
        context = load.num_in + done
        yield step(
            sizes,
            num_tokens=rows,
            num_sampled=rows,
            num_pairs=rows * context,
            num_kv_tokens=load.num_shared + rows * (context - load.num_shared),
        )


def total(load: Load, sizes: Sizes) -> Work:
    works = list(steps(load, sizes))
    return Work(*(sum(getattr(w, name) for w in works) for name in ("linear_ops", "attention_ops", "num_bytes")))


def limit(load: Load, sizes: Sizes, rates: Rates) -> float:
    """The load's figure at the limit, in its own unit."""
    return figure_of(load, sum(work.seconds(rates) for work in steps(load, sizes)))
