"""Models whose products are of bfloat16, all else float32: one call for all blocks, and a row's bits its own."""

from __future__ import annotations

import pytest
import torch
from tests.cpu.models.families import FAMILIES, hf_model, ours
from tests.cpu.models.test_batch_invariance import check
from tests.cpu.models.test_whole_decoder import check_bits_of_one_by_one, logits_of

from paceline.runtime.kernels.cpu import native
from paceline.runtime.models import Model

lacking = native.why_not() or ("" if native.multiplies_bf16() else "this CPU has no products of bfloat16")
pytestmark = pytest.mark.skipif(bool(lacking), reason=lacking)
if not lacking:
    from paceline.runtime.quant.bf16 import Bf16Activations


def made(name: str, *, rounds: bool = False) -> Model:
    sizes = {"hidden_size": 96, "intermediate_size": 64} if rounds else {}
    return ours(hf_model(name, **sizes), weight_method=lambda _: Bf16Activations(rounds=rounds))


@pytest.mark.parametrize("rounds", [False, True], ids=["floats", "blocks"])
@pytest.mark.parametrize("name", FAMILIES)
def test_it_has_the_bits_of_blocks_run_one_by_one(name: str, rounds: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    check_bits_of_one_by_one(made(name, rounds=rounds), monkeypatch)


@pytest.mark.parametrize("name", ["llama-biases", "gemma3"])
def test_a_row_has_its_own_bits_whatever_its_mates_and_chunks(name: str) -> None:
    check(made(name), (70, 23, 9), hit=32)


def test_logits_are_near_those_of_floats() -> None:
    """Random weights amplify what rounding does; a wrong weight or sum would be off by the size of the logits."""
    plain = torch.cat(logits_of(ours(hf_model("llama"))))
    near = torch.cat(logits_of(made("llama")))
    assert 0 < float((near - plain).norm() / plain.norm()) < 0.1
