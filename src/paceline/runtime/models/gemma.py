"""Gemma 2 and 3: norms before and after each part, multiplying by 1 + weight.

Windows, soft-caps, the query and embedding scales and Gemma 3's two rotary bases come in the spec.
"""

from __future__ import annotations

from paceline.contracts.specs import ModelSpec
from paceline.runtime.layers.build import BuildContext
from paceline.runtime.models.blocks import BlockStyle, Model

STYLE = BlockStyle(
    norm_offset=1.0,
    after_attention="post_attention_layernorm",
    before_mlp="pre_feedforward_layernorm",
    after_mlp="post_feedforward_layernorm",
)


def build(spec: ModelSpec, context: BuildContext) -> Model:
    return Model(spec, context, STYLE)
