"""Qwen2 and Qwen3: the plain decoder with a bias on q, k and v (Qwen2) or norms on q and k heads (Qwen3)."""

from __future__ import annotations

from paceline.contracts.specs import ModelSpec
from paceline.runtime.layers.build import BuildContext
from paceline.runtime.models.blocks import BlockStyle, Model


def build(spec: ModelSpec, context: BuildContext) -> Model:
    assert spec.qk_norm == (spec.family == "qwen3"), "head norms are what tells Qwen3 from Qwen2"
    return Model(spec, context, BlockStyle())
