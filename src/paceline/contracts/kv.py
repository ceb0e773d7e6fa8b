"""KV cache nouns: groups of layers, the block layout, cache keys and the events other parts follow.

A *block* holds the K and V of `block_size` consecutive tokens for the layers of one *KV group*. Groups are made so that
every block has the same number of bytes; then one pool of block ids serves all groups and memory moves freely between
them. Block 0 is the null block: never allocated, it pads block tables and stands for what a window no longer sees.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from paceline.contracts.specs import ModelSpec
from paceline.errors import UnsupportedError

if TYPE_CHECKING:  # options are described by these nouns, and `--help` has no use for numpy
    import numpy as np

NULL_BLOCK = 0
KVGroupKind = Literal["full", "sliding", "state", "latent"]


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


class KVGroupSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Layers that share block tables. `layers` may be shorter than the layout's `layers_per_group` (padding)."""

    kind: KVGroupKind
    layers: tuple[int, ...]
    block_size: int  # tokens
    bytes_per_block: int
    window: int | None = None  # sliding only: tokens a query sees, itself included

    def first_visible_block(self, position: int) -> int:
        """Logical index of the first block that a query at `position` still sees."""
        if self.window is None:
            return 0
        return max(0, position - self.window + 1) // self.block_size

    def max_blocks(self, num_tokens: int, chunk: int) -> int:
        """Most blocks a sequence of `num_tokens` ever holds when it computes at most `chunk` tokens a step."""
        blocks = ceil_div(num_tokens, self.block_size)
        if self.window is None:
            return blocks
        return min(blocks, ceil_div(self.window + chunk, self.block_size) + 1)


class KVLayout(msgspec.Struct, frozen=True, kw_only=True):
    """The whole cache. `num_blocks` counts usable blocks; ids run from 1 to num_blocks (0 is the null block)."""

    groups: tuple[KVGroupSpec, ...]
    num_blocks: int
    dtype: str = "float32"

    @property
    def block_size(self) -> int:
        return self.groups[0].block_size

    @property
    def layers_per_group(self) -> int:
        return max(len(g.layers) for g in self.groups)

    @property
    def bytes_per_block(self) -> int:
        return self.groups[0].bytes_per_block

    @property
    def total_bytes(self) -> int:
        return (self.num_blocks + 1) * self.bytes_per_block

    def max_blocks(self, num_tokens: int, chunk: int) -> int:
        """Blocks, over all groups, that one sequence of `num_tokens` needs at its worst moment."""
        return sum(g.max_blocks(num_tokens, chunk) for g in self.groups)


class KVFormat(msgspec.Struct, frozen=True):
    """How K and V lie in the cache: so many bytes for a number, and so many for the scale of one head of one token."""

    element_bytes: int
    scale_bytes: int = 0

    def sequence_bytes(self, spec: ModelSpec, num_tokens: int) -> int:
        """KV that a sequence of `num_tokens` needs at least; see `ModelSpec.kv_bytes`."""
        scales = 2 * spec.num_kv_heads * self.scale_bytes
        cached = sum(min(num_tokens, x.window or num_tokens) for x in spec.layers if x.attention != "state")
        return spec.kv_bytes(num_tokens, self.element_bytes) + scales * cached


KV_FORMATS = {
    "float32": KVFormat(4),
    "bfloat16": KVFormat(2),
    "float16": KVFormat(2),
    "int8": KVFormat(1, scale_bytes=4),
}


def kv_format(dtype: str, spec: ModelSpec) -> KVFormat:
    """Of a cache of `dtype` for the model. Raises UnsupportedError for a type that no cache is kept in, and for a model
    whose cache cannot be kept so."""
    found = KV_FORMATS.get(dtype)
    if found is None:
        raise UnsupportedError(
            "no KV cache is kept in this type", seen=dtype, expected=", ".join(KV_FORMATS), fix="leave it at auto"
        )
    if found.scale_bytes and (spec.latent is not None or spec.head_dim % 4):
        raise UnsupportedError(
            f"this model's KV cache cannot be kept as {dtype}",
            seen="one compressed vector for all heads" if spec.latent is not None else f"head_dim {spec.head_dim}",
            expected="K and V by head, head_dim a multiple of 4",
            fix="leave kv_cache_dtype at auto",
        )
    return found


