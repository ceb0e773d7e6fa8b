"""Fused linear layers: names, parts, sharing and what they cannot do."""

from __future__ import annotations

import pytest
import torch

from paceline.contracts.specs import LayerSpec, ModelSpec
from paceline.errors import UnsupportedError
from paceline.runtime.layers import BuildContext
from paceline.runtime.layers.embedding import Vocabulary
from paceline.runtime.layers.linear import MergedLinear, QKVLinear, RowLinear

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def vocabulary(context: BuildContext, *, tied: bool, scale: float = 1.0, softcap: float | None = None) -> Vocabulary:
    spec = ModelSpec(
        family="llama",
        name="x",
        revision="",
        vocab_size=31,
        hidden_size=16,
        intermediate_size=1,
        num_heads=1,
        num_kv_heads=1,
        head_dim=16,
        layers=(LayerSpec(),),
        max_model_len=8,
        tie_word_embeddings=tied,
        embedding_scale=scale,
        final_softcap=softcap,
    )
    return Vocabulary(spec, context)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("numerics", ["fast", "reference"])
def test_qkv_is_one_product_of_three_named_parts(dtype: torch.dtype, numerics: str) -> None:
    layer = QKVLinear("a.self_attn", 24, 4, 2, 8, BuildContext(dtype=dtype, numerics=numerics), bias=True)
    slots = {slot.name: slot for slot in layer.slots()}
    assert {name: slot.shape for name, slot in slots.items()} == {
        "a.self_attn.q_proj.weight": (32, 24),
        "a.self_attn.q_proj.bias": (32,),
        "a.self_attn.k_proj.weight": (16, 24),
        "a.self_attn.k_proj.bias": (16,),
        "a.self_attn.v_proj.weight": (16, 24),
        "a.self_attn.v_proj.bias": (16,),
    }
    tensors = {name: torch.randn(slot.shape).to(dtype) for name, slot in slots.items()}
    for name in reversed(tensors):
        slots[name].load(tensors[name])
    x = torch.randn(5, 24).to(dtype)
    names = [f"a.self_attn.{part}_proj" for part in "qkv"]
    expected = [x.float() @ tensors[f"{n}.weight"].float().T + tensors[f"{n}.bias"].float() for n in names]
    tolerance = 1e-5 if dtype == torch.float32 else 0.1
    torch.testing.assert_close(layer(x).float(), torch.cat(expected, -1), rtol=0.02, atol=tolerance)
    for name in names:
        assert torch.equal(layer.weight.dequantize(name).float(), tensors[f"{name}.weight"].float())


def test_weights_are_cast_while_loading_and_may_be_loaded_again() -> None:
    layer = RowLinear("o", 8, 4, BuildContext(dtype=torch.bfloat16))
    for seed in (0, 1):
        weight = torch.randn(4, 8, generator=torch.Generator().manual_seed(seed))
        next(layer.slots()).load(weight)
        assert torch.equal(layer.weight.dequantize("o").to(torch.bfloat16), weight.to(torch.bfloat16))


def test_a_packed_weight_is_held_once() -> None:
    layer = MergedLinear("mlp", ("gate_proj", "up_proj"), 64, 128, BuildContext())
    for slot in layer.slots():
        slot.load(torch.randn(slot.shape))
    assert layer.weight.num_bytes == 64 * 256 * 4


@pytest.mark.parametrize("tied", [True, False])
def test_vocabulary_embeds_and_scores(tied: bool) -> None:
    layer = vocabulary(BuildContext(), tied=tied, scale=3.0, softcap=2.0)
    tensors = {slot.name: torch.randn(slot.shape) for slot in layer.slots()}
    assert list(tensors) == ["model.embed_tokens.weight"] + ([] if tied else ["lm_head.weight"])
    for slot in layer.slots():
        slot.load(tensors[slot.name])
    ids = torch.tensor([3, 0, 30, 3])
    torch.testing.assert_close(layer.embed(ids), tensors["model.embed_tokens.weight"][ids] * 3.0)
    hidden = torch.randn(2, 16)
    head = list(tensors.values())[-1]
    torch.testing.assert_close(layer.logits(hidden), torch.tanh(hidden @ head.T / 2.0) * 2.0, rtol=1e-4, atol=1e-5)
    assert torch.equal(layer.embed(ids), layer.embed(ids)), "embedding must not scale the table itself"


def test_logits_are_float32_in_half_precision_models() -> None:
    layer = vocabulary(BuildContext(dtype=torch.bfloat16), tied=True)
    next(layer.slots()).load(torch.randn(31, 16))
    assert layer.logits(torch.randn(2, 16).to(torch.bfloat16)).dtype == torch.float32


def test_grouped_products_are_refused() -> None:
    layer = RowLinear("o", 8, 4, BuildContext())
    with pytest.raises(UnsupportedError, match="experts"):
        layer.weight.apply_grouped(torch.zeros(2, 8), [1, 1])
