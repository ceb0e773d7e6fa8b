"""Paged attention in native code: tiles of queries walk the blocks where they lie, nothing is gathered.

What a step needs is worked out once, by the first layer of each KV group: which queries go together, and which decoding
sequences begin with the same blocks. csrc/attention.h has the rest.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch

from paceline.runtime.forward_context import AttentionMetadata
from paceline.runtime.kernels.cpu.native import library
from paceline.runtime.kernels.params import AttentionParams
from paceline.runtime.kernels.reference.attention import attention as reference_attention
from paceline.runtime.kernels.torch_cpu.attention import attention as torch_attention
from paceline.runtime.kv_cache import LayerCache
from paceline.runtime.threads import kernel_threads

TILE_ROWS, KEYS, MAX_HEAD_DIM = 48, 16, 256  # csrc/attention.h
AMX_TILE_ROWS, AMX_KEYS = 192, 64
PORTIONS = 4  # tiles for each thread, so that threads end together
MIN_SHARED_TOKENS = 64  # of a common prefix, for sequences to be taken together
ALONE_BELOW = 1 << 17  # multiply-adds that are not worth waking a thread
_KV_TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2, torch.int8: 3}


class _Step(ctypes.Structure):
    """AttentionStep of csrc/attention.h."""

    _fields_ = (
        ("rows", ctypes.c_void_p),
        ("members", ctypes.c_void_p),
        ("tiles", ctypes.c_void_p),
        ("tables", ctypes.c_void_p),
        ("table_stride", ctypes.c_int64),
        ("num_tiles", ctypes.c_int64),
        ("num_heads", ctypes.c_int32),
        ("num_kv_heads", ctypes.c_int32),
        ("head_dim", ctypes.c_int32),
        ("block_size", ctypes.c_int32),
        ("window", ctypes.c_int32),
        ("kv_type", ctypes.c_int32),
        ("num_threads", ctypes.c_int32),
        ("amx", ctypes.c_int32),
        ("scale", ctypes.c_float),
        ("softcap", ctypes.c_float),
    )


@dataclass(slots=True, eq=False)
class TilePlan:
    """A step's tiles. The arrays are what `step` points to."""

    step: _Step
    held: tuple[np.ndarray, ...]


def takes(params: AttentionParams) -> bool:
    """Whether heads have a shape that the kernel knows."""
    return (
        params.head_dim % 8 == 0
        and params.head_dim <= MAX_HEAD_DIM
        and params.num_heads // params.num_kv_heads <= TILE_ROWS
    )


def attention(
    q: torch.Tensor, kv: torch.Tensor, cache: LayerCache, metadata: AttentionMetadata, params: AttentionParams
) -> torch.Tensor:
    """See the reference kernel for shapes. The result lives in scratch memory until the next call."""
    if not takes(params):
        other = reference_attention if cache.has_scales else torch_attention
        return other(q, kv, cache, metadata, params)
    group = metadata.groups[cache.group]
    if group.plan is None:
        group.plan = plan_tiles(metadata, cache, params)
    plan: TilePlan = group.plan
    wide = q if q.dtype == torch.float32 else q.float()
    num_tokens, num_heads, dim = wide.shape
    if wide.stride(2) != 1 or wide.stride(1) != dim:
        wide = wide.contiguous()
    out = cache.workspace.take("attended", num_tokens * num_heads * dim, torch.float32, q.device)
    out = out.view(num_tokens, num_heads * dim)
    library().paceline_cpu_attention(
        ctypes.byref(plan.step),
        wide.data_ptr(),
        wide.stride(0),
        cache.kv.data_ptr(),
        cache.kv.stride(1),
        cache.kv.stride(2),
        out.data_ptr(),
    )
    return out if q.dtype == torch.float32 else out.to(q.dtype)


