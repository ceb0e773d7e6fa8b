"""Models whose weights and activations are 8 bits: one call for all blocks, and a row's bits its own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.cpu.models.families import FAMILIES, hf_model, ours
from tests.cpu.models.test_batch_invariance import check
from tests.cpu.models.test_whole_decoder import check_bits_of_one_by_one, logits_of

from paceline.runtime.kernels.cpu.native import why_not
from paceline.runtime.models import Model

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())
if not why_not():
    from paceline.runtime.quant.gguf import GgufBlocks
    from paceline.runtime.quant.int8 import Int8Activations

SIZES: dict[str, Any] = {"hidden_size": 96, "intermediate_size": 64}  # whole groups of 32


def quantised(name: str, method: type[GgufBlocks]) -> Model:
    return ours(hf_model(name, **SIZES), weight_method=lambda _: method(rounds=True))


@pytest.mark.parametrize("name", FAMILIES)
def test_it_has_the_bits_of_blocks_run_one_by_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_bits_of_one_by_one(quantised(name, Int8Activations), monkeypatch)


@pytest.mark.parametrize("name", ["llama-biases", "gemma3"])
def test_a_row_has_its_own_bits_whatever_its_mates_and_chunks(name: str) -> None:
    check(quantised(name, Int8Activations), (70, 23, 9), hit=32)


def test_logits_are_near_those_of_floats() -> None:
    """Random weights amplify what rounding does; a wrong scale or sum would be off by the size of the logits."""
    plain = torch.cat(logits_of(ours(hf_model("llama", **SIZES))))
    for method in (GgufBlocks, Int8Activations):
        near = torch.cat(logits_of(quantised("llama", method)))
        distance = float((near - plain).norm() / plain.norm())
        assert 0 < distance < 0.1, method
