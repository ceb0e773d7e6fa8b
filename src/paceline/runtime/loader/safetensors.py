"""Weights of safetensors files, single or sharded, read lazily one tensor at a time.

Gemma 3 checkpoints that also see pictures keep the text model under a prefix; it is taken off, and the vision tower and
projector are skipped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from paceline.contracts.specs import ModelSpec
from paceline.errors import ModelError
from paceline.hub.safetensors_file import read_header

_TEXT_PREFIXES = (
    ("language_model.model.", "model."),
    ("model.language_model.", "model."),
    ("language_model.lm_head.", "lm_head."),
)
_NOT_TEXT = ("vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector.")


def safetensors_weights(
    files: Sequence[Path], spec: ModelSpec, *, dtype: torch.dtype | None
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield (name, tensor) file by file, in the order of the data. A tied lm_head that was stored too is left out."""
    for path in files:
        tensors = sorted(read_header(path), key=lambda tensor: tensor.offset)
        try:
            with safe_open(path, framework="pt", device="cpu") as file:
                for stored in tensors:
                    name = text_name(stored.name, spec.family)
                    if name is None or (name == "lm_head.weight" and spec.tie_word_embeddings):
                        continue
                    tensor = file.get_tensor(stored.name)
                    yield name, tensor if dtype is None else tensor.to(dtype)
        except SafetensorError as error:
            raise ModelError(f"cannot read {path}", seen=str(error), fix="download it again") from error


def text_name(name: str, family: str) -> str | None:
    """The tensor's name in the text model; None when it belongs to another part."""
    if family == "gemma3":
        if name.startswith(_NOT_TEXT):
            return None
        for prefix, plain in _TEXT_PREFIXES:
            if name.startswith(prefix):
                return plain + name.removeprefix(prefix)
    if name.endswith(".rotary_emb.inv_freq"):
        return None  # old llama files store what follows from the configuration
    return name
