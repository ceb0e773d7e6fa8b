"""All blocks in one native call give the bits of blocks run one by one, and it is what serves where it can."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.cpu.harness import Harness
from tests.cpu.models.families import FAMILIES, hf_model, ours

from paceline.errors import ModelError
from paceline.runtime.kernels.cpu.native import why_not
from paceline.runtime.models import Model

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())

STEPS = ((70, 23, 1), (1, 1, 40), (1, 9, 1))


def logits_of(model: Model, kv_dtype: torch.dtype | None = None) -> list[torch.Tensor]:
    """Of every position of three rows that come in chunks."""
    harness = Harness(model, block_size=8, seed=3, kv_dtype=kv_dtype)
    rows = [harness.row() for _ in STEPS[0]]
    draw = torch.Generator().manual_seed(1)
    found = []
    for counts in STEPS:
        work = [
            (row, torch.randint(3, model.spec.vocab_size, (count,), generator=draw).tolist())
            for row, count in zip(rows, counts, strict=True)
        ]
        found += harness.step(work)
    return found


@pytest.mark.parametrize("name", FAMILIES)
def test_it_has_the_bits_of_blocks_run_one_by_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = ours(hf_model(name), numerics="fast")
    whole = logits_of(model)
    assert type(model._whole).__name__ == "NativeDecoder"
    monkeypatch.setattr(Model, "_find_whole", lambda _: None)
    one_by_one = logits_of(model)
    assert model._whole is None
    assert len(whole) == len(one_by_one) == 9
    for got, expected in zip(whole, one_by_one, strict=True):
        assert torch.equal(got, expected)


@pytest.mark.parametrize("options", [{"numerics": "reference"}, {"numerics": "fast", "dtype": torch.bfloat16}], ids=str)
def test_other_numerics_and_types_go_block_by_block(options: dict[str, Any]) -> None:
    model = ours(hf_model("llama"), **options)
    logits_of(model)
    assert model._whole is None


def test_a_shape_it_does_not_take_goes_block_by_block() -> None:
    model = ours(hf_model("llama", head_dim=24), numerics="fast")
    logits_of(model)
    assert model._whole is None


def test_weights_loaded_again_are_those_that_are_used() -> None:
    model = ours(hf_model("llama"), numerics="fast")
    before = logits_of(model)
    model.load_weights((slot.name, torch.full(slot.shape, 0.01)) for slot in model.slots())
    again = logits_of(model)
    assert not torch.equal(before[0], again[0])
    fresh = ours(hf_model("llama"), numerics="fast")
    fresh.load_weights((slot.name, torch.full(slot.shape, 0.01)) for slot in fresh.slots())
    assert torch.equal(logits_of(fresh)[0], again[0])


def test_a_load_that_failed_half_way_leaves_nothing_behind() -> None:
    model = ours(hf_model("llama"), numerics="fast")
    fresh = [(slot.name, torch.full(slot.shape, 0.01)) for slot in model.slots()]
    cut = next(i for i, (name, _) in enumerate(fresh) if "v_proj" in name)
    with pytest.raises(ModelError):
        model.load_weights((name, tensor + 1) for name, tensor in fresh[:cut])
    model.load_weights(reversed(fresh))
    other = ours(hf_model("llama"), numerics="fast")
    other.load_weights(fresh)
    assert torch.equal(logits_of(other)[0], logits_of(model)[0])
