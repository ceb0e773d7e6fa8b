"""Random weights for a `ModelSpec`: to try sizes and speed without a checkpoint. The text they give means nothing.

Each tensor is drawn from (seed, name) alone, so neither order nor dtype changes the numbers drawn. Matrices have a
standard deviation of fan_in ** -0.5, which keeps activations of order one through the layers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import torch

from paceline.contracts.specs import ModelSpec


def weight_shapes(spec: ModelSpec) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape of every weight of the architecture, as a Hugging Face checkpoint has them."""
    hidden, q_size, kv_size = spec.hidden_size, spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    yield "model.embed_tokens.weight", (spec.vocab_size, hidden)
    norms = ["input_layernorm", "post_attention_layernorm"]
    if spec.family.startswith("gemma"):
        norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
    linears = [
        ("self_attn.q_proj", q_size, hidden, spec.attention_bias),
        ("self_attn.k_proj", kv_size, hidden, spec.attention_bias),
        ("self_attn.v_proj", kv_size, hidden, spec.attention_bias),
        ("self_attn.o_proj", hidden, q_size, spec.attention_output_bias),
        ("mlp.gate_proj", spec.intermediate_size, hidden, spec.mlp_bias),
        ("mlp.up_proj", spec.intermediate_size, hidden, spec.mlp_bias),
        ("mlp.down_proj", hidden, spec.intermediate_size, spec.mlp_bias),
    ]
    for index in range(spec.num_layers):
        prefix = f"model.layers.{index}."
        for norm in norms:
            yield f"{prefix}{norm}.weight", (hidden,)
        if spec.qk_norm:
            yield f"{prefix}self_attn.q_norm.weight", (spec.head_dim,)
            yield f"{prefix}self_attn.k_norm.weight", (spec.head_dim,)
        for name, rows, columns, bias in linears:
            yield f"{prefix}{name}.weight", (rows, columns)
            if bias:
                yield f"{prefix}{name}.bias", (rows,)
    yield "model.norm.weight", (hidden,)
    if not spec.tie_word_embeddings:
        yield "lm_head.weight", (spec.vocab_size, hidden)


def dummy_weights(spec: ModelSpec, *, seed: int, dtype: torch.dtype | None) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield (name, tensor). Norms are near the identity: 1 + noise, or noise where the family adds 1 itself."""
    for name, shape in weight_shapes(spec):
        digest = hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=7).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest, "little"))
        tensor = torch.empty(shape).normal_(generator=generator)
        if len(shape) == 1:
            tensor *= 0.02
            if name.endswith("norm.weight") and not spec.family.startswith("gemma"):
                tensor += 1.0
        else:
            tensor *= shape[1] ** -0.5
        yield name, tensor if dtype is None else tensor.to(dtype)
