"""What a model and a device are, as plain numbers: read by the loader, the cost model, the planner and the layers.

No tensor, no path and no rank lives here. A `ModelSpec` is everything about an architecture that changes arithmetic,
memory or limits; two checkpoints with equal specs run the same code.
"""

from __future__ import annotations

from typing import Literal

import msgspec

RopeKind = Literal["default", "linear", "dynamic", "llama3", "yarn"]
AttentionKind = Literal["full", "sliding"]


class RopeSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Rotary embedding of one layer, under the Hugging Face `rope_scaling` names."""

    theta: float = 10_000.0
    kind: RopeKind = "default"
    factor: float = 1.0
    original_max_position: int | None = None  # positions of pre-training (dynamic, llama3, yarn)
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    attention_factor: float | None = None  # yarn: None = derived from factor (and the two mscale values)
    mscale: float | None = None  # yarn
    mscale_all_dim: float | None = None  # yarn
    truncate: bool = True  # yarn: round the correction range to whole dimensions


class LayerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What differs from layer to layer."""

    attention: AttentionKind = "full"
    window: int | None = None  # tokens a query sees, itself included; sliding only
    rope: RopeSpec = RopeSpec()


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One decoder-only architecture with its sizes."""

    family: str  # file in runtime/models that builds it: llama, qwen2, qwen3, gemma2, gemma3
    name: str  # what the user called the model
    revision: str  # digest of weights and configuration; part of every cache key
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    layers: tuple[LayerSpec, ...]
    max_model_len: int  # longest sequence the checkpoint was made for, in tokens
    rms_norm_eps: float = 1e-6
    tie_word_embeddings: bool = False
    activation: Literal["silu", "gelu_tanh", "gelu"] = "silu"
    attention_bias: bool = False  # bias on q, k and v
    attention_output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False  # RMS norm over head_dim on q and k before rotation
    attention_scale: float | None = None  # multiplies q·k; None = head_dim ** -0.5
    attention_softcap: float | None = None  # cap * tanh(score / cap)
    final_softcap: float | None = None  # the same on the logits
    embedding_scale: float = 1.0  # Gemma multiplies embeddings by sqrt(hidden_size)
    weight_dtype: str = "bfloat16"  # as stored, or "gguf:<file type>"
    weight_bytes: int = 0  # as stored; 0 = not known
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def scale(self) -> float:
        return self.head_dim**-0.5 if self.attention_scale is None else self.attention_scale

    @property
    def num_parameters(self) -> int:
        """Weights of the architecture, biases and norms included; tied embeddings counted once."""
        attention = self.hidden_size * self.head_dim * (2 * self.num_heads + 2 * self.num_kv_heads)
        mlp = 3 * self.hidden_size * self.intermediate_size
        norms = 2 * self.hidden_size
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tie_word_embeddings else 2)
        return self.num_layers * (attention + mlp + norms) + embeddings + self.hidden_size

    def kv_bytes_per_token_per_layer(self, dtype_bytes: int) -> int:
        """K and V of one token in one layer (MHA, MQA and GQA alike: it is num_kv_heads that counts)."""
        return 2 * self.num_kv_heads * self.head_dim * dtype_bytes

    def kv_bytes(self, num_tokens: int, dtype_bytes: int) -> int:
        """KV a sequence of `num_tokens` needs at least: a sliding layer keeps only its window."""
        per_layer = self.kv_bytes_per_token_per_layer(dtype_bytes)
        return sum(per_layer * min(num_tokens, layer.window or num_tokens) for layer in self.layers)


class DeviceSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One device as the engine may use it. Rates are measured at start (`source` says how), never assumed."""

    kind: Literal["cpu", "cuda"]
    name: str
    memory_bytes: int  # what this process may use: the smallest of RAM, cgroup limit and device memory
    num_cores: int  # cores this process may run on (CPU), multiprocessors (CUDA)
    gflops: float  # dense matrix products in the compute dtype, 1e9 operations per second
    memory_gbps: float  # sequential read, 1e9 bytes per second
    source: str = "measured"
