"""SmolLM2-135M and Gemma-3-270M from their GGUF files: the text transformers writes, and a window that lets go."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests.cpu.embedded.prompts import PROMPTS, long_text
from tests.cpu.embedded.transformers_gguf import compare, load_transformers, teacher_forced

from paceline import LLM, SamplingParams
from paceline.contracts.kv import NULL_BLOCK, KVLayout, ceil_div

NUM_TOKENS = 64
TIE = 1e-3  # float32 logits closer than this may come out in either order, as sums are taken in different orders
GREEDY = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
CHUNK = 64
OpenModel = Callable[[str], LLM]


@pytest.fixture(scope="module")
def open_model() -> Iterator[OpenModel]:
    """Each model is loaded once, when a test first wants it."""
    threads = torch.get_num_threads()
    opened: list[LLM] = []

    @functools.cache
    def open_one(name: str) -> LLM:
        llm = LLM(
            name,
            dtype="float32",
            num_threads=threads,
            max_num_seqs=len(PROMPTS),
            prefill_chunk_tokens=CHUNK,
            max_num_batched_tokens=256,
            max_model_len=2048,
            expected_context=256,
        )
        opened.append(llm)
        return llm

    yield open_one
    for llm in opened:
        llm.close()


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("smollm2-135m", marks=pytest.mark.model("smollm2-135m")),
        pytest.param("gemma3-270m", marks=pytest.mark.model("gemma3-270m")),
    ],
)
def test_greedy_text_is_that_of_transformers(
    name: str, open_model: OpenModel, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    """All 20 texts x 64 tokens, token by token, given the same tokens before. transformers' tokenizers for GGUF files
    differ from the originals in places, so both sides get our ids."""
    llm = open_model(name)
    texts = list(PROMPTS)
    if any(layer.window for layer in llm.spec.layers):
        texts[-1] = long_text(45)  # longer than the window
    prompts = [llm.encode(text) for text in texts]
    outputs = [result.outputs[0].token_ids for result in llm.generate(prompts, GREEDY)]
    assert [len(ids) for ids in outputs] == [NUM_TOKENS] * len(PROMPTS)

    model = load_transformers(llm.model_path, monkeypatch)
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))  # little padding
    found, largest_gap = [], 0.0
    for begin in range(0, len(order), 5):
        chosen = order[begin : begin + 5] if len(prompts[order[-1]]) < 64 or begin < 15 else order[begin:-1]
        for part in [chosen] if chosen is not order[begin:-1] else [chosen]:
            logits = teacher_forced(model, [prompts[i] for i in part], [outputs[i] for i in part])
            found += compare(logits, [outputs[i] for i in part])
    del largest_gap
    record_property("divergences", found)
