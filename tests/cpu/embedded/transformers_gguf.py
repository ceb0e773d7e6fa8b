"""transformers' own reading of a GGUF file, and what it would have written: the other side of the parity tests."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers

LONG_ARRAY = 4096


class QuickReader(gguf.GGUFReader):
    """The package's reader, without an object per word of the vocabulary.

    Of a long array of words only the length is kept, and of one of numbers the first element (which stands for all):
    the size of the vocabulary is all that matters to weights and configuration, and reading it takes most of a minute.
    """

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> tuple[int, list[Any], list[int], list[Any]]:
        if isinstance(self.data, np.memmap):
            self.data = self.data.view(np.ndarray)  # type: ignore[assignment]  # slices of a memmap are slow to make
        if raw_type != gguf.GGUFValueType.ARRAY:
            return super()._get_field_parts(orig_offs, raw_type)
        head = [self._get(orig_offs, "<u4"), self._get(orig_offs + 4, "<u8")]
        kind, length = int(head[0][0]), int(head[1][0])
        if length <= LONG_ARRAY:
            return super()._get_field_parts(orig_offs, raw_type)
        at = orig_offs + 12
        size, parts, (index,), types = super()._get_field_parts(at, kind)
        if kind == gguf.GGUFValueType.STRING:
            raw = memoryview(self.data)
            for _ in range(length):
                at += 8 + int.from_bytes(raw[at : at + 8], "little")
        else:
            at += size * length
        times = length if kind == gguf.GGUFValueType.STRING else 1
        return at - orig_offs, [*head, *parts], [2 + index] * times, [gguf.GGUFValueType.ARRAY, *types]


def load_transformers(path: Path, monkeypatch: Any) -> Any:
    """`from_pretrained(gguf_file=...)` in float32. It reads the file twice and makes one name map per submodule; here
    each is made once."""
    monkeypatch.setattr(gguf, "GGUFReader", functools.cache(QuickReader))
    monkeypatch.setattr(gguf, "get_tensor_name_map", functools.cache(gguf.get_tensor_name_map))
    with torch.device("cpu"):
        model = transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    assert getattr(model.config, "final_logit_softcapping", None) is None, "the head below leaves that out"
    return model.eval()


@dataclass(frozen=True)
class Difference:
    """A place where another token than ours is the likeliest for transformers."""

    prompt: int
    position: int  # among the output tokens
    ours: int
    theirs: int
    margin: float  # logit of theirs minus logit of ours, in transformers' float32


@torch.inference_mode()
def teacher_forced(model: Any, prompts: Sequence[Sequence[int]], outputs: Sequence[Sequence[int]]) -> torch.Tensor:
    """Logits [N, L, V] of transformers for each output token, given the prompt and *our* tokens before it.

    One causal pass over prompt + output does what generating would, up to the first difference and beyond. All outputs
    have length L. Shorter rows are padded at the end, where no earlier position looks.
    """
    longest = max(len(p) + len(o) for p, o in zip(prompts, outputs, strict=True))
    ids = torch.zeros(len(prompts), longest, dtype=torch.int64)
    for row, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)):
        known = [*prompt, *output]
        ids[row, : len(known)] = torch.tensor(known)
    hidden = model.model(ids, use_cache=False).last_hidden_state
    ends = [
        hidden[row, len(prompt) - 1 : len(prompt) - 1 + len(output)]
        for row, (prompt, output) in enumerate(zip(prompts, outputs, strict=True))
    ]
    logits: torch.Tensor = model.lm_head(torch.stack(ends))
    return logits


def differences(logits: torch.Tensor, chosen: Sequence[int], outputs: Sequence[Sequence[int]]) -> list[Difference]:
    """Every place where ours is not the arg-max of `logits` [N, L, V], which are those of outputs `chosen`."""
    ours = torch.tensor([outputs[i] for i in chosen])
    largest, theirs = logits.max(dim=-1)
    margin = largest - logits.gather(-1, ours.unsqueeze(-1)).squeeze(-1)
    return [
        Difference(
            prompt=chosen[row],
            position=position,
            ours=int(ours[row, position]),
            theirs=int(theirs[row, position]),
            margin=float(margin[row, position]),
        )
        for row, position in (ours != theirs).nonzero().tolist()
    ]


def batches(lengths: Sequence[int], max_tokens: int = 512) -> list[list[int]]:
    """Indices of prompts by length, cut so that a padded batch stays small."""
    made: list[list[int]] = [[]]
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        if made[-1] and (len(made[-1]) + 1) * lengths[index] > max_tokens // 4:
            made.append([])
        made[-1].append(index)
    return made