def plan_kv_groups(spec: ModelSpec, block_size: int, dtype_bytes: int, scale_bytes: int = 0) -> tuple[KVGroupSpec, ...]:
    """Fold a model's layers into groups of equal byte size.

    Layers of one kind (and window) are cut into runs as long as the rarest kind has layers, so Gemma 3 with 15 sliding
    and 3 full layers becomes 5 + 1 groups of 3. A last, shorter run is padded; the padding is memory lost and small.
    `dtype_bytes` and `scale_bytes` are those of a `KVFormat`.
    """
    kinds: dict[tuple[KVGroupKind, int | None], list[int]] = {}
    for index, layer in enumerate(spec.layers):
        if layer.attention == "state":
            continue  # keeps a state of one size for each sequence, no blocks
        if layer.attention == "sliding" and layer.window is None:
            raise UnsupportedError(
                "a sliding layer without a window", seen=f"layer {index}", expected="window in tokens"
            )
        key: tuple[KVGroupKind, int | None] = (layer.attention, layer.window if layer.attention == "sliding" else None)
        kinds.setdefault(key, []).append(index)
    if not kinds:
        raise UnsupportedError("a model without a KV cache", seen=f"{spec.num_layers} layers that keep a state each")
    size = min(len(layers) for layers in kinds.values())
    per_token = spec.kv_bytes_per_token_per_layer(dtype_bytes) + 2 * spec.num_kv_heads * scale_bytes
    bytes_per_block = size * block_size * per_token
    groups = []
    for (kind, window), layers in sorted(kinds.items(), key=lambda item: item[1][0]):
        for at in range(0, len(layers), size):
            groups.append(
                KVGroupSpec(
                    kind=kind,
                    layers=tuple(layers[at : at + size]),
                    block_size=block_size,
                    bytes_per_block=bytes_per_block,
                    window=window,
                )
            )
    return tuple(groups)


class CacheDomain(msgspec.Struct, frozen=True, kw_only=True):
    """Everything besides tokens that makes two KV blocks different. Fields are typed and never joined as text."""

    model_revision: str
    kv_dtype: str
    adapter_digest: bytes = b""
    salt: bytes = b""
    tenant: str = ""  # empty: shared by all tenants


BlockKey: TypeAlias = bytes
"""128-bit chained digest of (domain, all tokens up to the block's end). With the group's index it names one block."""


@lru_cache(maxsize=1024)
def root_key(domain: CacheDomain) -> BlockKey:
    """The parent of a sequence's first block. Length-prefixed fields, so no two domains can encode alike."""
    digest = hashlib.blake2b(digest_size=16, person=b"paceline-kv-root")
    texts = (domain.model_revision, domain.kv_dtype, domain.tenant)
    for part in (*(text.encode() for text in texts), domain.adapter_digest, domain.salt):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.digest()


_BLOCK_DIGEST = hashlib.blake2b(digest_size=16, person=b"paceline-kv-blk1")


def chain_key(parent: BlockKey, token_ids: np.ndarray | bytes, extras: Sequence[bytes] = ()) -> BlockKey:
    """Key of the block that holds `token_ids` (int32, or its little-endian bytes; exactly one block) after `parent`.

    `extras` is what else the block's content depends on (media digests): length-prefixed, in order.
    """
    if not isinstance(token_ids, bytes):
        token_ids = token_ids.astype("<i4", copy=False).tobytes()
    digest = _BLOCK_DIGEST.copy()  # half the time of a new one
    digest.update(parent + token_ids)
    for extra in extras:
        digest.update(len(extra).to_bytes(8, "little"))
        digest.update(extra)
    return digest.digest()


def chain_keys(parent: BlockKey, blocks: Sequence[bytes]) -> list[BlockKey]:
    """Keys of these blocks of plain tokens, one behind the other: `chain_key` for each, without a call for each."""
    keys, fresh = [], _BLOCK_DIGEST.copy
    for block in blocks:
        digest = fresh()
        digest.update(parent + block)
        parent = digest.digest()
        keys.append(parent)
    return keys


class BlockStored(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="stored"):
    """A block became readable by others."""

    key: BlockKey
    parent: BlockKey
    group: int
    num_tokens: int


class BlockRemoved(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="removed"):
    key: BlockKey
    group: int


class CacheCleared(msgspec.Struct, frozen=True, kw_only=True, tag="cleared"):
    pass


KVEvent: TypeAlias = BlockStored | BlockRemoved | CacheCleared


class KVEvents(msgspec.Struct, frozen=True, kw_only=True):
    """Events in order. Only so many are kept until somebody asks: `num_dropped` older ones were lost before the first
    of these, and a follower that sees any lost must forget what it knew."""

    events: list[KVEvent] = []
    num_dropped: int = 0


class KVStats(msgspec.Struct, frozen=True, kw_only=True):
    """The block ledger and the prefix cache's counters. free + cached + held + limbo = total, always."""

    total: int
    free: int  # no content worth keeping
    cached: int  # unreferenced, still findable by key
    held: int  # referenced by at least one request
    limbo: int  # dropped, but a step in flight may still touch them
    reserved: int  # promised to admitted prompts; part of free + cached
    hit_tokens: int  # prompt tokens taken from the cache
    query_tokens: int  # prompt tokens asked for at first admission
    evictions: int
    miss_reasons: dict[str, int]
    saved_tokens: int = 0  # positions not computed thanks to hits and forks, readmissions included
    dropped_events: int = 0  # KV events lost because nobody drained them

    @property
    def usage(self) -> float:
        return (self.held + self.limbo) / self.total

    @property
    def hit_rate(self) -> float:
        return self.hit_tokens / self.query_tokens if self.query_tokens else 0.0
