"""Paged attention in plain torch: prefill, decode and any mix in one call.

The idea: every product has one fixed shape. Queries are cut into tiles of 16 positions and keys into tiles of 256
slots, both at fixed positions of their own sequence, and a query walks its key tiles in order with the running maximum
and sum of online softmax (Milakov and Gimelshein 2018). So query p always sits in row p % 16 of a [16 * group, 256]
product, whatever chunk it came in and whoever shares the batch, and its bits cannot change.

Shapes: T tokens, R rows, N query tiles, A of them at work on one key tile, H KV heads, G query heads per KV head,
D head_dim, S block size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from paceline.contracts.kv import NULL_BLOCK
from paceline.errors import UnsupportedError
from paceline.runtime.forward_context import AttentionMetadata
from paceline.runtime.kernels.params import AttentionParams
from paceline.runtime.kernels.reference.kv_int8 import from_records
from paceline.runtime.kv_cache import CHUNK_BLOCKS, LayerCache

QUERY_TILE = 16
KV_TILE = 256
TILES_AT_ONCE = 8  # what one visit gathers should stay in the processor's cache


@dataclass(slots=True, eq=False)
class KeyTile:
    """One tile of 256 key slots and the query tiles that see any of it."""

    tiles: torch.Tensor  # [A] query tiles at work
    block_ids: torch.Tensor  # [A * 256 / S]
    visible: torch.Tensor  # [A, 16, 256] bool: query sees slot
    alive: torch.Tensor  # [A, 256] bool: the slot belongs to the row; anything else may hold poison


@dataclass(slots=True, eq=False)
class TilePlan:
    """What all layers of a group share in a step."""

    num_tiles: int
    places: torch.Tensor  # [T]: tile * 16 + row of each token
    keys: list[KeyTile]


def attention(
    q: torch.Tensor,
    kv: torch.Tensor,  # noqa: ARG001
    cache: LayerCache,
    metadata: AttentionMetadata,
    params: AttentionParams,
) -> torch.Tensor:
    """q [T, heads, D] against the cache, into which this step's K and V are already written.

    `kv` [T, 2 * H, D] is the same K and V once more, for kernels that can use them. Returns [T, heads * D], dtype of q.
    """
    group = metadata.groups[cache.group]
    if group.plan is None:
        group.plan = plan_tiles(metadata, cache, params.window)
    plan: TilePlan = group.plan
    heads, dim = params.num_kv_heads, params.head_dim
    per_kv = params.num_heads // heads
    # [N * 16, H, G, D] -> [N, H, G * 16, D]
    queries = torch.zeros(plan.num_tiles * QUERY_TILE, params.num_heads, dim, dtype=torch.float32, device=q.device)
    queries[plan.places] = q.float()
    queries = queries.view(plan.num_tiles, QUERY_TILE, heads, per_kv, dim).permute(0, 2, 3, 1, 4)
    queries = queries.reshape(plan.num_tiles, heads, per_kv * QUERY_TILE, dim).contiguous()
    peak = torch.full((*queries.shape[:3], 1), float("-inf"), device=q.device)
    total = torch.zeros_like(peak)
    mixed = torch.zeros_like(queries)
    for tile in plan.keys:
        state = (peak[tile.tiles], total[tile.tiles], mixed[tile.tiles])
        peak[tile.tiles], total[tile.tiles], mixed[tile.tiles] = _visit(
            queries[tile.tiles], tile, cache, params, *state
        )
    out = mixed / total
    out = out.view(plan.num_tiles, heads, per_kv, QUERY_TILE, dim).permute(0, 3, 1, 2, 4)
    return out.reshape(plan.num_tiles * QUERY_TILE, params.num_heads * dim)[plan.places].to(q.dtype)


def _visit(
    queries: torch.Tensor,
    tile: KeyTile,
    cache: LayerCache,
    params: AttentionParams,
    peak: torch.Tensor,
    total: torch.Tensor,
    mixed: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Fold one key tile into (running maximum, sum of weights, weighted values) of its query tiles."""
    num, heads, rows, dim = queries.shape
    gathered = cache.kv[:, :, tile.block_ids // CHUNK_BLOCKS, tile.block_ids % CHUNK_BLOCKS]
    wide = from_records(gathered) if cache.has_scales else gathered.float()
    keys, values = wide.view(2, heads, num, KV_TILE, dim).transpose(1, 2).contiguous()  # each [A, H, 256, D]
    values = torch.where(tile.alive[:, None, :, None], values, 0.0)  # 0 * NaN would be NaN
    scores = torch.bmm(queries.view(-1, rows, dim), keys.view(-1, KV_TILE, dim).transpose(1, 2)) * params.scale
    if params.softcap is not None:
        scores = torch.tanh(scores / params.softcap) * params.softcap
    visible = tile.visible[:, None, None].expand(num, heads, rows // QUERY_TILE, QUERY_TILE, KV_TILE)
    scores = torch.where(
        visible.reshape(num, heads, rows, KV_TILE), scores.view(num, heads, rows, KV_TILE), float("-inf")
    )
    new_peak = torch.maximum(peak, scores.amax(-1, keepdim=True))
    base = torch.where(new_peak == float("-inf"), 0.0, new_peak)  # nothing seen yet: every weight is exp(-inf) = 0
    weights = torch.exp(scores - base)
    keep = torch.exp(peak - base)
    product = torch.bmm(weights.view(-1, rows, KV_TILE), values.view(-1, KV_TILE, dim))
    return new_peak, total * keep + weights.sum(-1, keepdim=True), mixed * keep + product.view_as(mixed)


def plan_tiles(metadata: AttentionMetadata, cache: LayerCache, window: int | None) -> TilePlan:
    """Cut the step's queries and keys into tiles."""
    size = cache.block_size
    if KV_TILE % size:
        raise UnsupportedError(
            "reference attention works in tiles of 256 slots", seen=f"block_size {size}", expected="a divisor of 256"
        )
    device = metadata.query_start_loc.device
    row_of: list[int] = []
    first: list[int] = []
    places: list[int] = []
    rows_of_step = zip(metadata.query_lens.tolist(), metadata.context_lens.tolist(), strict=True)
    for row, (count, start) in enumerate(rows_of_step):
        begin = start // QUERY_TILE
        offset = (len(row_of) - begin) * QUERY_TILE
        places.extend(range(offset + start, offset + start + count))
        for tile in range(begin, (start + count - 1) // QUERY_TILE + 1 if count else begin):
            row_of.append(row)
            first.append(tile * QUERY_TILE)
    rows = torch.tensor(row_of, dtype=torch.int64, device=device)
    begin_of_tile = torch.tensor(first, dtype=torch.int64, device=device)
    contexts = torch.from_numpy(metadata.context_lens).to(device)[rows]
    lengths = contexts + torch.from_numpy(metadata.query_lens).to(device)[rows]
    # The first slot that any query of the row still sees in this step.
    lowest = (contexts - window + 1).clamp(min=0) if window is not None else torch.zeros_like(contexts)
    positions = begin_of_tile[:, None] + torch.arange(QUERY_TILE, device=device)
    tables = metadata.groups[cache.group].block_tables.long()
    per_tile = KV_TILE // size
    keys = []
    for base in range(0, int(lengths.max()) if len(row_of) else 0, KV_TILE):
        # A tile of queries needs keys up to its own last position that exists, from its first one's window on.
        last = torch.minimum(begin_of_tile + QUERY_TILE, lengths) - 1
        oldest = (torch.maximum(begin_of_tile, contexts) - window + 1) if window is not None else torch.zeros_like(last)
        at_work = ((last >= base) & (oldest < base + KV_TILE)).nonzero()[:, 0]
        slots = torch.arange(base, base + KV_TILE, device=device)
        columns = torch.arange(base // size, base // size + per_tile, device=device)
        known = columns.clamp(max=tables.shape[1] - 1)
        for tiles in torch.split(at_work, TILES_AT_ONCE) if len(at_work) else ():
            alive = (slots < lengths[tiles, None]) & (slots >= lowest[tiles, None])
            visible = slots <= positions[tiles, :, None]
            if window is not None:
                visible &= slots > positions[tiles, :, None] - window
            held = (columns < (lengths[tiles, None] + size - 1) // size) & (columns >= lowest[tiles, None] // size)
            ids = torch.where(held, tables[rows[tiles][:, None], known], NULL_BLOCK)
            keys.append(KeyTile(tiles, ids.reshape(-1), visible & alive[:, None], alive))
    return TilePlan(len(row_of), torch.tensor(places, dtype=torch.int64, device=device), keys)
