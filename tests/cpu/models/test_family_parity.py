"""Every family gives transformers' logits and greedy text, chunked or not, batched or not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.cpu.harness import Harness
from tests.cpu.models.families import FAMILIES, hf_model, ours

TOLERANCE = 1e-4


@pytest.fixture(scope="module", params=list(FAMILIES))
def twin(request: pytest.FixtureRequest) -> Any:
    return hf_model(request.param)


def prompt_of(length: int, seed: int) -> list[int]:
    return torch.randint(3, 211, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def expected_logits(model: Any, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0]


@pytest.mark.parametrize("numerics", ["fast", "reference"])
def test_whole_prompt_matches(twin: Any, numerics: str) -> None:
    ids = prompt_of(70, 1)
    harness = Harness(ours(twin, numerics=numerics))
    (logits,) = harness.step([(harness.row(), ids)])
    torch.testing.assert_close(logits, expected_logits(twin, ids), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("numerics", ["fast", "reference"])
@pytest.mark.parametrize("chunk", [1, 7, 32])
def test_chunks_match_the_whole(twin: Any, numerics: str, chunk: int) -> None:
    ids = prompt_of(70, 2)
    harness = Harness(ours(twin, numerics=numerics), block_size=8)
    row = harness.row()
    parts = [harness.step([(row, ids[i : i + chunk])])[0] for i in range(0, len(ids), chunk)]
    torch.testing.assert_close(torch.cat(parts), expected_logits(twin, ids), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("numerics", ["fast", "reference"])
def test_mixed_batches_match_each_row_alone(twin: Any, numerics: str) -> None:
    """Decode rows, fresh prompts, later chunks and a row that hits a shared prefix run in the same steps."""
    harness = Harness(ours(twin, numerics=numerics), block_size=8)
    prompts = [prompt_of(length, 10 + length) for length in (5, 33, 64, 18, 41, 50)]
    prompts[5][:32] = prompts[2][:32]
    expected = [expected_logits(twin, ids) for ids in prompts]
    rows = [harness.row() for _ in prompts]
    done: list[list[torch.Tensor]] = [[] for _ in prompts]
    # The second step computes all but the last five ids of every row, cut unevenly; the rest comes one by one.
    cuts = {0: [1, 1], 1: [9, 24], 2: [32, 3], 3: [0, 13], 4: [17, 20], 5: [0, 14]}
    for turn in (0, 1):
        work = []
        for index, row in enumerate(rows):
            if turn == 1 and index == 5:
                rows[5] = row = harness.row(share=rows[2], num_tokens=32)
            count = cuts[index][turn]
            if count:
                work.append((index, row, prompts[index][len(row.ids) : len(row.ids) + count]))
        for (index, _, _), logits in zip(work, harness.step([(r, i) for _, r, i in work]), strict=True):
            done[index].append(logits)
    while any(len(row.ids) < len(ids) for row, ids in zip(rows, prompts, strict=True)):
        live = [i for i, ids in enumerate(prompts) if len(rows[i].ids) < len(ids)]
        work = [(rows[i], [prompts[i][len(rows[i].ids)]]) for i in live]
        for index, logits in zip(live, harness.step(work), strict=True):
            done[index].append(logits)
    for index, parts in enumerate(done):
        got = torch.cat(parts)
        torch.testing.assert_close(got, expected[index][-len(got) :], rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("numerics", ["fast", "reference"])
def test_greedy_text_is_identical(twin: Any, numerics: str) -> None:
    ids = prompt_of(20, 3)
    with torch.no_grad():
        inputs = torch.tensor([ids])
        whole = twin.generate(
            inputs,
            attention_mask=torch.ones_like(inputs),
            max_new_tokens=40,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
    harness = Harness(ours(twin, numerics=numerics))
    assert harness.greedy(ids, 40, chunk=6) == whole[0, 20:].tolist()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_stays_near_float32(twin: Any, dtype: torch.dtype) -> None:
    """Not a bound on quality: it catches a dtype slip, which would be far larger than the rounding of a few layers."""
    ids = prompt_of(40, 4)
    harness = Harness(ours(twin, dtype=dtype))
    row = harness.row()
    logits = torch.cat([harness.step([(row, ids[:39])])[0], harness.step([(row, ids[39:])])[0]])
    expected = expected_logits(twin, ids)
    assert logits.dtype == torch.float32
    assert (logits - expected).abs().mean() < 0.05 * expected.std()
