"""The one ambient value of a forward pass: where each token's KV goes and what each query may see.

`model_runner` sets it around the forward call; attention layers read it. Setting it twice at once is a bug and refused.
Tensors hold all that kernels compute with, so that a captured graph can replay over the same storage.

Shapes: T tokens in the step, R rows (sequences) in the step, G KV groups, N blocks per row (padded).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch


@dataclass(slots=True)
class GroupMetadata:
    """One KV group's view of the step.

    Table entries that no query of the step can see (behind the window, beyond the row's length) may be anything, blocks
    of other rows included: kernels never follow them.
    """

    slot_mapping: torch.Tensor  # [T] int64: block id * block_size + offset, where each token's K and V are written
    block_tables: torch.Tensor  # [R, N] int32: block ids by logical block index, padded with 0
    plan: Any = None  # what the attention kernel derives from the step, built by the group's first layer, used by all


@dataclass(slots=True)
class AttentionMetadata:
    """The step as attention sees it. Rows are packed one after another along T, in plan order."""

    query_start_loc: torch.Tensor  # [R + 1] int32: first token of each row
    seq_lens: torch.Tensor  # [R] int32: tokens of the row after this step
    query_lens: np.ndarray  # [R] int64 on the host, so that nothing must be read back from the device
    context_lens: np.ndarray  # [R] int64 on the host: tokens already in the cache before this step
    groups: tuple[GroupMetadata, ...]  # G entries, ordered like KVLayout.groups


@dataclass(slots=True)
class ForwardContext:
    attention: AttentionMetadata


_current: ForwardContext | None = None


@contextmanager
def forward_context(context: ForwardContext) -> Iterator[None]:
    """Make `context` the one that layers read. Nesting is refused: two steps never share a forward pass."""
    global _current
    assert _current is None, "a forward context is already set"
    _current = context
    try:
        yield
    finally:
        _current = None


def current() -> ForwardContext:
    """The context of the running forward pass."""
    assert _current is not None, "attention ran outside a forward pass: wrap the call in forward_context()"
    return _current
