"""What a model and a device are, as plain numbers: read by the loader, the cost model, the planner and the layers.

No tensor, no path and no rank lives here. A `ModelSpec` is everything about an architecture that changes arithmetic,
memory or limits; two checkpoints with equal specs run the same code.
"""

from __future__ import annotations

from typing import Literal

import msgspec

RopeKind = Literal["default", "linear", "dynamic", "llama3", "yarn"]
AttentionKind = Literal["full", "sliding", "latent", "state"]


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
    routed: bool = False  # its MLP is the mixture of `ModelSpec.experts`


class ExpertsSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The mixture of experts in place of the MLP of routed layers. An expert has three matrices, as an MLP has."""

    num_experts: int
    num_active: int  # experts a token is sent to
    intermediate_size: int  # of one expert
    shared_intermediate_size: int = 0  # of the part every token goes through, all shared experts together


class LatentSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Multi-head latent attention: the cache holds one compressed vector and one rotated key per token, for all heads.

    Source: DeepSeek-V2, arXiv 2405.04434, section 2.1.
    """

    kv_rank: int  # width of the compressed K and V that is cached
    rope_dim: int  # width of the rotated key that all heads share; cached too
    nope_dim: int  # of a head's query and key, without rotation
    value_dim: int  # of a head's value
    query_rank: int | None = None  # width queries are compressed to; None: they are not

    @property
    def cached_dim(self) -> int:
        """Numbers cached per token and layer."""
        return self.kv_rank + self.rope_dim


class StateSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Layers without a KV cache (linear attention, state space): a state of constant size for each sequence."""

    num_bytes: int  # of one layer and sequence, at any length; its own type is counted in
    num_parameters: int  # of what stands for attention in one such layer


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One decoder-only architecture with its sizes."""

    family: str  # file in runtime/models that builds it; names without a file can be planned for, not run
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
    experts: ExpertsSpec | None = None  # of routed layers
    latent: LatentSpec | None = None  # of latent layers
    state: StateSpec | None = None  # of state layers
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
        layers = sum(self.attention_parameters(x) + self.mlp_parameters(x) for x in self.layers)
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tie_word_embeddings else 2)
        return layers + self.num_layers * 2 * self.hidden_size + embeddings + self.hidden_size

    @property
    def num_active_parameters(self) -> int:
        """Weights that one token is multiplied with: the chosen experts alone, and no table that is only looked up."""
        layers = sum(self.attention_parameters(x) + self.mlp_parameters(x, active=True) for x in self.layers)
        return layers + self.vocab_size * self.hidden_size

    def attention_parameters(self, layer: LayerSpec) -> int:
        """Projections (and their biases) of what mixes tokens in one layer."""
        if layer.attention == "state":
            return self._state.num_parameters
        if layer.attention == "latent":
            x = self._latent
            queries = self.num_heads * (x.nope_dim + x.rope_dim)
            asked = self.hidden_size * queries if x.query_rank is None else x.query_rank * (self.hidden_size + queries)
            compressed = self.hidden_size * x.cached_dim
            expanded = x.kv_rank * self.num_heads * (x.nope_dim + x.value_dim)
            return asked + compressed + expanded + self.num_heads * x.value_dim * self.hidden_size
        query, kv = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        biases = (query + 2 * kv) * self.attention_bias + self.hidden_size * self.attention_output_bias
        return self.hidden_size * (2 * query + 2 * kv) + biases

    def mlp_parameters(self, layer: LayerSpec, *, active: bool = False) -> int:
        """Of one layer's MLP; of a routed one all experts, or those one token goes through, the router with them."""
        if not layer.routed:
            bias = (2 * self.intermediate_size + self.hidden_size) * self.mlp_bias
            return 3 * self.hidden_size * self.intermediate_size + bias
        x = self._experts
        experts = x.num_active if active else x.num_experts
        width = experts * x.intermediate_size + x.shared_intermediate_size
        return 3 * self.hidden_size * width + self.hidden_size * x.num_experts

    def kv_bytes_per_token_per_layer(self, dtype_bytes: int) -> int:
        """What one token leaves in the cache of one layer that has one: K and V of every KV head (MHA, MQA and GQA
        alike), or one compressed vector for all heads. A model has layers of only one of these two forms."""
        if self.latent is not None:
            return self.latent.cached_dim * dtype_bytes
        return 2 * self.num_kv_heads * self.head_dim * dtype_bytes

    def kv_bytes(self, num_tokens: int, dtype_bytes: int) -> int:
        """Cache a sequence of `num_tokens` needs at least: a sliding layer keeps only its window, a state layer a state
        of one size."""
        per_layer = self.kv_bytes_per_token_per_layer(dtype_bytes)
        cached = sum(min(num_tokens, x.window or num_tokens) for x in self.layers if x.attention != "state")
        return per_layer * cached + self.state_bytes

    @property
    def state_bytes(self) -> int:
        """Bytes of recurrent state of one sequence, whatever its length."""
        states = sum(layer.attention == "state" for layer in self.layers)
        return states * self._state.num_bytes if states else 0

    @property
    def _experts(self) -> ExpertsSpec:
        assert self.experts is not None, "a routed layer without experts"
        return self.experts

    @property
    def _latent(self) -> LatentSpec:
        assert self.latent is not None, "a latent layer without its sizes"
        return self.latent

    @property
    def _state(self) -> StateSpec:
        assert self.state is not None, "a state layer without its sizes"
        return self.state


class DeviceSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One device as the engine may use it. Rates are measured at start (`source` says how), never assumed."""

    kind: Literal["cpu", "cuda"]
    name: str
    memory_bytes: int  # what this process may use: the smallest of RAM, cgroup limit and device memory
    num_cores: int  # cores this process may run on (CPU), multiprocessors (CUDA)
    gflops: float  # dense matrix products in the compute dtype, 1e9 operations per second
    memory_gbps: float  # sequential read, 1e9 bytes per second
    source: str = "measured"
