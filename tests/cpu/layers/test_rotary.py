"""Rotary frequencies are those of transformers, for every scaling that configurations use."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from paceline.contracts.specs import RopeSpec
from paceline.runtime.layers import rotary
from paceline.runtime.layers.rotary import Rotary

CPU = torch.device("cpu")
KINDS: dict[str, tuple[RopeSpec, dict[str, Any]]] = {
    "default": (RopeSpec(theta=500.0), {}),
    "linear": (RopeSpec(theta=1e4, kind="linear", factor=4.0), {"factor": 4.0}),
    "llama3": (
        RopeSpec(theta=5e5, kind="llama3", factor=8.0, original_max_position=256, high_freq_factor=4.0),
        {"factor": 8.0, "original_max_position_embeddings": 256, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    ),
    "yarn": (
        RopeSpec(theta=1e4, kind="yarn", factor=4.0, original_max_position=128),
        {"factor": 4.0, "original_max_position_embeddings": 128},
    ),
    "yarn untruncated, mscale": (
        RopeSpec(
            theta=1e6,
            kind="yarn",
            factor=16.0,
            original_max_position=64,
            truncate=False,
            beta_fast=20.0,
            beta_slow=2.0,
            mscale=0.7,
            mscale_all_dim=1.1,
        ),
        {
            "factor": 16.0,
            "original_max_position_embeddings": 64,
            "truncate": False,
            "beta_fast": 20.0,
            "beta_slow": 2.0,
            "mscale": 0.7,
            "mscale_all_dim": 1.1,
        },
    ),
    "yarn with a stated factor": (
        RopeSpec(theta=1e4, kind="yarn", factor=2.0, original_max_position=512, attention_factor=1.3),
        {"factor": 2.0, "original_max_position_embeddings": 512, "attention_factor": 1.3},
    ),
}


def theirs(spec: RopeSpec, extra: dict[str, Any], max_position: int = 1024) -> Any:
    # not at the top: every worker of the suite would wait for it while it collects
    import transformers
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    parameters = {"rope_type": spec.kind, "rope_theta": spec.theta, **extra}
    config = transformers.LlamaConfig(
        hidden_size=128, num_attention_heads=4, max_position_embeddings=max_position, rope_parameters=parameters
    )
    return LlamaRotaryEmbedding(config)


def compare(spec: RopeSpec, twin: Any, positions: torch.Tensor, tolerance: float = 1e-6) -> None:
    cos, sin = twin(torch.zeros(1), positions[None])
    my_cos, my_sin = Rotary(spec, 32, CPU)(positions)
    torch.testing.assert_close(my_cos[:, 0], cos[0], rtol=0, atol=tolerance)
    torch.testing.assert_close(my_sin[:, 0, 16:], sin[0, :, 16:], rtol=0, atol=tolerance)
    assert torch.equal(my_sin[:, 0, :16], -my_sin[:, 0, 16:])


@pytest.mark.parametrize("name", KINDS)
def test_matches_transformers(name: str) -> None:
    spec, extra = KINDS[name]
    compare(spec, theirs(spec, extra), torch.tensor([0, 1, 7, 63, 64, 200, 777, 1023]))


def test_dynamic_follows_transformers_token_by_token() -> None:
    """A prompt within the unscaled range, then one token after another beyond it."""
    spec = RopeSpec(theta=1e4, kind="dynamic", factor=3.0, original_max_position=40)
    twin = theirs(spec, {"factor": 3.0}, max_position=40)
    compare(spec, twin, torch.arange(30))
    for position in range(30, 90):
        compare(spec, twin, torch.tensor([position]), tolerance=1e-5)


def test_dynamic_frequencies_depend_on_the_position_alone() -> None:
    rope = Rotary(RopeSpec(theta=1e4, kind="dynamic", factor=3.0, original_max_position=40), 32, CPU)
    whole = rope(torch.arange(100))
    for begin, end in ((0, 10), (10, 77), (77, 100)):
        for table, part in zip(whole, rope(torch.arange(begin, end)), strict=True):
            torch.testing.assert_close(part, table[begin:end], rtol=0, atol=1e-6)


def test_kept_angles_are_those_of_their_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rotary, "TABLE_POSITIONS", 3000)
    rope = rotary.Rotary(RopeSpec(theta=1e4), 16, torch.device("cpu"))
    for positions in ([5], [0, 7, 1023], [1024, 2], [2999, 1500], [3000, 1], [9000], []):
        at = torch.tensor(positions, dtype=torch.int64)
        for kept, fresh in zip(rope(at), rope._at(at), strict=True):
            torch.testing.assert_close(kept, fresh, rtol=0, atol=1e-6)
            assert kept.shape == (len(positions), 1, 16)
    assert rope._kept.shape[1] == 3072
