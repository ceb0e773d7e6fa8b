"""A step priced by two measured rates of the device, before anything has run: what profiles derive their knobs from.

With P weights in matrix products, W their bytes, K bytes of KV read per row and n rows that each add one token,

    decode_ms(n) = max(W / bandwidth, n * 2P / flops) + n * K / bandwidth
    prefill_ms(t) = t * 2P / flops                       (attention within the chunk left out: small for short chunks)

Source: S. Williams, A. Waterman, D. Patterson, "Roofline: an insightful visual performance model", CACM 52(4), 2009.
Not covered: fixed cost per step, kernels that reach only part of a rate. The cost model learns those from steps.
"""

from __future__ import annotations

import math

from paceline.contracts.kv import KVFormat
from paceline.contracts.specs import DeviceSpec, ModelSpec


class Roofline:
    """Two bounds of one model on one device."""

    def __init__(
        self, spec: ModelSpec, device: DeviceSpec, dtype_bytes: int, kv_dtype_bytes: int, kv_scale_bytes: int = 0
    ) -> None:
        lookup = 0 if spec.tie_word_embeddings else spec.vocab_size * spec.hidden_size  # read by index, not multiplied
        self.matmul_weights = spec.num_parameters - lookup
        self.weight_bytes = spec.num_parameters * dtype_bytes
        self._spec, self._kv = spec, KVFormat(kv_dtype_bytes, kv_scale_bytes)
        self.bytes_per_ms = device.memory_gbps * 1e6
        self.token_ms = 2 * self.matmul_weights / (device.gflops * 1e6)
        self.read_ms = self.matmul_weights * dtype_bytes / self.bytes_per_ms

    def kv_bytes(self, num_tokens: int) -> int:
        """KV of one sequence of `num_tokens`."""
        return self._kv.sequence_bytes(self._spec, num_tokens)

    def decode_ms(self, num_rows: int, context: int) -> float:
        """One token for each of `num_rows` rows whose sequences hold `context` tokens."""
        return max(self.read_ms, num_rows * self.token_ms) + num_rows * self.kv_bytes(context) / self.bytes_per_ms

    def prefill_ms(self, num_tokens: int) -> float:
        return num_tokens * self.token_ms

    @property
    def free_rows(self) -> int:
        """Tokens a step may hold before arithmetic outlasts reading the weights: up to here they cost nothing."""
        return max(1, math.floor(self.read_ms / self.token_ms))
