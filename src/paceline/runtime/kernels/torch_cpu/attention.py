"""Paged attention on a CPU: gather blocks, then batched products over (row, KV head) with the query heads packed.

Shapes: T tokens, B rows of a batch, L gathered slots a row, P shared slots, H KV heads, G query heads per KV head,
D head_dim, n queries of a chunk.
"""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F

from paceline.runtime.forward_context import AttentionMetadata
from paceline.runtime.kernels.dispatch import native_half
from paceline.runtime.kernels.params import AttentionParams
from paceline.runtime.kernels.torch_cpu.plan import DecodeBatch, DecodeFamily, PrefillRow, StepPlan, plan_step
from paceline.runtime.kv_cache import LayerCache

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


def attention(
    q: torch.Tensor, kv: torch.Tensor, cache: LayerCache, metadata: AttentionMetadata, params: AttentionParams
) -> torch.Tensor:
    """q [T, heads, D] against the cache, into which kv [T, 2 * H, D] is already written. Returns [T, heads * D].

    Half precision is computed in float32 where the CPU has no instructions for it.
    """
    dtype = q.dtype if native_half(q.dtype) else torch.float32
    group = metadata.groups[cache.group]
    if group.plan is None:
        group.plan = plan_step(metadata, cache, params, dtype)
    plan: StepPlan = group.plan
    wide = q if q.dtype == dtype else q.to(dtype)
    out = torch.empty(q.shape[0], params.num_heads * params.head_dim, dtype=dtype)
    if plan.decode:
        _decode_all(wide, out, plan, cache, params)
    for row in plan.prefill:
        out[row.start : row.stop] = _prefill(wide, kv, row, cache, params)
    return out if dtype == q.dtype else out.to(q.dtype)


def _gather(name: str, index: torch.Tensor, cache: LayerCache, dtype: torch.dtype) -> torch.Tensor:
    """Rows of LayerCache.runs in scratch memory, as `dtype`."""
    runs = cache.runs
    num = index.shape[0] * runs.shape[1]
    out = cache.workspace.take(name, num, runs.dtype, runs.device).view(index.shape[0], -1)
    torch.index_select(runs, 0, index, out=out)
    if runs.dtype == dtype:
        return out
    wide = cache.workspace.take(name, num, dtype, runs.device).view_as(out)
    return wide.copy_(out)


# decode


@cache
def _nothing(dtype: torch.dtype) -> torch.Tensor:
    """The addend of a scaled product that has none."""
    return torch.zeros(1, 1, 1, dtype=dtype)


