"""An engine whose KV cache holds codes of 8 bits: a ledger true to the byte, more room, texts as if alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.fakes.model_folder import write_model

from paceline import LLM, SamplingParams
from paceline.errors import UnsupportedError
from paceline.runtime.executor import TorchExecutor
from paceline.runtime.kv_cache import CHUNK_BLOCKS

SIZES = {"max_num_seqs": 8, "max_num_batched_tokens": 48, "prefill_chunk_tokens": 16, "expected_context": 128}
PROMPTS = ["Once upon a time", "The sea", "A rather longer prompt than the others, to be cut in chunks.", "12 + 30 ="]
GREEDY = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
DRAWN = SamplingParams(temperature=1.0, max_tokens=20, ignore_eos=True, seed=7)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "tiny")


def open_llm(folder: Path, **options: Any) -> LLM:
    return LLM(str(folder), **{"dtype": "float32", "num_threads": torch.get_num_threads(), **SIZES, **options})


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with open_llm(folder, kv_cache_dtype="int8", numerics="reference") as llm:
        yield llm


def texts(llm: LLM, prompts: list[str], params: SamplingParams) -> list[str]:
    return [result.outputs[0].text for result in llm.generate(prompts, params)]


@pytest.mark.parametrize("params", [GREEDY, DRAWN], ids=["greedy", "drawn"])
def test_texts_are_the_same_alone_together_and_from_the_prefix_cache(llm: LLM, params: SamplingParams) -> None:
    alone = [texts(llm, [prompt], params)[0] for prompt in PROMPTS]
    assert len(set(alone)) == len(PROMPTS)
    hits = llm.stats().kv.hit_tokens
    assert texts(llm, PROMPTS, params) == alone
    assert texts(llm, PROMPTS[::-1], params) == alone[::-1]
    assert llm.stats().kv.hit_tokens > hits


def test_ledger_layout_and_storage_agree_to_the_byte(llm: LLM) -> None:
    built = llm._engine.built
    assert isinstance(built.core.executor, TorchExecutor)
    layout, cache = built.core.executor.caps.layout, built.core.executor.runner.cache
    assert layout.dtype == "int8"
    assert layout.bytes_per_block == 2 * 16 * 2 * 2 * (16 + 4)  # layers, tokens, K and V, heads, codes and a scale
    assert layout.total_bytes == llm.ledger.kv.predicted_bytes  # type: ignore[attr-defined]
    assert 0 <= cache.storage.numel() - layout.total_bytes < CHUNK_BLOCKS * layout.bytes_per_block  # type: ignore[attr-defined]
    assert built.memory.num_blocks == layout.num_blocks


def test_the_same_memory_holds_more_blocks_and_native_kernels_run_it_too(folder: Path) -> None:
    with open_llm(folder, kv_cache_dtype="int8", kv_cache_memory=1 << 20) as llm:
        assert llm._engine.built.memory.num_blocks == (1 << 20) // (2 * 16 * 2 * 2 * (16 + 4)) - 1
        assert all(len(text) == 20 for text in texts(llm, PROMPTS, GREEDY))


def test_a_head_that_leaves_a_scale_no_place_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    odd = write_model(tmp_path / "odd", head_dim=10)
    with pytest.raises(UnsupportedError, match="head_dim 10") as caught:
        open_llm(odd, kv_cache_dtype="int8")
    assert "auto" in caught.value.fix
