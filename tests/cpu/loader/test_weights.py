"""Streams of weights: names, shapes and values, from every kind of file."""

from pathlib import Path
from typing import Any

import gguf
import msgspec
import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import save_file
from tests.pure.hub.gguf_maker import model_bytes, tensor

from paceline.contracts.specs import ModelSpec
from paceline.errors import ModelError, UnsupportedError
from paceline.hub import describe
from paceline.hub.files import ModelFiles, inspect
from paceline.runtime.kernels.reference.blocks import ReferenceBlocks
from paceline.runtime.layers.linear import StoredBlocks
from paceline.runtime.loader import open_weights
from paceline.runtime.loader.dummy import weight_shapes
from paceline.runtime.loader.gguf import hf_name

SIZES: dict[str, Any] = {
    "vocab_size": 32,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {  # model_type -> (class, more sizes)
    "llama": ("Llama", {}),
    "llama with biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "mistral": ("Mistral", {"head_dim": 32, "sliding_window": 16}),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {"head_dim": 32, "attention_bias": True, "tie_word_embeddings": True}),
    "gemma2": ("Gemma2", {"head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 16}),
    "gemma3": ("Gemma3", {"head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 16}),
}


def tiny(kind: str) -> torch.nn.Module:
    name, more = FAMILIES[kind]
    config_class = getattr(transformers, f"{name}TextConfig" if name == "Gemma3" else f"{name}Config")
    torch.manual_seed(0)
    return getattr(transformers, f"{name}ForCausalLM")(config_class(**SIZES | more))


def stored_weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    weights = {name: value.detach() for name, value in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        weights.pop("lm_head.weight", None)
    return weights


def streamed(files: ModelFiles, spec: ModelSpec | None = None, **options: Any) -> dict[str, Any]:
    pairs = list(open_weights(files, spec or describe(files), **options))
    assert len({name for name, _ in pairs}) == len(pairs)
    return dict(pairs)


def assert_same(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    assert sorted(found) == sorted(wanted)
    for name, value in wanted.items():
        assert torch.equal(found[name], value), name


@pytest.mark.parametrize("kind", FAMILIES)
@pytest.mark.parametrize("shard_size", ["1GB", "60KB"])
def test_folders_that_transformers_saves_come_back_unchanged(tmp_path: Path, kind: str, shard_size: str) -> None:
    model = tiny(kind)
    model.save_pretrained(tmp_path, max_shard_size=shard_size)
    files = inspect(tmp_path, kind)
    assert (len(files.files) > 1) is (shard_size == "60KB")
    assert_same(streamed(files), stored_weights(model))
    spec, config = describe(files), model.config
    assert spec.weight_bytes == sum(4 * value.numel() for value in stored_weights(model).values())
    assert spec.head_dim == getattr(config, "head_dim", config.hidden_size // config.num_attention_heads)
    assert spec.tie_word_embeddings == config.tie_word_embeddings
    assert spec.rms_norm_eps == config.rms_norm_eps
    if hasattr(config, "layer_types"):
        assert [f"{layer.attention}_attention" for layer in spec.layers] == config.layer_types
    bf16 = streamed(files, spec, dtype=torch.bfloat16)
    assert all(torch.equal(bf16[name], value.bfloat16()) for name, value in stored_weights(model).items())


@pytest.mark.parametrize("kind", FAMILIES)
def test_the_weights_a_spec_implies_are_those_transformers_has(tmp_path: Path, kind: str) -> None:
    model = tiny(kind)
    model.config.save_pretrained(tmp_path)
    files = inspect(tmp_path, f"dummy:{kind}", weights=False)
    shapes = {name: tuple(value.shape) for name, value in stored_weights(model).items()}
    assert dict(weight_shapes(describe(files))) == shapes
    assert {name: tuple(value.shape) for name, value in streamed(files, seed=1).items()} == shapes


def test_dummy_weights_depend_on_seed_and_name_alone(tmp_path: Path) -> None:
    tiny("gemma3").config.save_pretrained(tmp_path)
    files = inspect(tmp_path, "dummy:m", weights=False)
    first, again, other = (streamed(files, seed=seed) for seed in (1, 1, 2))
    assert_same(first, again)
    assert not torch.equal(first["model.embed_tokens.weight"], other["model.embed_tokens.weight"])
    down = first["model.layers.0.mlp.down_proj.weight"]
    assert 0.8 < float(down.std()) * down.shape[1] ** 0.5 < 1.2
    assert float(first["model.norm.weight"].mean()) == pytest.approx(0.0, abs=0.02)  # Gemma adds the 1 itself


def interleaved(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """What llama.cpp's conversion does to q and k, as its converter states it."""
    return (
        weight.reshape(num_heads, 2, weight.shape[0] // num_heads // 2, *weight.shape[1:])
        .swapaxes(1, 2)
        .reshape(weight.shape)
    )


def write_gguf(path: Path, model: torch.nn.Module, arch: str, kind: gguf.GGMLQuantizationType) -> dict[str, np.ndarray]:
    """Convert as llama.cpp does, with the names of the gguf package. Returns what a reader must find, by HF name."""
    config = model.config
    writer = gguf.GGUFWriter(path, arch)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    if arch.startswith("gemma"):
        writer.add_sliding_window(config.sliding_window)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[arch.upper()], config.num_hidden_layers)
    wanted = {}
    for name, value in stored_weights(model).items():
        weight = value.numpy()
        if arch == "llama" and (".q_proj." in name or ".k_proj." in name):
            heads = config.num_attention_heads if ".q_proj." in name else config.num_key_value_heads
            weight = interleaved(weight, heads)
        if arch.startswith("gemma") and name.endswith("norm.weight"):
            weight = weight + 1
        stored = kind if weight.ndim == 2 else gguf.GGMLQuantizationType.F32
        packed = gguf.quants.quantize(np.ascontiguousarray(weight), stored)
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight", ".bias")), packed, raw_dtype=stored)
        wanted[name] = gguf.quants.dequantize(gguf.quants.quantize(value.numpy(), stored), stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return wanted


@pytest.mark.parametrize("kind", FAMILIES)
@pytest.mark.parametrize("stored", ["F32", "Q8_0"])
def test_gguf_files_give_the_checkpoint_back(tmp_path: Path, kind: str, stored: str) -> None:
    """Names, the order of rows in q and k, and norm offsets, for each family and a quantised type."""
    model, arch = tiny(kind), "llama" if kind.startswith(("llama", "mistral")) else kind
    wanted = write_gguf(tmp_path / "m.gguf", model, arch, gguf.GGMLQuantizationType[stored])
    files = inspect(tmp_path / "m.gguf", kind)
    found, spec = streamed(files), describe(files)
    assert sorted(found) == sorted(wanted)
    for name, value in wanted.items():
        offset = 1e-7 if arch.startswith("gemma") and name.endswith("norm.weight") else 0.0
        np.testing.assert_allclose(found[name].numpy(), value, rtol=0, atol=offset, err_msg=name)
    assert dict(weight_shapes(spec)) == {name: value.shape for name, value in wanted.items()}
    narrow = streamed(files, spec, dtype=torch.bfloat16)
    assert_same(narrow, {name: value.bfloat16() for name, value in found.items()})


@pytest.mark.parametrize("kind", ["llama", "llama with biases", "mistral", "qwen2", "gemma3"])
@pytest.mark.parametrize("stored", ["Q8_0", "Q4_0", "Q5_1"])
def test_matrices_that_stay_in_blocks_are_the_same_numbers(tmp_path: Path, kind: str, stored: str) -> None:
    """The rows of q and k in a llama file too, which are put back in order as bytes."""
    model, arch = tiny(kind), "llama" if kind.startswith(("llama", "mistral")) else kind
    number = gguf.GGMLQuantizationType[stored].value
    write_gguf(tmp_path / "m.gguf", model, arch, gguf.GGMLQuantizationType[stored])
    files = inspect(tmp_path / "m.gguf", kind)
    floats = streamed(files, dtype=torch.float32)
    found = streamed(files, dtype=torch.float32, keep_blocks=lambda ggml_type: ggml_type == number)
    assert list(found) == list(floats)
    for name, value in found.items():
        if isinstance(value, StoredBlocks):
            assert value.ggml_type == number
            assert value.shape == floats[name].shape
            value = ReferenceBlocks.pack(value.raw, value.ggml_type, *value.shape)
        else:
            assert value.dim() == 1, name
        assert torch.equal(value, floats[name]), name
    plain = streamed(files, dtype=torch.float32, keep_blocks=lambda _ggml_type: False)
    assert_same(plain, floats)


def test_rows_of_half_a_block_are_refused_though_the_bytes_are_there(tmp_path: Path) -> None:
    """32 rows of 16 weights fill 16 blocks of Q4_0, but no row is whole blocks."""
    raw = gguf.quants.quantize(np.ones((16, 32), dtype=np.float32), gguf.GGMLQuantizationType.Q4_0)
    halves = {"blk.0.ffn_up.weight": ("Q4_0", (32, 16), raw.tobytes())}
    (tmp_path / "m.gguf").write_bytes(model_bytes(tensors=halves))
    with pytest.raises(ModelError, match="Q4_0 blocks cannot fill"):
        streamed(inspect(tmp_path / "m.gguf", "m"), keep_blocks=lambda _ggml_type: True)


def test_rotary_divisors_are_no_weight(tmp_path: Path) -> None:
    ones = ("F32", (1,), np.ones(1, dtype="<f4").tobytes())
    (tmp_path / "m.gguf").write_bytes(model_bytes(tensors={"rope_freqs.weight": ones}))
    assert "rope_freqs.weight" not in streamed(inspect(tmp_path / "m.gguf", "m"))


@pytest.mark.parametrize("name", ["blk.0.ffn_gate_exps.weight", "blk.x.attn_q.weight", "v.patch_embd.weight", "x"])
def test_a_tensor_without_a_place_is_refused_by_name(name: str) -> None:
    with pytest.raises(UnsupportedError, match=name):
        hf_name(name, "llama")


def test_rows_that_do_not_divide_into_heads_are_refused(tmp_path: Path) -> None:
    odd = {"blk.0.attn_k.weight": tensor(np.random.default_rng(0), 6, 8)}
    (tmp_path / "m.gguf").write_bytes(model_bytes(tensors=odd))
    with pytest.raises(ModelError, match=r"blk\.0\.attn_k\.weight"):
        streamed(inspect(tmp_path / "m.gguf", "m"))


def test_a_file_cut_after_the_spec_was_read_is_still_caught(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(model_bytes())
    files = inspect(path, "m")
    spec = describe(files)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(ModelError, match=r"blk\.1\.ffn_down\.weight"):
        streamed(files, spec)


def test_the_text_part_of_a_model_that_sees_pictures(tmp_path: Path) -> None:
    model = tiny("gemma3")
    model.config.save_pretrained(tmp_path)
    weights = stored_weights(model)
    for prefix in ("language_model.model.", "model.language_model."):
        stored = {prefix + name.removeprefix("model."): value.clone() for name, value in weights.items()}
        stored["vision_tower.encoder.weight"] = torch.zeros(3)
        stored["multi_modal_projector.weight"] = torch.zeros(3)
        save_file(stored, tmp_path / "model.safetensors")
        assert_same(streamed(inspect(tmp_path, "m")), weights)


def test_a_tied_head_that_was_stored_too_is_left_out(tmp_path: Path) -> None:
    model = tiny("qwen3")
    model.config.save_pretrained(tmp_path)
    weights = {name: value.clone() for name, value in stored_weights(model).items()}
    head = {"lm_head.weight": weights["model.embed_tokens.weight"].clone()}
    save_file(weights | head, tmp_path / "model.safetensors")
    assert_same(streamed(inspect(tmp_path, "m")), weights)


def test_tensors_are_read_one_by_one(tmp_path: Path) -> None:
    """Nothing is read ahead: the stream of a file whose second tensor is bad gives the first."""
    path = tmp_path / "m.gguf"
    path.write_bytes(model_bytes(tensors={"zzz": tensor(np.random.default_rng(0), 4)}))
    files = inspect(path, "m")
    stream = open_weights(files, describe(files))
    for _ in range(20):
        next(stream)
    with pytest.raises(UnsupportedError, match="zzz"):
        next(stream)


def test_specs_are_values(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(model_bytes())
    spec = describe(inspect(tmp_path / "m.gguf", "m"))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(spec), type=ModelSpec) == spec
