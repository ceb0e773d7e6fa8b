"""From a stream of checkpoint tensors into the slots that layers offer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import torch

from paceline.errors import ModelError
from paceline.runtime.layers.build import WeightSlot
from paceline.runtime.layers.linear import StoredBlocks

WeightStream: TypeAlias = Iterable[tuple[str, torch.Tensor | StoredBlocks]]

# Checkpoints carry these although they are computed: frequencies, and masks of old exporters.
_COMPUTED = (".rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias")


def load_slots(slots: Iterable[WeightSlot], stream: WeightStream, *, model: str, tied: bool) -> None:
    """Hand each tensor to its slot. ModelError at the first that does not fit, or at the end for those missing."""
    wanted = {slot.name: slot for slot in slots}
    taken: dict[str, None] = {}
    for name, tensor in stream:
        slot = wanted.get(name)
        if slot is None:
            if name.endswith(_COMPUTED) or (tied and name == "lm_head.weight"):
                continue
            raise ModelError(
                f"tensor {name!r} has no place in model {model!r}",
                seen=f"shape {tuple(tensor.shape)}",
                expected=_near(name, wanted),
                fix="check that the weights belong to this config.json",
            )
        if name in taken:
            raise ModelError(
                f"tensor {name!r} of model {model!r} comes twice",
                fix="remove stale weight files from the model's folder",
            )
        if tuple(tensor.shape) != slot.shape:
            raise ModelError(
                f"tensor {name!r} of model {model!r} has the wrong shape",
                seen=tuple(tensor.shape),
                expected=str(slot.shape),
                fix="the file and config.json are of different models, or the file is damaged: fetch it again",
            )
        if isinstance(tensor, torch.Tensor) and not tensor.is_floating_point():
            raise ModelError(
                f"tensor {name!r} of model {model!r} is not of a float type",
                seen=tensor.dtype,
                expected="float32, bfloat16 or float16",
                fix="use the original checkpoint instead of a quantised one",
            )
        slot.load(tensor)
        taken[name] = None
    missing = [name for name, slot in wanted.items() if name not in taken and not slot.optional]
    if missing:
        shown = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
        raise ModelError(
            f"the weights of model {model!r} are incomplete",
            seen=f"{len(taken)} of {len(wanted)} tensors; missing: {shown}",
            expected=f"{missing[0]} of shape {wanted[missing[0]].shape}",
            fix="fetch the model again; a part of a sharded checkpoint may be missing",
        )


def _near(name: str, wanted: dict[str, WeightSlot]) -> str:
    """The names a reader may have meant: those with the same ending."""
    ending = ".".join(name.split(".")[-2:])
    same = [candidate for candidate in wanted if candidate.endswith(ending)]
    return f"names such as {(same or list(wanted))[0]}"
