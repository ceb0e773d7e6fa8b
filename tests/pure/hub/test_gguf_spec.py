"""Specs from GGUF metadata: the same architecture must give the same spec as its config.json."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.pure.hub.gguf_maker import model_bytes, tensor

from paceline.contracts.specs import ModelSpec, RopeSpec
from paceline.errors import ModelError, PacelineError, UnsupportedError
from paceline.hub.config_json import spec_from_config
from paceline.hub.gguf_file import GGUFFile
from paceline.hub.gguf_spec import spec_from_gguf
from paceline.hub.rope import llama3_divisors

RNG = np.random.default_rng(3)
SIZES = {
    "vocab_size": 8,
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "bos_token_id": 1,
    "eos_token_id": [2, 6],
}
HEAD_NORMS = {f"blk.{i}.attn_{x}_norm.weight": tensor(RNG, 2) for i in range(2) for x in "qk"}
BIASES = {f"blk.{i}.attn_{x}.bias": tensor(RNG, n) for i in range(2) for x, n in (("q", 8), ("k", 4), ("v", 4))}
OUTPUT = {"output.weight": tensor(RNG, 8, 8)}


def spec(folder: Path, arch: str, **options: Any) -> ModelSpec:
    path = folder / "m.gguf"
    path.write_bytes(model_bytes(arch, **options))
    return spec_from_gguf(GGUFFile(path), name="m")


@pytest.mark.parametrize(
    ("arch", "options", "config"),
    [
        ("llama", {}, {"model_type": "llama", "tie_word_embeddings": True}),
        ("llama", {"tensors": OUTPUT}, {"model_type": "llama"}),
        ("qwen2", {"tensors": BIASES | OUTPUT}, {"model_type": "qwen2"}),
        ("qwen3", {"tensors": HEAD_NORMS}, {"model_type": "qwen3", "tie_word_embeddings": True}),
        (
            "gemma2",
            {"attention__sliding_window": 64, "attention__key_length": 2, "attention__value_length": 2},
            {"model_type": "gemma2", "sliding_window": 64, "query_pre_attn_scalar": 2},
        ),
        (
            "gemma3",
            {"tensors": HEAD_NORMS, "attention__sliding_window": 64},
            {"model_type": "gemma3_text", "sliding_window": 64, "query_pre_attn_scalar": 2},
        ),
        (
            "qwen2",
            {
                "tensors": BIASES | OUTPUT,
                "rope__scaling__type": "yarn",
                "rope__scaling__factor": 4.0,
                "rope__scaling__original_context_length": 32,
            },
            {
                "model_type": "qwen2",
                "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
            },
        ),
    ],
)
def test_both_formats_of_one_architecture_give_one_spec(
    tmp_path: Path, arch: str, options: dict[str, Any], config: dict[str, Any]
) -> None:
    found = msgspec.structs.replace(spec(tmp_path, arch, **options), weight_dtype="", weight_bytes=0)
    wanted = spec_from_config(SIZES | config, name="m", where="config.json")
    assert found == msgspec.structs.replace(wanted, weight_dtype="", weight_bytes=0)


def test_llama3_scaling_is_found_again_from_its_divisors(tmp_path: Path) -> None:
    scaled = RopeSpec(
        theta=500_000.0,
        kind="llama3",
        factor=32.0,
        original_max_position=8192,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
    )
    divisors = llama3_divisors(scaled, 64).astype("<f4")
    assert 1.0 in divisors
    assert any(1.0 < divisor < 32.0 for divisor in divisors)
    options = {
        "rope__freq_base": 500_000.0,
        "attention__key_length": 64,
        "attention__value_length": 64,
    }
    found = spec(tmp_path, "llama", tensors={"rope_freqs.weight": ("F32", (32,), divisors.tobytes())}, **options)
    assert found.layers[0].rope == scaled
    other = np.linspace(1.0, 9.0, 32, dtype="<f4")
    with pytest.raises(UnsupportedError, match=r"rope_freqs\.weight"):
        spec(tmp_path, "llama", tensors={"rope_freqs.weight": ("F32", (32,), other.tobytes())}, **options)


def test_llama3_divisors_are_those_of_the_published_formula() -> None:
    rope = RopeSpec(
        theta=500_000.0,
        kind="llama3",
        factor=8.0,
        original_max_position=8192,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
    )
    for index, divisor in enumerate(llama3_divisors(rope, 128)):
        frequency = 500_000.0 ** (-2 * index / 128)
        wavelength = 2 * np.pi / frequency
        if wavelength < 8192 / 4:
            scaled = frequency
        elif wavelength > 8192:
            scaled = frequency / 8
        else:
            smooth = (8192 / wavelength - 1) / 3
            scaled = (1 - smooth) * frequency / 8 + smooth * frequency
        assert frequency / divisor == pytest.approx(scaled, rel=1e-12)


def test_the_27b_gemmas_scale_scores_by_their_width(tmp_path: Path) -> None:
    blocks = {"attention__key_length": 4, "attention__value_length": 4}
    assert spec(tmp_path, "gemma2", block_count=46, **blocks).attention_scale == 2**-0.5
    assert spec(tmp_path, "gemma2", block_count=2, **blocks).attention_scale == 0.5
    sliding = {"attention__sliding_window": 8}
    assert spec(tmp_path, "gemma3", block_count=62, **blocks, **sliding).attention_scale == 2**-0.5


def test_gemma_3_stretches_only_its_full_layers(tmp_path: Path) -> None:
    found = spec(
        tmp_path,
        "gemma3",
        block_count=6,
        rope__freq_base=1e6,
        rope__scaling__type="linear",
        rope__scaling__factor=8.0,
        attention__sliding_window=8,
    )
    assert [layer.attention for layer in found.layers] == ["sliding"] * 5 + ["full"]
    assert found.layers[5].rope == RopeSpec(theta=1e6, kind="linear", factor=8.0)
    assert found.layers[0].rope == RopeSpec(theta=10_000.0)


def test_a_pattern_may_be_given_layer_by_layer(tmp_path: Path) -> None:
    options = {"attention__sliding_window": 8, "attention__sliding_window_pattern": [False, True]}
    assert [layer.attention for layer in spec(tmp_path, "gemma3", **options).layers] == ["full", "sliding"]


def test_stop_tokens_are_ends_of_text_and_of_turn(tmp_path: Path) -> None:
    assert spec(tmp_path, "llama").eos_token_ids == (2, 6)  # 6 is the control token <|im_end|>
    assert spec(tmp_path, "llama", tokenizer__ggml__eot_token_id=5).eos_token_ids == (2, 5)
    assert spec(tmp_path, "llama", tokenizer__ggml__token_type=[1] * 8).eos_token_ids == (2,)


@pytest.mark.parametrize(
    ("arch", "options", "error", "words"),
    [
        ("phi3", {}, UnsupportedError, "one of llama, qwen2, qwen3, gemma2, gemma3"),
        ("llama", {"expert_count": 8}, UnsupportedError, "8 experts"),
        ("llama", {"tensors": {"token_embd.weight": None}}, ModelError, "token_embd.weight"),
        ("llama", {"block_count": None}, ModelError, "llama.block_count"),
        ("llama", {"attention__head_count_kv": 3}, ModelError, "head_count_kv"),
        ("llama", {"attention__head_count_kv": [2, 4]}, UnsupportedError, "several sizes"),
        ("llama", {"rope__dimension_count": 1}, UnsupportedError, "rope.dimension_count"),
        ("llama", {"rope__scaling__type": "longrope", "rope__scaling__factor": 2.0}, UnsupportedError, "longrope"),
        ("gemma3", {}, ModelError, "sliding_window"),
        ("gemma2", {"attention__sliding_window_pattern": [True]}, ModelError, "sliding_window_pattern"),
        ("llama", {"tensors": {"x": ("I32", (1,), bytes(4))}}, UnsupportedError, "'x'"),
    ],
)
def test_what_is_not_built_or_not_usable_is_named(
    tmp_path: Path, arch: str, options: dict[str, Any], error: type[PacelineError], words: str
) -> None:
    with pytest.raises(error) as caught:
        spec(tmp_path, arch, **options)
    assert words in str(caught.value)


def test_sizes_per_layer_are_fine_when_they_agree(tmp_path: Path) -> None:
    assert spec(tmp_path, "llama", attention__head_count_kv=[2, 2]).num_kv_heads == 2


def test_weight_type_is_the_files_mix_or_the_commonest_type(tmp_path: Path) -> None:
    assert spec(tmp_path, "llama", general__file_type=15).weight_dtype == "gguf:Q4_K_M"
    assert spec(tmp_path, "llama", general__file_type=None).weight_dtype == "gguf:F32"


@pytest.mark.parametrize(
    ("key", "item", "expected"),
    [
        ("general.architecture", ["llama", "qwen2"], "a string"),
        ("general.architecture", [1, 2], "a string"),
        ("general.architecture", 3, "a string"),
        ("general.file_type", [1, 2], "an integer"),
        ("general.file_type", ["Q8_0"], "an integer"),
        ("llama.expert_count", [0, 0], "an integer"),
        ("llama.attention.head_count_kv", [0, 0], "positive integers"),
        ("llama.attention.head_count", [1.5, 1.5], "positive integers"),
    ],
)
def test_a_value_of_the_wrong_type_is_a_model_error_with_its_key(
    tmp_path: Path, key: str, item: Any, expected: str
) -> None:
    short = key.removeprefix("llama.").replace(".", "__")
    with pytest.raises(ModelError, match=key) as caught:
        spec(tmp_path, "llama", **{short: item})
    assert caught.value.seen is not None
    assert caught.value.expected == expected
    assert caught.value.fix


@pytest.mark.parametrize("arch", ["llama", "gemma3"])
def test_no_value_of_any_type_raises_anything_but_our_errors(tmp_path: Path, arch: str) -> None:
    path = tmp_path / "keys.gguf"
    path.write_bytes(model_bytes(arch))
    extra = ("split.count", f"{arch}.attention.sliding_window_pattern", f"{arch}.rope.scaling.type")
    refused = 0
    for key in [*GGUFFile(path).metadata, *extra]:
        for item in ("text", 0, 2.5, True, [0, 0], [1.5, 1.5], ["a", "b"]):
            try:
                spec(tmp_path, arch, **{key.removeprefix(f"{arch}.").replace(".", "__"): item})
            except PacelineError:
                refused += 1
    assert refused > 40
