"""SmolLM2-135M and Gemma-3-270M from their GGUF files: the text transformers writes, and a window that lets go."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import pytest
import torch
from tests.cpu.embedded.prompts import PROMPTS, long_text
from tests.cpu.embedded.transformers_gguf import batches, differences, load_transformers, teacher_forced

from paceline import LLM, SamplingParams
from paceline.contracts.kv import NULL_BLOCK, ceil_div
from paceline.contracts.ports import Handle
from paceline.contracts.step import StepPlan

NUM_TOKENS = 64
TIE = 1e-3  # float32 logits closer than this may come out in either order: sums are taken in different orders
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
            max_num_batched_tokens=256,
            prefill_chunk_tokens=CHUNK,
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
    name: str, open_model: OpenModel, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """20 texts x 64 tokens. Both sides get our ids: transformers' tokenizers for GGUF files differ from the originals
    in places. Where float32 logits tie, the other token may come out; every such place is printed."""
    llm = open_model(name)
    texts = list(PROMPTS)
    if any(layer.window for layer in llm.spec.layers):
        texts[-1] = long_text(45)  # longer than the window
    prompts = [llm.encode(text) for text in texts]
    outputs = [result.outputs[0].token_ids for result in llm.generate(prompts, GREEDY)]
    assert [len(ids) for ids in outputs] == [NUM_TOKENS] * len(PROMPTS)
    (scored,) = llm.generate(prompts[0] + outputs[0], max_tokens=1, prompt_logprobs=0)

    model = load_transformers(llm.model_path, monkeypatch)
    found = []
    for batch in batches([len(prompt) for prompt in prompts]):
        logits = teacher_forced(model, [prompts[i] for i in batch], [outputs[i] for i in batch])
        found += differences(logits, batch, outputs)
        if 0 in batch:
            theirs = logits[batch.index(0)].log_softmax(-1).gather(-1, torch.tensor(outputs[0])[:, None])[:, 0]
    with capsys.disabled():
        for difference in found:
            print(f"\n{name}: {difference}")
    assert all(difference.margin < TIE for difference in found)

    assert scored.prompt_logprobs is not None
    ours = torch.tensor([entry.logprob for entry in scored.prompt_logprobs[-NUM_TOKENS:] if entry is not None])
    assert torch.allclose(ours, theirs, atol=TIE, rtol=0), (ours - theirs).abs().max()


@pytest.mark.model("gemma3-270m")
def test_blocks_behind_the_window_are_given_back_and_a_long_prefix_is_hit(
    open_model: OpenModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = open_model("gemma3-270m")
    core = llm.client.core
    manager, executor = core.scheduler._kv, core.executor
    layout = executor.caps.layout
    windows = {group.window for group in layout.groups}
    assert windows == {512, None}
    prompt = llm.encode(long_text(60))
    assert len(prompt) > 512 + 3 * CHUNK

    most_held = [0] * len(layout.groups)  # at the worst moment of a step: what it writes is there, nothing is dropped
    submit = executor.submit

    def look_and_submit(plan: StepPlan) -> Handle:
        for kv in manager._live.values():
            for group, table in enumerate(kv.tables):
                most_held[group] = max(most_held[group], sum(block != NULL_BLOCK for block in table))
        manager.check()
        return submit(plan)

    monkeypatch.setattr(executor, "submit", look_and_submit)
    assert llm.client.reset_prefix_cache()
    (cold,) = llm.generate(prompt, GREEDY)[0].outputs
    (warm,) = llm.generate(prompt, GREEDY)[0].outputs

    for group, held in zip(layout.groups, most_held, strict=True):
        if group.window is None:
            assert held == ceil_div(len(prompt) + NUM_TOKENS - 1, layout.block_size)
        else:
            assert 512 // layout.block_size <= held <= ceil_div(512 + CHUNK, layout.block_size) + 1
    assert cold.usage.cached_tokens == 0
    assert warm.usage.cached_tokens == (len(prompt) - 1) // layout.block_size * layout.block_size
    assert warm.token_ids == cold.token_ids
    assert llm.stats().kv.held == llm.stats().kv.limbo == 0
