"""Whole models over a cache of int8: one call or block by block, alone or mixed, the same bits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.cpu.models.families import hf_model, ours
from tests.cpu.models.test_batch_invariance import NUMERICS, check
from tests.cpu.models.test_whole_decoder import logits_of

from paceline.runtime.kernels.cpu.native import why_not
from paceline.runtime.models import Model

WHOLE = pytest.mark.skipif(bool(why_not()), reason=why_not())


@WHOLE
@pytest.mark.parametrize("name", ["llama-biases", "gemma3"])
def test_one_call_for_all_blocks_has_the_bits_of_blocks_run_one_by_one(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = ours(hf_model(name), numerics="fast")
    whole = logits_of(model, torch.int8)
    assert type(model._whole).__name__ == "NativeDecoder"
    monkeypatch.setattr(Model, "_find_whole", lambda _: None)
    one_by_one = logits_of(model, torch.int8)
    assert model._whole is None
    for got, expected in zip(whole, one_by_one, strict=True):
        assert torch.equal(got, expected)


@pytest.mark.parametrize("numerics", NUMERICS)
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_a_row_has_its_own_bits_whatever_its_mates_and_chunks(name: str, numerics: Any) -> None:
    check(ours(hf_model(name), numerics=numerics), (70, 23, 9), hit=32, kv_dtype=torch.int8)


def test_activations_of_bfloat16_are_rounded_as_well() -> None:
    check(ours(hf_model("llama"), numerics="reference", dtype=torch.bfloat16), (23, 9), hit=16, kv_dtype=torch.int8)


@pytest.mark.parametrize("numerics", NUMERICS)
@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_logits_are_near_those_of_a_float_cache(name: str, numerics: Any) -> None:
    """Random weights amplify what rounding does; a wrong scale or a code out of place would be off by their size."""
    model = ours(hf_model(name), numerics=numerics)
    plain, near = torch.cat(logits_of(model)), torch.cat(logits_of(model, torch.int8))
    distance = float((near - plain).norm() / plain.norm())
    assert 0 < distance < 0.05
    again = torch.cat(logits_of(model))
    assert torch.equal(plain, again), "a model goes back to a cache of floats"
