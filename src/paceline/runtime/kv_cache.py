"""The paged KV cache: one storage of bytes, seen as typed blocks by each layer.

    storage   [chunks, slots, 2, num_kv_heads, 8, block_size, record]
               |       |      |                |              |
               |       |      K, V             |              head_dim numbers, and with 8 bits their scale
               |       |                       block b is number b % 8 of chunk b // 8; id 0 is the null block: zeros,
               |       |                       never written
               |       position of a layer within its KV group

Block ids are shared by all groups: block b belongs to one group at a time, and layer i of that group keeps its K and V
in slot `group.layers.index(i)`. Chunks lie outermost, so what a cache has taken of the system's memory grows with the
blocks that were ever used: with layers and heads outside, the first block would touch a huge page for each of them.
Eight blocks of a head lie together, because a sequence's blocks are mostly neighbours and processors fetch ahead what
is read in order. One head's numbers of a block (a *run*) lie together too: gathered runs are what batched products
read as it is. The last chunk may have places for blocks that there are not; nobody touches them.

A cache of int8 holds codes, and behind those of each head of each token one float32 that multiplies them: a scale that
depends on nothing else, so what is read does not depend on who else was written. `kernels.reference.kv_int8` says how.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from paceline.contracts.kv import KV_FORMATS, NULL_BLOCK, KVLayout, ceil_div
from paceline.contracts.specs import ModelSpec
from paceline.runtime.huge_pages import zeroed

CHUNK_BLOCKS = 8  # and kChunkBlocks of kernels/cpu/csrc/kv_places.h
SCALE_BYTES = KV_FORMATS["int8"].scale_bytes
KV_DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in KV_FORMATS}  # by KVLayout.dtype


def _zeros(num_bytes: int, device: torch.device) -> torch.Tensor:
    """[num_bytes] uint8. On a CPU the pages come from the system zeroed, when they are first written: torch would write
    gigabytes at start."""
    return zeroed(num_bytes) if device.type == "cpu" else torch.zeros(num_bytes, dtype=torch.uint8, device=device)


class Workspace:
    """Scratch memory that attention reuses from layer to layer and step to step; it only grows.

    Fresh large tensors cost page faults, which were measured to take longer than the gather that fills them.
    """

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, torch.dtype], torch.Tensor] = {}

    def take(self, name: str, num_elements: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """[num_elements] of `dtype` with undefined content. The next `take` of the same name reuses it."""
        buffer = self._buffers.get((name, dtype))
        if buffer is None or buffer.numel() < num_elements or buffer.device != device:
            buffer = None  # what it held is not wanted: let go of it first, so that both never exist
            self._buffers.pop((name, dtype), None)
            buffer = self._buffers[name, dtype] = torch.empty(num_elements, dtype=dtype, device=device)
        return buffer[:num_elements]

    @property
    def num_bytes(self) -> int:
        return sum(b.numel() * b.element_size() for b in self._buffers.values())


@dataclass(slots=True, eq=False)
class LayerCache:
    """One layer's part of the cache, in the shapes that kernels use. All of them are views of one memory.

    H KV heads, B blocks (the null block included), S block size, D numbers of a record: head_dim, and where they are
    int8 `SCALE_BYTES` more.
    """

    kv: torch.Tensor  # [2, H, chunks, 8, S, D], chunks far apart
    runs: torch.Tensor  # [.., S * D], for gathering: see `run_of`
    chunk_runs: int  # runs of a chunk, all layers'
    group: int  # index into KVLayout.groups and AttentionMetadata.groups
    block_size: int
    workspace: Workspace

    @property
    def num_blocks(self) -> int:
        """Places for blocks, the null block included."""
        return self.kv.shape[2] * CHUNK_BLOCKS

    @property
    def has_scales(self) -> bool:
        """Whether records are codes of 8 bits with their scale."""
        return self.kv.dtype == torch.int8

    def block(self, block_id: int) -> torch.Tensor:
        """[2, H, S, D] of one block."""
        return self.kv[:, :, block_id // CHUNK_BLOCKS, block_id % CHUNK_BLOCKS]

    def run_of(self, head: np.ndarray, block_id: np.ndarray) -> np.ndarray:
        """Rows of `runs` for heads (those of K first) of blocks."""
        run: np.ndarray = block_id // CHUNK_BLOCKS * self.chunk_runs + head * CHUNK_BLOCKS + block_id % CHUNK_BLOCKS
        return run


class KVCache:
    """Storage for `layout.num_blocks` blocks and the null block. Fresh blocks are zero. `dtype`: what `layout` says."""

    def __init__(
        self, layout: KVLayout, spec: ModelSpec, dtype: torch.dtype, device: torch.device | str = "cpu"
    ) -> None:
        self.layout = layout
        self.dtype = dtype
        self.device = torch.device(device)
        num_slots, block_size = layout.layers_per_group, layout.block_size
        record = spec.head_dim + (SCALE_BYTES if dtype == torch.int8 else 0)
        num_chunks = ceil_div(layout.num_blocks + 1, CHUNK_BLOCKS)
        shape = (num_chunks, num_slots, 2, spec.num_kv_heads, CHUNK_BLOCKS, block_size, record)
        self.storage = _zeros(num_chunks * CHUNK_BLOCKS * layout.bytes_per_block, self.device)
        self.chunks = self.storage.view(dtype).view(shape)
        self.workspace = Workspace()
        self._place: dict[int, tuple[int, int]] = {}
        for group_index, group in enumerate(layout.groups):
            assert group.block_size == block_size, "groups of one layout share the block size"
            for slot, layer in enumerate(group.layers):
                self._place[layer] = (group_index, slot)

    def layer(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """(K, V) of a model layer, each [num_kv_heads, chunks, 8, block_size, record]."""
        kv = self.layer_cache(index).kv
        return kv[0], kv[1]

    def layer_cache(self, index: int) -> LayerCache:
        """The same memory in all the shapes that kernels use."""
        group, slot = self._place[index]
        _, num_slots, _, heads, _, block_size, record = self.chunks.shape
        return LayerCache(
            kv=self.chunks[:, slot].permute(1, 2, 0, 3, 4, 5),
            runs=self.chunks.view(-1, block_size * record)[slot * 2 * heads * CHUNK_BLOCKS :],
            chunk_runs=num_slots * 2 * heads * CHUNK_BLOCKS,
            group=group,
            block_size=block_size,
            workspace=self.workspace,
        )

    def copy_blocks(self, src: Sequence[int], dst: Sequence[int]) -> None:
        """Copy whole blocks, all layers of their group. All sources are read before anything is written."""
        if len(src) == 0:
            return
        assert NULL_BLOCK not in dst, "the null block is never written"
        read = torch.as_tensor(src, dtype=torch.int64, device=self.device)
        write = torch.as_tensor(dst, dtype=torch.int64, device=self.device)
        self._put(write, self._by_block()[read // CHUNK_BLOCKS, read % CHUNK_BLOCKS])

    def poison(self, block_ids: Sequence[int]) -> None:
        """Fill blocks with NaN. A test aid: content of a block that nobody holds must not reach any result.

        Bytes of ones are a NaN as a float32, so scales become one too."""
        if len(block_ids) == 0:
            return
        assert NULL_BLOCK not in block_ids, "the null block stays zero"
        value = -1 if self.dtype == torch.int8 else float("nan")
        ids = torch.as_tensor(block_ids, dtype=torch.int64, device=self.device)
        self._put(ids, torch.tensor(value, dtype=self.dtype, device=self.device))

    def _by_block(self) -> torch.Tensor:
        """[chunks, 8, slots, 2, H, S, D]"""
        return self.chunks.movedim(4, 1)

    def _put(self, block_ids: torch.Tensor, values: torch.Tensor) -> None:
        self._by_block()[block_ids // CHUNK_BLOCKS, block_ids % CHUNK_BLOCKS] = values
