"""A model whose weights stay in GGUF blocks says what the same file says with its weights made floats."""

from __future__ import annotations

from pathlib import Path

import gguf
import pytest
import torch
import transformers
from tests.cpu.loader.test_weights import SIZES, write_gguf
from tests.fakes.model_folder import CHARACTERS, SPECIALS, write_model

from paceline import LLM, SamplingParams
from paceline.assemble.core import build_core
from paceline.config import EngineConfig
from paceline.config.tree import CacheConfig, ModelConfig
from paceline.runtime.kernels.cpu import native

pytestmark = pytest.mark.skipif(bool(native.why_not()), reason=native.why_not())
PROMPTS = ["Once upon a time", "12 + 30 =", "A rather longer prompt than the others, to be cut in chunks."]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_model(tmp_path_factory.mktemp("models") / "tiny"))


def write_llama(path: Path, stored: str, *, tied: bool) -> None:
    torch.manual_seed(1)
    sizes = SIZES | {"vocab_size": len(SPECIALS) + len(CHARACTERS), "max_position_embeddings": 256}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, tie_word_embeddings=tied))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 2:  # a text hangs on all that came before it
                weight *= 16.0 if name.endswith(("o_proj.weight", "q_proj.weight", "embed_tokens.weight")) else 6.0
    write_gguf(path, model, "llama", gguf.GGMLQuantizationType[stored])


@pytest.mark.parametrize("stored", ["Q4_0", "Q5_1", "Q8_0"])
@pytest.mark.parametrize("tied", [False, True])
def test_blocks_and_floats_give_the_same_tokens_and_bits(
    tmp_path: Path, tokenizer: str, stored: str, tied: bool
) -> None:
    path = tmp_path / "m.gguf"
    write_llama(path, stored, tied=tied)
    sizes = {"max_num_seqs": 4, "max_num_batched_tokens": 64, "prefill_chunk_tokens": 32, "expected_context": 128}
    found = {}
    for quantization in ("auto", "none"):
        options = {"dtype": "float32", "quantization": quantization, "tokenizer": tokenizer, **sizes}
        with LLM(str(path), **options) as llm:
            params = [
                SamplingParams(temperature=t, seed=s, max_tokens=24, ignore_eos=True, logprobs=2)
                for s, t in enumerate((0.0, 1.0, 1.0))
            ]
            found[quantization] = [result.outputs[0] for result in llm.generate(PROMPTS, params)]
    assert [o.token_ids for o in found["auto"]] == [o.token_ids for o in found["none"]]
    assert [o.logprobs for o in found["auto"]] == [o.logprobs for o in found["none"]]
    assert len({tuple(o.token_ids) for o in found["auto"]}) == 3
    assert len(set(found["auto"][0].token_ids)) > 1


def test_auto_keeps_the_blocks_and_counts_them(tmp_path: Path, tokenizer: str) -> None:
    path = tmp_path / "m.gguf"
    write_llama(path, "Q8_0", tied=False)
    taken = {}
    for quantization in ("auto", "none"):
        model = ModelConfig(model=str(path), tokenizer=tokenizer, dtype="float32", quantization=quantization)
        core = build_core(EngineConfig(model=model, cache=CacheConfig(kv_cache_memory=8 << 20)))
        taken[quantization] = core.memory.ledger.weights.predicted_bytes
        core.core.close()
    assert taken["auto"] < 0.4 * taken["none"]
