"""Llama 2 and 3, Mistral, SmolLM2: the plain decoder. Biases, windows and rotary scaling come in the spec."""

from __future__ import annotations

from paceline.contracts.specs import ModelSpec
from paceline.runtime.layers.build import BuildContext
from paceline.runtime.models.blocks import BlockStyle, Model


def build(spec: ModelSpec, context: BuildContext) -> Model:
    return Model(spec, context, BlockStyle())
