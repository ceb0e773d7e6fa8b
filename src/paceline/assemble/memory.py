"""How much memory an engine's parts get: the ledger's formulas, a measured worst step, what the device has."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import TYPE_CHECKING

import msgspec

from paceline.config import EngineConfig, Knobs
from paceline.contracts.kv import KVGroupSpec, kv_format, plan_kv_groups
from paceline.contracts.specs import DeviceSpec, ModelSpec
from paceline.cost.memory import MemoryPlan, MemoryRequest, format_bytes, plan_memory
from paceline.cost.workspace import compiled_products_bytes, step_workspace

if TYPE_CHECKING:
    from paceline.runtime.worker import Worker

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def memory_request(
    config: EngineConfig,
    knobs: Knobs,
    groups: Sequence[KVGroupSpec],
    *,
    device_bytes: int,
    available_bytes: int,
    taken_bytes: int,
    weight_bytes: int,
    weights_in_place: bool,
    graph_bytes: int = 0,
    compiled_bytes: int = 0,
) -> MemoryRequest:
    """What a configuration asks of a device that has so much; see `MemoryRequest`."""
    return MemoryRequest(
        groups=tuple(groups),
        device_bytes=device_bytes,
        available_bytes=available_bytes,
        taken_bytes=taken_bytes,
        weight_bytes=weight_bytes,
        weights_in_place=weights_in_place,
        memory_utilization=knobs.memory_utilization,
        max_model_len=knobs.max_model_len,
        max_model_len_is_set=config.model.max_model_len is not None,
        max_num_seqs=knobs.max_num_seqs,
        chunk_tokens=knobs.prefill_chunk_tokens,
        expected_context=knobs.expected_context,
        prefix_cache_reserve=knobs.prefix_cache_reserve,
        kv_cache_memory=config.cache.kv_cache_memory,
        graph_bytes=graph_bytes,
        compiled_bytes=compiled_bytes,
    )


def plan_engine_memory(
    config: EngineConfig, spec: ModelSpec, device: DeviceSpec, dtype: str, knobs: Knobs, worker: Worker
) -> MemoryPlan:
    """The memory plan from a measured worst step: activations are the larger of formula and measurement."""
    from paceline.runtime.device import DTYPES, device_memory, process_rss
    from paceline.runtime.kernels.dispatch import choose, widens
    from paceline.runtime.worst_plan import StepLimits

    dtype_bytes = DTYPE_BYTES[dtype]
    kv_tokens = ceil(knobs.max_num_seqs * knobs.expected_context * (1 + knobs.prefix_cache_reserve))
    kv_tokens = max(kv_tokens, knobs.max_model_len)
    limits = StepLimits(
        max_rows=knobs.max_num_seqs,
        max_tokens=knobs.max_num_batched_tokens,
        max_model_len=knobs.max_model_len,
        chunk_tokens=knobs.prefill_chunk_tokens,
        kv_tokens=kv_tokens,
    )
    kv_dtype = config.cache.kv_dtype(dtype)
    held = kv_format(kv_dtype, spec)
    measured = worker.measure_worst_step(limits, block_size=config.cache.block_size, kv_dtype=kv_dtype)

    groups = plan_kv_groups(spec, config.cache.block_size, held.element_bytes, held.scale_bytes)
    op = "int8_attention" if kv_dtype == "int8" else "attention"
    attention = choose(op, device.kind, DTYPES[dtype], config.numerics)
    widened = widens(device.kind, DTYPES[dtype], config.numerics)

    by_formula = step_workspace(
        spec,
        num_tokens=knobs.max_num_batched_tokens,
        num_rows=knobs.max_num_seqs,
        dtype_bytes=dtype_bytes,
        num_groups=len(groups),
        reference=attention.name == "reference",
        widened=widened,
    )

    def activations(max_model_len: int) -> tuple[int, str]:
        predicted, how = by_formula(max_model_len)
        if measured.peak_bytes is not None and measured.peak_bytes > predicted:
            return measured.peak_bytes, f"as measured, above the formula's {format_bytes(predicted)}: {how}"
        return predicted, how

    compiled = choose("linear", device.kind, DTYPES[dtype], config.numerics).compiles
    reading = device_memory(device.kind)
    weight_bytes = worker.weight_bytes
    taken = process_rss() if device.kind == "cpu" else weight_bytes
    plan = plan_memory(
        memory_request(
            config,
            knobs,
            groups,
            device_bytes=reading.total_bytes,
            available_bytes=reading.available_bytes,
            taken_bytes=taken,
            weight_bytes=weight_bytes,
            weights_in_place=True,
            graph_bytes=max(0, taken - weight_bytes),
            compiled_bytes=compiled_products_bytes(knobs.max_num_batched_tokens) if compiled else 0,
        ),
        activations,
    )
    if measured.peak_bytes is not None:
        ledger = plan.ledger.with_measured(activations=measured.peak_bytes)
        plan = msgspec.structs.replace(plan, ledger=ledger)
    return plan
