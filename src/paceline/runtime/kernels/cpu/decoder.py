"""All blocks of a model in one native call: what csrc/decoder.h describes, filled from a model's weights and a step."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch

from paceline.runtime.forward_context import AttentionMetadata
from paceline.runtime.kernels.cpu.attention import plan_tiles, takes
from paceline.runtime.kernels.cpu.blocks import BlockPanels
from paceline.runtime.kernels.cpu.elementwise import ACTIVATIONS
from paceline.runtime.kernels.cpu.linear import PanelWeight
from paceline.runtime.kernels.cpu.native import library
from paceline.runtime.kernels.params import BlockParts, Segment
from paceline.runtime.kv_cache import Workspace
from paceline.runtime.threads import kernel_threads

_POINTER, _LONG = ctypes.c_void_p, ctypes.c_int64


class _Segment(ctypes.Structure):
    _fields_ = (("weight", _POINTER), ("bias", _POINTER), ("num_outputs", _LONG), ("type", _LONG))


class _Product(ctypes.Structure):
    _fields_ = (("segments", _POINTER), ("num_segments", _LONG), ("num_inputs", _LONG), ("num_outputs", _LONG))


class _Block(ctypes.Structure):
    _fields_ = (
        *((name, _POINTER) for name in ("before_attention", "after_attention", "before_mlp", "after_mlp")),
        ("head_norm", _POINTER),
        *((name, _Product) for name in ("qkv", "out", "gate_up", "down")),
        ("kv", _POINTER),
        *((name, _LONG) for name in ("head_stride", "chunk_stride", "group", "rope", "activation")),
    )


class _Decoder(ctypes.Structure):
    _fields_ = (
        ("blocks", _POINTER),
        *((name, _LONG) for name in ("num_blocks", "hidden", "intermediate", "num_heads", "num_kv_heads", "head_dim")),
        ("eps", ctypes.c_float),
    )


class _Pass(ctypes.Structure):
    _fields_ = (
        *((name, _POINTER) for name in ("x", "scratch", "steps", "slots", "cos", "sin")),
        *((name, _LONG) for name in ("num_tokens", "table_stride", "num_threads")),
    )


class NativeDecoder:
    """The blocks of one model, bound to its KV cache. The weights must stay where they are."""

    def __init__(self, blocks: Sequence[BlockParts]) -> None:
        self.blocks = tuple(blocks)  # holds every tensor whose address is kept below
        self.scratch = Workspace()
        self._arrays: list[Any] = []
        first = self.blocks[0]
        params = first.attention
        table = self._array(_Block, [self._block(block) for block in self.blocks])
        self._decoder = _Decoder(
            ctypes.addressof(table),
            len(self.blocks),
            first.before_attention.numel(),
            first.intermediate,
            params.num_heads,
            params.num_kv_heads,
            params.head_dim,
            first.eps,
        )
        # the first block of each KV group stands for it: caches of a group have one shape, its layers one window
        self._groups = {block.cache.group: block for block in reversed(self.blocks)}
        self._num_groups = max(self._groups) + 1

    @staticmethod
    def build(blocks: Sequence[BlockParts] | None) -> NativeDecoder | None:
        """None where a part is of no form that native code takes. `blocks` None: the model cannot describe itself."""
        if not blocks or not all(_served(block) for block in blocks):
            return None
        shape = {(b.attention.num_heads, b.attention.num_kv_heads, b.attention.head_dim) for b in blocks}
        sizes = {(b.before_attention.numel(), b.intermediate, b.eps) for b in blocks}
        return NativeDecoder(blocks) if len(shape) == len(sizes) == 1 else None

    def __call__(
        self, x: torch.Tensor, tables: Sequence[tuple[torch.Tensor, torch.Tensor]], metadata: AttentionMetadata
    ) -> None:
        """x [T, hidden] is updated in place; `tables`: (cos, sin) of each rotation, [T, 1, head_dim].

        Between products all numbers are float32, whatever the dtype of x; that rounds what comes out alone."""
        if x.dtype != torch.float32:
            wide = self.scratch.take("x", x.numel(), torch.float32, x.device).view(x.shape)
            self(wide.copy_(x), tables, metadata)
            x.copy_(wide)
            return
        assert x.is_contiguous()
        assert all(part.dtype == torch.float32 for table in tables for part in table)
        num_tokens = x.shape[0]
        steps, slots = (_POINTER * self._num_groups)(), (_POINTER * self._num_groups)()
        mappings = {index: metadata.groups[index].slot_mapping.contiguous() for index in self._groups}
        for index, block in self._groups.items():
            group = metadata.groups[index]
            if group.plan is None:
                group.plan = plan_tiles(metadata, block.cache, block.attention)
            assert mappings[index].dtype == torch.int64
            steps[index], slots[index] = ctypes.addressof(group.plan.step), mappings[index].data_ptr()
        kept = [(cos.contiguous(), sin.contiguous()) for cos, sin in tables]
        angles = _POINTER * len(kept)
        cos, sin = angles(*(c.data_ptr() for c, _ in kept)), angles(*(s.data_ptr() for _, s in kept))
        native, decoder = library(), ctypes.byref(self._decoder)
        size = native.paceline_cpu_scratch_size(decoder, num_tokens)
        scratch = self.scratch.take("blocks", size, torch.float32, x.device)
        one = _Pass(
            x.data_ptr(),
            scratch.data_ptr(),
            *(ctypes.addressof(array) for array in (steps, slots, cos, sin)),
            num_tokens,
            kept[0][0].shape[-1],
            kernel_threads(),
        )
        native.paceline_cpu_run_blocks(decoder, ctypes.byref(one))

    def _array(self, kind: Any, values: Sequence[Any]) -> Any:
        array = (kind * len(values))(*values)
        self._arrays.append(array)
        return array

    def _wide(self, bias: torch.Tensor) -> torch.Tensor:
        """As float32, which is held."""
        self._arrays.append(bias.float().contiguous())
        return self._arrays[-1]  # type: ignore[no-any-return]

    def _product(self, segments: Sequence[Segment], num_inputs: int) -> _Product:
        table = self._array(
            _Segment,
            [
                _Segment(
                    segment.weight.tensor.data_ptr(),
                    None if segment.bias is None else self._wide(segment.bias).data_ptr(),
                    segment.weight.out_features,
                    segment.weight.kind,
                )
                for segment in segments
            ],
        )
        return _Product(
            ctypes.addressof(table), len(segments), num_inputs, sum(s.weight.out_features for s in segments)
        )

    def _block(self, block: BlockParts) -> _Block:
        hidden, params = block.before_attention.numel(), block.attention
        norms = (block.before_attention, block.after_attention, block.before_mlp, block.after_mlp, block.head_norm)
        return _Block(
            *(None if norm is None else norm.data_ptr() for norm in norms),
            self._product(block.qkv, hidden),
            self._product(block.out, params.num_heads * params.head_dim),
            self._product(block.gate_up, hidden),
            self._product(block.down, block.intermediate),
            block.cache.kv.data_ptr(),
            block.cache.kv.stride(1),
            block.cache.kv.stride(2),
            block.cache.group,
            block.rope,
            ACTIVATIONS[block.activation],
        )


def _served(block: BlockParts) -> bool:
    """Whether every part is packed and of a type and a shape that the operations take."""
    norms = (block.before_attention, block.after_attention, block.before_mlp, block.after_mlp, block.head_norm)
    segments = (*block.qkv, *block.out, *block.gate_up, *block.down)
    return (
        all(norm is None or (norm.dtype == torch.float32 and norm.is_contiguous()) for norm in norms)
        and all(isinstance(s.weight, BlockPanels | PanelWeight) for s in segments)
        and block.cache.kv.dtype in (torch.float32, torch.bfloat16, torch.int8)
        and block.activation in ACTIVATIONS
        and block.attention.head_dim % 16 == 0
        and block.intermediate % 8 == 0
        and takes(block.attention)
    )
