"""All blocks in one native call give the bits of blocks run one by one, and it is what serves where it can."""

from __future__ import annotations

import pytest
import torch
from tests.cpu.harness import Harness
from tests.cpu.models.families import FAMILIES, hf_model, ours

from paceline.errors import ModelError
from paceline.runtime.kernels.cpu.native import multiplies_bf16, why_not
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


def check_bits_of_one_by_one(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = logits_of(model)
    assert type(model._whole).__name__ == "NativeDecoder"
    monkeypatch.setattr(Model, "_find_whole", lambda _: None)
    one_by_one = logits_of(model)
    assert model._whole is None
    assert len(whole) == len(one_by_one) == 9
    for got, expected in zip(whole, one_by_one, strict=True):
        assert torch.equal(got, expected)


@pytest.mark.parametrize("name", FAMILIES)
def test_it_has_the_bits_of_blocks_run_one_by_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_bits_of_one_by_one(ours(hf_model(name), numerics="fast"), monkeypatch)


@pytest.mark.skipif(bool(why_not()) or not multiplies_bf16(), reason="this CPU has no products of bfloat16")
@pytest.mark.parametrize("name", FAMILIES)
def test_in_bfloat16_it_stays_as_near_to_float32_as_blocks_run_one_by_one(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It rounds less between operations, so bits differ; on average it is not further off than what rounds at each."""
    exact = logits_of(ours(hf_model(name), numerics="reference"))
    model = ours(hf_model(name), numerics="fast", dtype=torch.bfloat16)
    whole = logits_of(model)
    assert type(model._whole).__name__ == "NativeDecoder"
    monkeypatch.setattr(Model, "_find_whole", lambda _: None)
    one_by_one = logits_of(model)

    def error(found: list[torch.Tensor]) -> float:
        return float(
            torch.cat([(got.float() - right).abs().flatten() for got, right in zip(found, exact, strict=True)]).mean()
        )

    assert 0 < error(whole) <= 1.05 * error(one_by_one)


@pytest.mark.skipif(bool(why_not()) or not multiplies_bf16(), reason="this CPU has no products of bfloat16")
def test_in_bfloat16_a_row_has_its_bits_whatever_its_chunks() -> None:
    model = ours(hf_model("llama"), numerics="fast", dtype=torch.bfloat16)
    ids = torch.randint(3, model.spec.vocab_size, (60,), generator=torch.Generator().manual_seed(2)).tolist()
    ends = []
    for cut in (60, 17, 1):
        harness = Harness(model, block_size=8, seed=3)
        row = harness.row()
        for begin in range(0, 60, cut):
            last = harness.step([(row, ids[begin : begin + cut])])
        ends.append(last[0][-1])
    assert torch.equal(ends[0], ends[1])
    assert torch.equal(ends[0], ends[2])


def test_reference_numerics_go_block_by_block() -> None:
    model = ours(hf_model("llama"), numerics="reference")
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
