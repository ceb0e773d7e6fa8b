"""Streams a checkpoint's weights, one tensor at a time, under their Hugging Face names.

The whole model is never held twice: a consumer copies each tensor into place before it asks for the next. Names,
permutations and norm offsets of GGUF files are undone here, so that models know one naming only. May import torch, the
hub and contracts; never models or layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from paceline.contracts.specs import ModelSpec
from paceline.hub.files import ModelFiles
from paceline.runtime.layers.linear import StoredBlocks

__all__ = ["open_weights"]


def open_weights(
    files: ModelFiles,
    spec: ModelSpec,
    *,
    seed: int = 0,
    dtype: torch.dtype | None = None,
    keep_blocks: Callable[[int], bool] | None = None,
) -> Iterator[tuple[str, torch.Tensor | StoredBlocks]]:
    """Yield (name, tensor) for every weight of the text model, on the CPU.

    `dtype` converts while reading, so that a big embedding need not exist in float32 first; None keeps what is stored,
    and gives float32 for quantised and dummy weights. `seed` matters for dummy weights alone. `keep_blocks` says for
    which GGUF types (by number) matrices are wanted as they are stored.

    Raises ModelError for a file that is cut off or corrupt, UnsupportedError for a type or tensor that is not read.
    """
    if files.kind == "dummy":
        from paceline.runtime.loader.dummy import dummy_weights

        return dummy_weights(spec, seed=seed, dtype=dtype)
    if files.kind == "gguf":
        from paceline.runtime.loader.gguf import gguf_weights

        return gguf_weights(files.path, spec, dtype=dtype, keep_blocks=keep_blocks)
    from paceline.runtime.loader.safetensors import safetensors_weights

    return safetensors_weights(files.files, spec, dtype=dtype)
