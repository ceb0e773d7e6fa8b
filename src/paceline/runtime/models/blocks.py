"""The decoder that all families share: embedding, a stack of blocks, a last norm, the output head."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from paceline.contracts.specs import ModelSpec
from paceline.runtime.forward_context import current
from paceline.runtime.kv_cache import KVCache
from paceline.runtime.layers.attention import Attention
from paceline.runtime.layers.build import BuildContext, WeightSlot
from paceline.runtime.layers.embedding import Vocabulary
from paceline.runtime.layers.linear import Weight
from paceline.runtime.layers.mlp import GatedMLP
from paceline.runtime.layers.norm import HeadNorm, RMSNorm
from paceline.runtime.layers.parts import BlockParts, parts_of
from paceline.runtime.layers.rotary import Rotary, Tables
from paceline.runtime.models.weights import WeightStream, load_slots

_UNKNOWN: Any = object()


@dataclass(frozen=True)
class BlockStyle:
    """How a family places and shapes its norms."""

    norm_offset: float = 0.0  # norms multiply by offset + weight
    before_attention: str = "input_layernorm"
    after_attention: str | None = None  # a norm on what attention adds to the residual
    before_mlp: str = "post_attention_layernorm"
    after_mlp: str | None = None


class DecoderBlock:
    """x += attention(norm(x)); x += mlp(norm(x)); each addend may pass one more norm."""

    def __init__(self, index: int, spec: ModelSpec, context: BuildContext, style: BlockStyle) -> None:
        prefix = f"model.layers.{index}"

        def norm(name: str) -> RMSNorm:
            return RMSNorm(f"{prefix}.{name}", spec.hidden_size, spec.rms_norm_eps, context, offset=style.norm_offset)

        self.before_attention = norm(style.before_attention)
        self.attention = Attention(f"{prefix}.self_attn", index, spec, context, norm_offset=style.norm_offset)
        self.after_attention = norm(style.after_attention) if style.after_attention else None
        self.before_mlp = norm(style.before_mlp)
        self.mlp = GatedMLP(f"{prefix}.mlp", spec, context)
        self.after_mlp = norm(style.after_mlp) if style.after_mlp else None

    def __call__(self, x: torch.Tensor, tables: Tables) -> torch.Tensor:
        """x [T, hidden] is the residual stream; it is updated in place and returned."""
        added = self.attention(self.before_attention(x), tables)
        x.add_(added if self.after_attention is None else self.after_attention(added))
        added = self.mlp(self.before_mlp(x))
        return x.add_(added if self.after_mlp is None else self.after_mlp(added))

    def parts(self, rope: int) -> BlockParts | None:
        """For kernels that run whole blocks; `rope`: which of the model's rotations."""
        return parts_of(
            self.attention,
            self.mlp,
            before_attention=self.before_attention,
            after_attention=self.after_attention,
            before_mlp=self.before_mlp,
            after_mlp=self.after_mlp,
            rope=rope,
        )

    def weights(self) -> list[Weight]:
        return [self.attention.qkv.weight, self.attention.out.weight, self.mlp.gate_up.weight, self.mlp.down.weight]

    def norms(self) -> list[RMSNorm | HeadNorm]:
        parts = (self.before_attention, self.attention.head_norm, self.after_attention, self.before_mlp, self.after_mlp)
        return [part for part in parts if part is not None]

    def slots(self) -> Iterator[WeightSlot]:
        for part in (
            self.before_attention,
            self.attention,
            self.after_attention,
            self.before_mlp,
            self.mlp,
            self.after_mlp,
        ):
            if part is not None:
                yield from part.slots()


class Model(nn.Module):
    """A decoder-only language model over a paged KV cache.

    Call it inside `forward_context`. T tokens of any mix of sequences, packed in plan order.
    """

    def __init__(self, spec: ModelSpec, context: BuildContext, style: BlockStyle) -> None:
        super().__init__()
        self.spec, self.context = spec, context
        self.vocabulary = Vocabulary(spec, context)
        ropes = list(dict.fromkeys(layer.rope for layer in spec.layers))
        self.ropes = [Rotary(rope, spec.head_dim, context.device) for rope in ropes]
        self.rope_of_layer = [ropes.index(layer.rope) for layer in spec.layers]
        self.blocks = [DecoderBlock(i, spec, context, style) for i in range(spec.num_layers)]
        self._whole: Any = _UNKNOWN  # a kernel that runs all blocks; None: there is none for this model
        self.norm = RMSNorm("model.norm", spec.hidden_size, spec.rms_norm_eps, context, offset=style.norm_offset)

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """input_ids and positions [T] int64 -> hidden states after the last norm, [T, hidden]."""
        tables = [rope(positions) for rope in self.ropes]
        x = self.vocabulary.embed(input_ids)
        if self.runs_whole:
            self._whole(x, tables, current().attention)
        else:
            for block, rope in zip(self.blocks, self.rope_of_layer, strict=True):
                x = block(x, tables[rope])
        return self.norm(x)

    @property
    def runs_whole(self) -> bool:
        """Whether one native call runs all blocks, with the weights and the cache as they are now."""
        if self._whole is _UNKNOWN:
            self._whole = self._find_whole()
        return self._whole is not None

    def forget_whole(self) -> None:
        """Blocks, weights or the cache became others: what runs all blocks is looked for again."""
        self._whole = _UNKNOWN

    def _find_whole(self) -> Any:
        """A kernel bound to the weights and the cache as they are now, if one takes this model."""
        parts = [block.parts(rope) for block, rope in zip(self.blocks, self.rope_of_layer, strict=True)]
        return self.context.kernel("decoder").build(None if None in parts else parts)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[S, hidden] -> [S, vocab] float32, soft-cap applied."""
        return self.vocabulary.logits(hidden)

    def bind_kv_cache(self, kv_cache: KVCache) -> None:
        """Attach the cache that attention layers write to and read from."""
        self.forget_whole()
        for block in self.blocks:
            block.attention.bind(kv_cache)

    def slots(self) -> Iterator[WeightSlot]:
        """Every checkpoint tensor the model takes."""
        yield from self.vocabulary.slots()
        for block in self.blocks:
            yield from block.slots()
        yield from self.norm.slots()

    def load_weights(self, stream: WeightStream) -> None:
        """Fill the weights from (checkpoint name, tensor) pairs in any order.

        Raises ModelError that names a tensor which is missing, unexpected, repeated or of the wrong shape.
        """
        self.forget_whole()
        for weight in self._weights():
            weight.begin_load()
        load_slots(self.slots(), stream, model=self.spec.name, tied=self.spec.tie_word_embeddings)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights as held in memory."""
        norms: list[RMSNorm | HeadNorm] = [self.norm]
        for block in self.blocks:
            norms += block.norms()
        held = {id(weight): weight.num_bytes for weight in self._weights()}  # a tied head is the table itself
        return sum(held.values()) + sum(norm.num_bytes for norm in norms)

    def packed_tensors(self) -> list[torch.Tensor]:
        """What native products read, in the order in which a step reads it, each once. Other products keep theirs."""
        weights = self._weights()
        ordered = dict.fromkeys([*weights[2:], weights[1], weights[0]])
        packed = [segment.weight for weight in ordered for segment in weight.packed_segments()]
        return [weight.tensor for weight in packed if hasattr(weight, "tensor")]

    def _weights(self) -> list[Weight]:
        """The table, the head (which may be the table), then those of the blocks in turn."""
        weights = [self.vocabulary.table, self.vocabulary.head]
        for block in self.blocks:
            weights += block.weights()
        return weights
