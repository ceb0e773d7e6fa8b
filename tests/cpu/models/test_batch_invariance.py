"""A row's logits are the same bits whatever its batch mates, chunks, blocks or cache hits: in reference
numerics, and in fast ones where native kernels serve."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from tests.cpu.harness import Harness, Row
from tests.cpu.models.families import hf_model, ours

from paceline.contracts.specs import LayerSpec, ModelSpec
from paceline.runtime.kernels.cpu.native import why_not
from paceline.runtime.layers import BuildContext
from paceline.runtime.models import Model, build_model

LENGTHS = (70, 23, 41, 9)
NATIVE = not why_not()
NUMERICS = ["reference", "fast"] if NATIVE else ["reference"]


def random_ids(length: int, vocab: int, seed: int) -> list[int]:
    return torch.randint(3, vocab, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def check(
    model: Model, lengths: tuple[int, ...], *, hit: int, most: int = 20, kv_dtype: torch.dtype | None = None
) -> None:
    """Rows alone and whole, against the same rows mixed, chunked, elsewhere in memory; the last hits the first."""
    prompts = [random_ids(n, model.spec.vocab_size, n) for n in lengths]
    prompts.append(prompts[0][:hit] + random_ids(15, model.spec.vocab_size, 5))
    alone = []
    for ids in prompts:
        harness = Harness(model, block_size=8, seed=1, kv_dtype=kv_dtype)
        alone.append(harness.step([(harness.row(), ids)])[0])
    harness = Harness(model, block_size=8, seed=2, kv_dtype=kv_dtype)
    draw = random.Random(0)
    rows = [harness.row() for _ in prompts]
    compared = 0
    shared: Row | None = None
    while any(len(row.ids) < len(ids) for row, ids in zip(rows, prompts, strict=True)):
        work = []
        if shared is None and len(rows[0].ids) == hit:
            shared = harness.row(share=rows[0], num_tokens=hit)
        for index, (row, ids) in enumerate(zip(rows, prompts, strict=True)):
            if index == len(prompts) - 1 and not row.ids:
                if shared is None:
                    continue
                rows[index] = row = shared
            # The first row stops at the hit, where its blocks are still there to be shared, windows or not.
            end = hit if index == 0 and len(row.ids) < hit else len(ids)
            count = min(draw.choice([0, 1, 1, 3, most]), end - len(row.ids))
            if count:
                work.append((index, row, ids[len(row.ids) : len(row.ids) + count]))
        if not work:
            continue
        starts = [len(row.ids) for _, row, _ in work]
        for (index, _, ids), start, logits in zip(work, starts, harness.step([w[1:] for w in work]), strict=True):
            assert torch.equal(logits, alone[index][start : start + len(ids)]), f"row {index} from position {start}"
            compared += len(ids)
    assert compared == sum(map(len, prompts)) - hit


@pytest.fixture(autouse=True, params=[1, 2], ids=["1 thread", "2 threads"])
def _threads(request: pytest.FixtureRequest) -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("numerics", NUMERICS)
@pytest.mark.parametrize("name", ["llama-biases", "mistral-window", "qwen3", "gemma2", "gemma3"])
def test_families_in_float32(name: str, numerics: Any) -> None:
    check(ours(hf_model(name), numerics=numerics), LENGTHS, hit=32)


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_families_in_bfloat16(name: str) -> None:
    check(ours(hf_model(name), numerics="reference", dtype=torch.bfloat16), LENGTHS, hit=32)


@pytest.mark.parametrize("numerics", NUMERICS)
def test_real_sizes(numerics: Any) -> None:
    """A layer of SmolLM2-135M's sizes, across several key tiles."""
    spec = ModelSpec(
        family="llama",
        name="smol",
        revision="",
        vocab_size=2048,
        hidden_size=576,
        intermediate_size=1536,
        num_heads=9,
        num_kv_heads=3,
        head_dim=64,
        layers=(LayerSpec(),),
        max_model_len=2048,
        tie_word_embeddings=True,
    )
    model = build_model(spec, BuildContext(numerics=numerics))
    torch.manual_seed(0)
    model.load_weights(
        (slot.name, torch.randn(slot.shape) * (0.05 if len(slot.shape) == 2 else 1)) for slot in model.slots()
    )
    check(model, (300, 40), hit=264, most=60)