def plan_tiles(metadata: AttentionMetadata, cache: LayerCache, params: AttentionParams) -> TilePlan:
    """Which queries go together, the most work first."""
    counts, contexts = metadata.query_lens, metadata.context_lens
    tables = metadata.groups[cache.group].block_tables
    assert tables.dtype == torch.int32
    assert tables.stride(1) == 1
    assert cache.kv[0, 0, 0].is_contiguous()
    assert cache.kv.stride(0) == cache.kv.shape[1] * cache.kv.stride(1), "V heads behind K heads"
    kv_type = _KV_TYPES[cache.kv.dtype]
    amx = bool(library().paceline_cpu_attention_has_amx(kv_type, params.head_dim))
    per_tile = _queries_per_tile(int(counts.sum()), params, amx)
    starts = np.cumsum(counts) - counts
    rows = np.stack((starts, contexts), 1).astype(np.int64)
    decoding = np.flatnonzero(counts == 1)
    members, tiles = _prefill_tiles(counts, per_tile)
    if len(decoding):
        shared = params.window is None and per_tile > 1
        group = AMX_KEYS if amx else KEYS
        more = _decode_tiles(decoding, contexts, tables.numpy() if shared else None, cache.block_size, per_tile, group)
        tiles = np.concatenate((tiles, more[1] + np.array([len(members), 0, 0])))
        members = np.concatenate((members, more[0]))
    # keys that each tile reads, times its queries: how long it takes
    last = contexts[members[:, 0]] + members[:, 1] + members[:, 2]
    seen = last if params.window is None else np.minimum(last, params.window + members[:, 2])
    work = np.add.reduceat(seen * members[:, 2], tiles[:, 0])
    tiles = tiles[np.argsort(-work, kind="stable")]
    held = (rows, members.astype(np.int32), tiles.astype(np.int32), tables.numpy())
    alone = int(work.sum()) * params.num_heads * params.head_dim * 2 < ALONE_BELOW
    step = _Step(
        *(array.ctypes.data for array in held),
        tables.stride(0),
        len(tiles),
        params.num_heads,
        params.num_kv_heads,
        params.head_dim,
        cache.block_size,
        params.window or 0,
        kv_type,
        1 if alone else kernel_threads(),
        int(amx),
        params.scale,
        params.softcap or 0.0,
    )
    return TilePlan(step, held)


def _queries_per_tile(num_queries: int, params: AttentionParams, amx: bool) -> int:
    """As many as a tile has room for. Tiles of AMX have more than a small step has for all threads."""
    per_kv = params.num_heads // params.num_kv_heads
    if not amx:
        return TILE_ROWS // per_kv
    even = -(-num_queries * params.num_kv_heads // (PORTIONS * kernel_threads()))
    return min(AMX_TILE_ROWS // per_kv, max(even, TILE_ROWS // per_kv))


def _prefill_tiles(counts: np.ndarray, per_tile: int) -> tuple[np.ndarray, np.ndarray]:
    """Runs of at most `per_tile` queries of one row each: members [N, 3] and tiles [N, 3], see csrc/attention.h."""
    found = [
        (row, begin, min(per_tile, int(counts[row]) - begin))
        for row in np.flatnonzero(counts > 1).tolist()
        for begin in range(0, int(counts[row]), per_tile)
    ]
    members = np.array(found, dtype=np.int64).reshape(-1, 3)
    tiles = np.zeros_like(members)
    tiles[:, 0] = np.arange(len(members))
    tiles[:, 1] = 1
    return members, tiles


def _decode_tiles(
    rows: np.ndarray, contexts: np.ndarray, tables: np.ndarray | None, block_size: int, per_tile: int, group: int
) -> tuple[np.ndarray, np.ndarray]:
    """Rows with one query each, those that begin with the same `group`s of keys together. `tables` None: each alone."""
    sizes, shared = [1] * len(rows), [0] * len(rows)
    if tables is not None and len(rows) > 1:
        firsts = tables[rows, 0]
        rows = rows[np.argsort(firsts, kind="stable")]
        ends = [0, *(np.flatnonzero(np.diff(np.sort(firsts))) + 1).tolist(), len(rows)]
        if len(ends) <= len(rows):  # some have a first block in common
            sizes, shared = [], []
            for begin, end in pairwise(ends):
                for at in range(begin, end, per_tile):
                    together = rows[at : min(at + per_tile, end)]
                    common = _num_shared(together, contexts, tables, block_size, group) if len(together) > 1 else 0
                    sizes += [len(together)] if common else [1] * len(together)
                    shared += [common] if common else [0] * len(together)
    members = np.zeros((len(rows), 3), dtype=np.int64)
    members[:, 0], members[:, 2] = rows, 1
    tiles = np.stack((np.cumsum(sizes) - sizes, sizes, shared), 1).astype(np.int64)
    return members, tiles


def _num_shared(rows: np.ndarray, contexts: np.ndarray, tables: np.ndarray, block_size: int, group: int) -> int:
    """Leading keys whose blocks all rows have in common, in whole groups of keys; 0 if they are few."""
    most = int(contexts[rows].min()) // block_size  # the last key of a row is its own
    same = (tables[rows, :most] == tables[rows[0], :most]).all(0)
    keys = (most if same.all() else int(np.argmin(same))) * block_size // group * group
    return keys if keys >= MIN_SHARED_TOKENS else 0
