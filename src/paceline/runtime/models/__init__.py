"""Models: one small file per family over shared blocks. A family file says only what is different about it.

`build_model(spec, context)` gives a model with empty weights; `load_weights` fills them from a stream of checkpoint
tensors; `bind_kv_cache` attaches the cache once its size is known. No file here knows ranks, dtypes or kernels.
"""

from __future__ import annotations

from paceline.runtime.models.blocks import Model
from paceline.runtime.models.registry import build_model, families

__all__ = ["Model", "build_model", "families"]
