"""Token embedding and output head, tied or not."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from paceline.contracts.specs import ModelSpec
from paceline.runtime.kv_cache import Workspace
from paceline.runtime.layers.build import BuildContext, WeightSlot
from paceline.runtime.layers.linear import LinearSpec, Part, Weight

EMBEDDING, HEAD = "model.embed_tokens", "lm_head"


class Vocabulary:
    """ids -> vectors at the input, vectors -> logits at the output."""

    def __init__(self, spec: ModelSpec, context: BuildContext) -> None:
        self.softcap, self.tied = spec.final_softcap, spec.tie_word_embeddings
        # Checkpoints were trained with the factor rounded to their dtype.
        self.scale = float(torch.tensor(spec.embedding_scale, dtype=context.dtype))
        self.shape = (spec.vocab_size, spec.hidden_size)
        self.workspace = Workspace()
        self.table = self._create(EMBEDDING, context, gathers=True, multiplies=self.tied)
        self.head = self.table if self.tied else self._create(HEAD, context, gathers=False, multiplies=True)

    def embed(self, input_ids: torch.Tensor) -> torch.Tensor:
        """[T] int64 -> [T, hidden]"""
        rows = self.table.gather(input_ids)
        return rows if self.scale == 1.0 else rows.mul_(self.scale)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[S, hidden] -> [S, vocab] float32, which may live in scratch memory until the next call: fresh pages for
        millions of logits would take as long as a good part of the product."""
        logits = self.head.apply_wide(hidden, self.workspace)
        if self.softcap is not None:
            logits.div_(self.softcap).tanh_().mul_(self.softcap)
        return logits

    def slots(self) -> Iterator[WeightSlot]:
        yield WeightSlot(f"{EMBEDDING}.weight", self.shape, partial(self.table.load, EMBEDDING))
        if not self.tied:
            yield WeightSlot(f"{HEAD}.weight", self.shape, partial(self.head.load, HEAD))

    def _create(self, name: str, context: BuildContext, *, gathers: bool, multiplies: bool) -> Weight:
        spec = LinearSpec(
            in_features=self.shape[1],
            parts=(Part(name, self.shape[0]),),
            bias=False,
            dtype=context.dtype,
            device=context.device,
            gathers=gathers,
            multiplies=multiplies,
        )
        return context.weight_method(name).create(spec, context)