def _shared(
    family: DecodeFamily, cache: LayerCache, params: AttentionParams, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """(K, V) of the blocks that a family shares, each [H, P, D]."""
    if family.gather is None:
        return None
    gathered = _gather("shared", family.gather, cache, dtype).view(2, params.num_kv_heads, -1, params.head_dim)
    return gathered[0], gathered[1]


def _decode_all(q: torch.Tensor, out: torch.Tensor, plan: StepPlan, cache: LayerCache, params: AttentionParams) -> None:
    """All rows with one query: q [T, heads, D], out [T, heads * D]."""
    shape = (q.shape[0] * params.num_kv_heads, params.num_heads // params.num_kv_heads, params.head_dim)
    if plan.order is None:
        batch = plan.decode[0].batches[0]
        _decode(q.view(shape), out.view(shape), batch, None, cache, params)
        return
    queries = q.reshape(shape).index_select(0, plan.order)
    results = torch.empty_like(queries)
    begin = 0
    for family in plan.decode:
        shared = _shared(family, cache, params, q.dtype)
        for batch in family.batches:
            end = begin + params.num_kv_heads * batch.num_rows
            _decode(queries[begin:end], results[begin:end], batch, shared, cache, params)
            begin = end
    out.view(shape).index_copy_(0, plan.order, results)


def _decode(
    queries: torch.Tensor,
    out: torch.Tensor,
    batch: DecodeBatch,
    shared: tuple[torch.Tensor, torch.Tensor] | None,
    cache: LayerCache,
    params: AttentionParams,
) -> None:
    """One batch: queries and out [H * B, G, D], heads outermost."""
    heads, dim, rows, slots = params.num_kv_heads, params.head_dim, batch.num_rows, batch.num_slots
    gathered = _gather("decode", batch.gather, cache, queries.dtype).view(2 * heads, rows * slots, dim)
    if batch.dead is not None:
        gathered.index_fill_(1, batch.dead, 0.0)
    keys, values = gathered[:heads].view(-1, slots, dim), gathered[heads:].view(-1, slots, dim)
    if batch.length is not None:
        keys, values = keys[:, : batch.length], values[:, : batch.length]
    if params.softcap is not None:
        scores = torch.bmm(queries, keys.transpose(1, 2)).mul_(params.scale / params.softcap)
        scores.tanh_().mul_(params.softcap)
        if batch.mask is not None:
            scores.add_(batch.mask)
    elif batch.mask is not None:
        scores = torch.baddbmm(batch.mask, queries, keys.transpose(1, 2), alpha=params.scale)
    else:
        scores = torch.baddbmm(_nothing(queries.dtype), queries, keys.transpose(1, 2), beta=0, alpha=params.scale)
    if shared is None:
        torch.bmm(torch.softmax(scores, -1), values, out=out)
    else:
        _with_shared(queries, scores, values, shared, params.scale, out)


def _with_shared(
    queries: torch.Tensor,
    scores: torch.Tensor,
    values: torch.Tensor,
    shared: tuple[torch.Tensor, torch.Tensor],
    scale: float,
    out: torch.Tensor,
) -> None:
    """One softmax over [shared | own] slots, where the shared K and V are multiplied once for all rows.

    queries and out [H * B, G, D], scores [H * B, G, L], values [H * B, L, D], shared K and V [H, P, D].
    """
    keys, common = shared
    heads, num_shared, dim = keys.shape
    batch, per_kv, _ = scores.shape
    joined = queries.view(heads, -1, dim)
    first = torch.baddbmm(_nothing(queries.dtype), joined, keys.transpose(1, 2), beta=0, alpha=scale)  # [H, B * G, P]
    weights = torch.softmax(torch.cat((first.view(batch, per_kv, num_shared), scores), -1), -1)
    mixed = torch.bmm(weights.view(heads, batch // heads * per_kv, -1)[:, :, :num_shared], common)
    torch.baddbmm(mixed.view(batch, per_kv, dim), weights[:, :, num_shared:], values, out=out)


# prefill


def _prefill(
    q: torch.Tensor, kv: torch.Tensor, row: PrefillRow, cache: LayerCache, params: AttentionParams
) -> torch.Tensor:
    """One chunk: [n, heads * D]."""
    heads, dim = params.num_kv_heads, params.head_dim
    per_kv, count = params.num_heads // heads, row.stop - row.start
    queries = q[row.start : row.stop].view(count, heads, per_kv, dim).permute(1, 2, 0, 3)  # [H, G, n, D]
    gathered = None
    if row.gather is not None:
        gathered = _gather("prefill", row.gather, cache, q.dtype).view(2, heads, row.num_slots, dim)
    if row.pieces is not None:
        assert gathered is not None
        out = torch.empty(count, heads, per_kv, dim, dtype=q.dtype)
        for piece in row.pieces:
            part = queries[:, :, piece.begin : piece.end]
            seen = gathered[:, :, piece.lo : piece.hi]
            out[piece.begin : piece.end] = _masked(part, seen[0], seen[1], piece.mask, params).permute(2, 0, 1, 3)
        return out.view(count, -1)
    fresh = kv[row.start : row.stop].view(count, 2, heads, dim).to(q.dtype).permute(1, 2, 0, 3)  # [2, H, n, D]
    mine = fresh[:, :, None].expand(2, heads, per_kv, count, dim)
    # Batch is the KV head and head the query head, so that the shared K and V are a stride of zero, not a copy.
    out, log_sum = _flash(queries, mine[0], mine[1], 0.0, True, scale=params.scale)
    if gathered is not None:
        old = gathered[:, :, None, : row.num_cached].expand(2, heads, per_kv, row.num_cached, dim)
        before, log_before = _flash(queries, old[0], old[1], 0.0, False, scale=params.scale)
        # Two softmaxes over disjoint slots, joined: weight of the first = e^a / (e^a + e^b) = sigmoid(a - b).
        share = torch.sigmoid(log_before - log_sum)[..., None].to(q.dtype)
        out = torch.lerp(out, before, share)
    return out.permute(2, 0, 1, 3).reshape(count, -1)


def _masked(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor, params: AttentionParams
) -> torch.Tensor:
    """q [H, G, n, D], K and V [H, L, D], mask [n, L] -> [H, G, n, D]."""
    heads, per_kv, count, dim = q.shape
    length = k.shape[1]
    if params.softcap is None:
        wide = (heads, per_kv, length, dim)
        out, _ = _flash(
            q,
            k[:, None].expand(wide),
            v[:, None].expand(wide),
            0.0,
            False,
            attn_mask=mask[None, None],
            scale=params.scale,
        )
        return out  # type: ignore[no-any-return]
    scores = torch.bmm(q.reshape(heads, per_kv * count, dim), k.transpose(1, 2)).mul_(params.scale / params.softcap)
    scores.tanh_().mul_(params.softcap)
    scores = scores.view(heads, per_kv, count, length).add_(mask)
    weights = F.softmax(scores, -1).view(heads, per_kv * count, length)
    return torch.bmm(weights, v).view(heads, per_kv, count, dim)
