"""The attention layer: one fused q, k, v product, rotation, the paged KV cache, and the output product."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from paceline.contracts.specs import ModelSpec
from paceline.runtime.forward_context import current
from paceline.runtime.kernels.params import AttentionParams
from paceline.runtime.kv_cache import KVCache, LayerCache
from paceline.runtime.layers.build import BuildContext, WeightSlot
from paceline.runtime.layers.linear import QKVLinear, RowLinear
from paceline.runtime.layers.norm import HeadNorm
from paceline.runtime.layers.rotary import Tables


class Attention:
    """Grouped-query attention of layer `index`. Reads where its tokens live from the forward context."""

    def __init__(
        self, prefix: str, index: int, spec: ModelSpec, context: BuildContext, *, norm_offset: float = 0.0
    ) -> None:
        layer = spec.layers[index]
        heads, kv_heads, dim = spec.num_heads, spec.num_kv_heads, spec.head_dim
        self.index = index
        self.params = AttentionParams(
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=dim,
            scale=spec.scale,
            window=layer.window if layer.attention == "sliding" else None,
            softcap=spec.attention_softcap,
        )
        self.qkv = QKVLinear(prefix, spec.hidden_size, heads, kv_heads, dim, context, bias=spec.attention_bias)
        self.out = RowLinear(
            f"{prefix}.o_proj", heads * dim, spec.hidden_size, context, bias=spec.attention_output_bias
        )
        self.head_norm = (
            HeadNorm(prefix, heads, kv_heads, dim, spec.rms_norm_eps, context, offset=norm_offset)
            if spec.qk_norm
            else None
        )
        self.rope = context.kernel("rope")
        self._kernel = context.kernel
        self.cache: LayerCache | None = None
        if context.kv_cache is not None:
            self.bind(context.kv_cache)

    def bind(self, kv_cache: KVCache) -> None:
        """Read and write this cache from now on, with the kernels for what it holds."""
        self.cache = kv_cache.layer_cache(self.index)
        int8 = self.cache.has_scales
        self.write_kv = self._kernel("write_int8_kv" if int8 else "write_kv")
        self.attend = self._kernel("int8_attention" if int8 else "attention")

    def __call__(self, x: torch.Tensor, tables: Tables) -> torch.Tensor:
        """[T, hidden] -> [T, hidden]; writes this step's K and V."""
        cache = self.cache
        assert cache is not None, "no KV cache: call Model.bind_kv_cache first"
        params = self.params
        num_turned = params.num_heads + params.num_kv_heads
        # q, k and v heads side by side: [T, heads + 2 * kv_heads, head_dim]
        qkv = self.qkv(x).view(x.shape[0], num_turned + params.num_kv_heads, params.head_dim)
        turned = qkv[:, :num_turned]
        if self.head_norm is not None:
            self.head_norm(turned)
        self.rope(turned, *tables)
        q, kv = qkv[:, : params.num_heads], qkv[:, params.num_heads :]
        metadata = current().attention
        self.write_kv(kv, cache, metadata.groups[cache.group].slot_mapping)
        return self.out(self.attend(q, kv, cache, metadata, params))

    def slots(self) -> Iterator[WeightSlot]:
        yield from self.qkv.slots()
        yield from self.out.slots()
        if self.head_norm is not None:
            yield from self.head_norm.slots()
