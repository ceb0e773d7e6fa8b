"""RMS normalisation."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from paceline.runtime.layers.build import BuildContext, WeightSlot


class RMSNorm:
    """x / sqrt(mean(x²) + eps) * (offset + w). The factor is kept in float32, whatever the model's dtype."""

    def __init__(self, name: str, size: int, eps: float, context: BuildContext, *, offset: float = 0.0) -> None:
        self.name, self.size, self.eps, self.offset = name, size, eps, offset
        self.kernel = context.kernel("rms_norm")
        self.factor = torch.empty(size, dtype=torch.float32, device=context.device)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[..., size] -> the same shape and dtype"""
        return self.kernel(x, self.factor, self.eps)  # type: ignore[no-any-return]

    @property
    def num_bytes(self) -> int:
        return self.factor.numel() * self.factor.element_size()

    def load(self, tensor: torch.Tensor) -> None:
        self.factor.copy_(tensor).add_(self.offset)

    def slots(self) -> Iterator[WeightSlot]:
        yield WeightSlot(f"{self.name}.weight", (self.size,), self.load)


class HeadNorm:
    """RMS norms of q and k heads in one call: [T, num_heads + num_kv_heads, head_dim], in place."""

    def __init__(
        self,
        prefix: str,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        eps: float,
        context: BuildContext,
        *,
        offset: float,
    ) -> None:
        self.prefix, self.eps, self.offset = prefix, eps, offset
        self.heads = {"q_norm": slice(0, num_heads), "k_norm": slice(num_heads, num_heads + num_kv_heads)}
        self.kernel = context.kernel("rms_norm")
        self.factor = torch.empty(num_heads + num_kv_heads, head_dim, dtype=torch.float32, device=context.device)

    def __call__(self, qk: torch.Tensor) -> None:
        qk.copy_(self.kernel(qk, self.factor, self.eps))

    @property
    def num_bytes(self) -> int:
        return self.factor.numel() * self.factor.element_size()

    def slots(self) -> Iterator[WeightSlot]:
        for name, heads in self.heads.items():

            def load(tensor: torch.Tensor, heads: slice = heads) -> None:
                self.factor[heads] = tensor.to(self.factor) + self.offset

            yield WeightSlot(f"{self.prefix}.{name}.weight", (self.factor.shape[1],), load)
