"""`activation_dtype=int8` and `quantization=int8` through the engine: what they change, where they are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cpu.quant.test_gguf_model import PROMPTS, tokenizer, write_llama
from tests.fakes.model_folder import write_model
from tests.pure.hub.gguf_maker import model_bytes, tensor

from paceline import LLM, SamplingParams
from paceline.assemble.core import build_core
from paceline.assemble.weights import find_weight_method
from paceline.config import EngineConfig
from paceline.config.tree import CacheConfig, ModelConfig
from paceline.errors import UnsupportedError
from paceline.hub.files import inspect
from paceline.runtime.kernels.cpu import native

__all__ = ["tokenizer"]  # a fixture
needs_library = pytest.mark.skipif(bool(native.why_not()), reason=native.why_not())
SIZES = {"max_num_seqs": 4, "max_num_batched_tokens": 64, "prefill_chunk_tokens": 32, "expected_context": 128}


def check_texts_are_their_own(path: Path, tokenizer: str, activation_dtype: str) -> None:
    """No text depends on the texts beside it."""
    write_llama(path, "Q4_1", tied=True)
    options = {"dtype": "float32", "activation_dtype": activation_dtype, "enable_prefix_caching": False}
    with LLM(str(path), tokenizer=tokenizer, **options, **SIZES) as llm:
        params = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True, logprobs=1)
        together = [result.outputs[0] for result in llm.generate(PROMPTS, params)]
        alone = [llm.generate([prompt], params)[0].outputs[0] for prompt in PROMPTS]
    assert len({tuple(output.token_ids) for output in together}) == len(PROMPTS)
    assert [output.token_ids for output in together] == [output.token_ids for output in alone]
    assert [output.logprobs for output in together] == [output.logprobs for output in alone]


@needs_library
def test_a_text_does_not_depend_on_the_texts_beside_it(tmp_path: Path, tokenizer: str) -> None:
    check_texts_are_their_own(tmp_path / "m.gguf", tokenizer, "int8")


def config(path: Path, tokenizer: str, **options: Any) -> EngineConfig:
    numerics = options.pop("numerics", "fast")
    model = ModelConfig(model=str(path), tokenizer=tokenizer, **({"dtype": "float32"} | options))
    return EngineConfig(model=model, cache=CacheConfig(kv_cache_memory=8 << 20), numerics=numerics)


@needs_library
def test_float_files_are_rounded_when_asked_and_take_less(tmp_path: Path, tokenizer: str) -> None:
    path = tmp_path / "m.gguf"
    write_llama(path, "F16", tied=False)
    taken = {}
    for quantization, activation_dtype in [("auto", "float"), ("int8", "float"), ("int8", "int8")]:
        asked = config(path, tokenizer, quantization=quantization, activation_dtype=activation_dtype)
        core = build_core(asked)
        taken[quantization, activation_dtype] = core.memory.ledger.weights.predicted_bytes
        core.core.close()
    assert all(size < 0.4 * taken["auto", "float"] for key, size in taken.items() if key[0] == "int8")


@needs_library
@pytest.mark.parametrize(
    ("stored", "options", "words"),
    [
        ("Q8_0", {"numerics": "reference"}, "numerics reference"),
        ("Q8_0", {"dtype": "float16"}, "dtype float16"),
        ("Q8_0", {"quantization": "none"}, "quantization=none"),
        ("F16", {}, "Q4_K, Q5_0"),
    ],
    ids=["reference", "float16", "none", "floats"],
)
def test_where_it_cannot_be_had_it_is_refused(
    tmp_path: Path,
    tokenizer: str,
    stored: str,
    options: dict[str, Any],
    words: str,
) -> None:
    path = tmp_path / "m.gguf"
    write_llama(path, stored, tied=True)
    with pytest.raises(UnsupportedError, match=words) as caught:
        build_core(config(path, tokenizer, activation_dtype="int8", **options))
    assert caught.value.fix


@needs_library
def test_a_folder_of_floats_needs_to_be_rounded(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "tiny")
    files = inspect(folder, "tiny")
    asked = config(folder, str(folder), activation_dtype="int8")
    with pytest.raises(UnsupportedError, match="quantization=int8"):
        find_weight_method(asked, files, device="cpu", dtype="float32")
    asked = config(folder, str(folder), activation_dtype="int8", quantization="int8")
    method = find_weight_method(asked, files, device="cpu", dtype="float32")
    assert method is not None
    assert (method.name, method.rounds) == ("gguf-int8", True)


@needs_library
def test_a_table_that_rows_are_only_gathered_from_is_not_enough(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    table: dict[str, Any] = {"token_embd.weight": ("Q8_0", (8, 32), bytes(8 * 34))}
    head = {"output.weight": tensor(np.random.default_rng(0), 8, 32)}
    asked = config(path, "", activation_dtype="int8")
    path.write_bytes(model_bytes(tensors=table))  # the table is the head as well
    assert find_weight_method(asked, inspect(path, "m"), device="cpu", dtype="float32") is not None
    path.write_bytes(model_bytes(tensors=table | head))
    with pytest.raises(UnsupportedError, match="would change nothing") as caught:
        find_weight_method(asked, inspect(path, "m"), device="cpu", dtype="float32")
    assert "weights in F32, of 16, 32, 8 inputs" in caught.value.seen
    assert "quantization=int8" in caught.value.fix


@needs_library
@pytest.mark.parametrize("activation_dtype", ["float", "int8"])
def test_rounding_that_reaches_no_product_is_refused(tmp_path: Path, activation_dtype: str) -> None:
    for name, sizes, reached in [
        ("none", {"hidden_size": 40, "intermediate_size": 80, "head_dim": 12}, False),
        ("attention's output alone", {"hidden_size": 40, "intermediate_size": 80, "head_dim": 16}, True),
    ]:
        folder = write_model(tmp_path / name, **sizes)
        asked = config(folder, "", quantization="int8", activation_dtype=activation_dtype)
        if reached:
            assert find_weight_method(asked, inspect(folder, name), device="cpu", dtype="float32") is not None
            continue
        with pytest.raises(UnsupportedError, match="would change nothing") as caught:
            find_weight_method(asked, inspect(folder, name), device="cpu", dtype="float32")
        assert "floats, of 40, 48, 80 inputs" in caught.value.seen
        assert "multiples of 32" in caught.value.expected


@pytest.mark.parametrize("option", [{"activation_dtype": "int8"}, {"quantization": "int8"}], ids=str)
def test_without_the_library_the_reason_is_given(
    tmp_path: Path, option: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_model(tmp_path / "tiny")
    monkeypatch.setattr(native, "why_not", lambda: "there is no C++ compiler")
    asked = config(folder, str(folder), **option)
    with pytest.raises(UnsupportedError, match=r"there is no C\+\+ compiler"):
        find_weight_method(asked, inspect(folder, "tiny"), device="cpu", dtype="float32")
