"""Which file builds which family."""

from __future__ import annotations

from importlib import import_module

from paceline.contracts.specs import ModelSpec
from paceline.errors import UnsupportedError
from paceline.runtime.layers.build import BuildContext
from paceline.runtime.models.blocks import Model

FAMILIES = {
    "llama": "paceline.runtime.models.llama",
    "qwen2": "paceline.runtime.models.qwen",
    "qwen3": "paceline.runtime.models.qwen",
    "gemma2": "paceline.runtime.models.gemma",
    "gemma3": "paceline.runtime.models.gemma",
}


def families() -> tuple[str, ...]:
    return tuple(FAMILIES)


def build_model(spec: ModelSpec, context: BuildContext) -> Model:
    """The model of `spec` with empty weights. Raises UnsupportedError for a family without a file."""
    if spec.family not in FAMILIES:
        raise UnsupportedError(
            f"model {spec.name!r} is of a family that paceline does not build",
            seen=spec.family,
            expected=f"one of {', '.join(FAMILIES)}",
            fix="choose a model of one of these families",
        )
    model = import_module(FAMILIES[spec.family]).build(spec, context)
    assert isinstance(model, Model)
    return model
