"""Attention steps over a randomly filled paged cache, with poison wherever nothing may be read."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from paceline.contracts.kv import KVLayout, ceil_div, kv_format, plan_kv_groups
from paceline.contracts.specs import LayerSpec, ModelSpec
from paceline.runtime.forward_context import AttentionMetadata, GroupMetadata
from paceline.runtime.kernels.params import AttentionParams
from paceline.runtime.kernels.reference.kv_int8 import from_records, to_records
from paceline.runtime.kernels.reference.kv_write import write_kv
from paceline.runtime.kv_cache import KVCache, LayerCache


@dataclass
class Case:
    q: torch.Tensor  # [T, heads, head_dim]
    kv: torch.Tensor  # [T, 2 * kv_heads, head_dim]
    cache: LayerCache
    metadata: AttentionMetadata
    params: AttentionParams
    history: list[torch.Tensor]  # per row [tokens of the row, 2 * kv_heads, head_dim]

    def fresh(self) -> AttentionMetadata:
        """The same step without what a kernel remembered of it."""
        group = self.metadata.groups[0]
        return AttentionMetadata(
            self.metadata.query_start_loc,
            self.metadata.seq_lens,
            self.metadata.query_lens,
            self.metadata.context_lens,
            (GroupMetadata(group.slot_mapping, group.block_tables),),
        )


def make_case(
    rows: list[tuple[int, int]],  # (context, queries) of each row
    *,
    heads: int = 6,
    kv_heads: int = 2,
    dim: int = 16,
    block_size: int = 16,
    window: int | None = None,
    softcap: float | None = None,
    shared: int = 0,  # leading tokens that all rows with that much context have in common
    dtype: torch.dtype = torch.float32,
    kv_dtype: torch.dtype | None = None,  # of the cache; None: dtype
    seed: int = 0,
) -> Case:
    generator = torch.Generator().manual_seed(seed)
    placing = random.Random(seed)
    lengths = [context + count for context, count in rows]
    num_blocks = sum(ceil_div(length, block_size) for length in lengths) + 3
    spec = ModelSpec(
        family="llama",
        name="x",
        revision="",
        vocab_size=1,
        hidden_size=heads * dim,
        intermediate_size=1,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=dim,
        layers=(LayerSpec(),),
        max_model_len=1,
    )
    name = str(kv_dtype or dtype).removeprefix("torch.")
    held = kv_format(name, spec)
    groups = plan_kv_groups(spec, block_size, held.element_bytes, held.scale_bytes)
    store = KVCache(KVLayout(groups=groups, num_blocks=num_blocks, dtype=name), spec, kv_dtype or dtype)
    store.poison(range(1, num_blocks + 1))
    written = dtype if kv_dtype in (None, torch.int8) else kv_dtype  # a cache of int8 rounds by itself
    cache = store.layer_cache(0)
    free = list(range(1, num_blocks + 1))
    placing.shuffle(free)
    common = torch.randn(shared, 2 * kv_heads, dim, generator=generator).to(dtype)
    common_blocks = [free.pop() for _ in range(shared // block_size)]
    tables, history, slots, q, kv = [], [], [], [], []
    for (context, count), length in zip(rows, lengths, strict=True):
        own = torch.randn(length, 2 * kv_heads, dim, generator=generator).to(dtype)
        table = []
        if shared and context >= shared:
            own[:shared] = common
            table = list(common_blocks)
        table += [free.pop() for _ in range(ceil_div(length, block_size) - len(table))]
        places = torch.tensor([table[p // block_size] * block_size + p % block_size for p in range(length)])
        write_kv(own[:context].to(written), cache, places[:context])
        history.append(own)
        slots.append(places[context:])
        q.append(torch.randn(count, heads, dim, generator=generator).to(dtype))
        kv.append(own[context:])
        if window is not None:  # what slid out belongs to others now
            gone = max(0, context - window + 1) // block_size
            store.poison(table[:gone])
        tables.append(table)
    width = max(map(len, tables)) + 2
    padded = torch.full((len(rows), width), free[0], dtype=torch.int32)  # padding points at poison
    for index, table in enumerate(tables):
        padded[index, : len(table)] = torch.tensor(table)
    counts = [count for _, count in rows]
    metadata = AttentionMetadata(
        query_start_loc=torch.tensor([0, *counts]).cumsum(0).int(),
        seq_lens=torch.tensor(lengths, dtype=torch.int32),
        query_lens=np.asarray(counts, np.int64),
        context_lens=np.asarray([context for context, _ in rows], np.int64),
        groups=(GroupMetadata(torch.cat(slots), padded),),
    )
    write_kv(torch.cat(kv).to(written), cache, metadata.groups[0].slot_mapping)
    params = AttentionParams(heads, kv_heads, dim, 0.3, window, softcap)
    return Case(torch.cat(q), torch.cat(kv), cache, metadata, params, history)


def naive(case: Case) -> torch.Tensor:
    """The definition, one query at a time, in float64: [T, heads * head_dim]. Of what the cache holds, if it rounds."""
    params, out, at = case.params, [], 0
    per_kv = params.num_heads // params.num_kv_heads
    for row, (context, count) in enumerate(zip(case.metadata.context_lens, case.metadata.query_lens, strict=True)):
        held = from_records(to_records(case.history[row])) if case.cache.has_scales else case.history[row]
        kv = held.double().repeat_interleave(per_kv, 1).transpose(0, 1)  # [2 * heads, length, head_dim]
        for last in range(context, context + count):
            first = 0 if params.window is None else max(0, last - params.window + 1)
            seen = kv[:, first : last + 1]
            scores = (seen[: params.num_heads] @ case.q[at].double()[:, :, None])[:, :, 0] * params.scale
            if params.softcap is not None:
                scores = params.softcap * torch.tanh(scores / params.softcap)
            out.append((torch.softmax(scores, -1)[:, None] @ seen[params.num_heads :]).reshape(-1))
            at += 1
    return torch.stack(out)


def ask_alone(
    kernel: Callable[..., torch.Tensor], history: torch.Tensor, q: torch.Tensor, extra: dict[str, Any]
) -> torch.Tensor:
    """One row of its own whose K and V are `history`; its last positions ask `q`."""
    context = len(history) - len(q)
    case = make_case([(context, len(q))], seed=context, **extra)
    table, size = case.metadata.groups[0].block_tables[0].long(), case.cache.block_size
    window = extra.get("window")
    lowest = 0 if window is None else max(0, context - window + 1) // size * size
    positions = torch.arange(lowest, len(history))
    held = history[lowest:]
    if not case.cache.has_scales:  # a cache of 8 bits is written with rounding
        held = held.to(case.cache.kv.dtype)
    write_kv(held, case.cache, table[positions // size] * size + positions % size)
    case.q.copy_(q)
    with torch.inference_mode():
        return kernel(case.q, case.kv, case.cache, case.metadata, case.params)


def check_rows_alone(
    kernel: Callable[..., torch.Tensor], case: Case, together: torch.Tensor, extra: dict[str, Any], *, parts: int = 3
) -> None:
    """Each row alone, in other chunks and other blocks, equals the same row of `together` to the last bit."""
    counts, contexts = case.metadata.query_lens.tolist(), case.metadata.context_lens
    rows = zip(contexts, counts, case.q.split(counts), together.split(counts), strict=True)
    for row, (context, count, queries, expected) in enumerate(rows):
        size = max(1, count // parts)
        for at in range(0, count, size):
            q = queries[at : at + size]
            got = ask_alone(kernel, case.history[row][: context + at + len(q)], q, extra)
            assert torch.equal(got, expected[at : at + len(q)]), (row, at)
