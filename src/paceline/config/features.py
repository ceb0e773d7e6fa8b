"""The features of this version, their needs and conflicts; and the known ones that are not there yet.

A subsystem's rows are added here with it. `doctor --matrix` prints `matrix_rows()`; start-up calls `check_features`.
"""

from __future__ import annotations

import msgspec

from paceline.config.tree import EngineConfig
from paceline.contracts.compat import Feature, Matrix
from paceline.contracts.specs import ModelSpec

FP16_OVERFLOW = "activations of this family pass the largest float16 (65504)"
NOT_YET = "not in this version"

FEATURES: tuple[Feature, ...] = (
    # facts about the device
    Feature(name="device:cpu"),
    Feature(name="device:cuda"),
    # numbers
    Feature(name="dtype:float32"),
    Feature(name="dtype:bfloat16"),
    Feature(
        name="dtype:float16",
        conflicts=(("family:gemma2", FP16_OVERFLOW), ("family:gemma3", FP16_OVERFLOW)),
        instead="dtype:bfloat16",
    ),
    Feature(name="numerics:fast"),
    Feature(name="numerics:reference"),
    Feature(name="weights:full_precision"),
    Feature(name="weights:gguf"),  # dequantised while loading
    # batching
    Feature(name="batching:continuous"),
    Feature(name="batching:static"),
    Feature(name="chunked_prefill"),
    Feature(name="policy:fcfs"),
    Feature(name="policy:priority"),
    Feature(name="policy:fair"),
    Feature(name="preemption:recompute"),
    Feature(
        name="preemption:offload",
        needs=(("kv_tier:dram", "a preempted sequence's KV must have somewhere to go"),),
        instead="preemption:recompute",
        available=False,
        why_not=f"KV tiers are {NOT_YET}",
    ),
    Feature(name="grammar"),  # asked for by a request, not by the configuration
    # KV cache
    Feature(name="kv_groups"),  # sliding and full layers in one pool of blocks
    Feature(name="kv_dtype:compute"),
    Feature(name="kv_dtype:int8"),  # rounded by token and head
    Feature(
        name="prefix_cache",
        conflicts=(("state:not_rewindable", "a recurrent state cannot be cut back to a block's edge"),),
    ),
    Feature(
        name="prefix_wait",
        needs=(("prefix_cache", "there is no shared block to wait for"),),
    ),
    *(
        Feature(
            name=f"kv_dtype:{kind}",
            instead="kv_dtype:compute",
            available=False,
            why_not=f"a KV cache of that type is {NOT_YET}; int8 is there",
        )
        for kind in ("fp8", "int4")
    ),
    *(
        Feature(
            name=f"kv_dtype:{kind}",
            instead="kv_dtype:compute",
            available=False,
            why_not=f"a KV cache in another type than the compute type is {NOT_YET}",
        )
        for kind in ("float32", "bfloat16", "float16")
    ),
    *(
        Feature(name=f"kv_tier:{tier}", available=False, why_not=f"KV offload is {NOT_YET}")
        for tier in ("dram", "nvme", "remote")
    ),
    # weights
    *(
        Feature(
            name=f"quantisation:{method}",
            instead="weights:gguf",
            available=False,
            why_not=f"such checkpoints are {NOT_YET}; GGUF files are read, and floats rounded (quantization=int8)",
        )
        for method in ("int8", "int4", "awq", "gptq", "fp8", "w8a8")
    ),
    # ranks
    *(
        Feature(
            name=name,
            available=False,
            why_not=f"one process computes a model in this version; more ranks are {NOT_YET}",
        )
        for name in (
            "tensor_parallel",
            "pipeline_parallel",
            "expert_parallel",
            "context_parallel",
            "data_parallel",
            "prefill_decode_split",
        )
    ),
    # others
    *(
        Feature(name=f"speculation:{method}", available=False, why_not=f"speculative decoding is {NOT_YET}")
        for method in ("ngram", "suffix", "draft_model", "mtp", "eagle")
    ),
    Feature(name="lora", available=False, why_not=f"adapters are {NOT_YET}"),
    Feature(name="cuda_graphs", available=False, why_not=f"captured graphs are {NOT_YET}; steps run eager"),
    Feature(name="compile", available=False, why_not=f"compiled models are {NOT_YET}; steps run eager"),
    Feature(name="multimodal", available=False, why_not=f"models with images or sound are {NOT_YET}"),
)

NOT_YET_OPTIONS: dict[str, str] = {
    "tensor_parallel_size": "leave it out: one process computes the model",
    "pipeline_parallel_size": "leave it out: one process computes the model",
    "data_parallel_size": "start several engines",
    "expert_parallel_size": "leave it out",
    "enable_expert_parallel": "leave it out",
    "context_parallel_size": "leave it out; long prompts are computed in chunks (prefill_chunk_tokens)",
    "speculative_config": "leave it out",
    "speculation": "leave it out",
    "draft_model": "leave it out",
    "num_draft_tokens": "leave it out",
    "num_speculative_tokens": "leave it out",
    "enable_lora": "merge the adapter into the model's weights",
    "lora": "merge the adapter into the model's weights",
    "cuda_graphs": "leave it out: steps run eager",
    "enforce_eager": "leave it out: steps always run eager",
    "swap_space": "leave it out; preempted sequences are recomputed",
    "cpu_offload": "leave it out",
    "kv_tiers": "leave it out",
}
"""Option names people will try, and what to do instead. Asking for one is a clear refusal, not an unknown option."""


class MatrixRow(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the printed matrix."""

    feature: str
    status: str  # "yes", or why not
    needs: str
    conflicts: str
    instead: str


def features_of(config: EngineConfig, spec: ModelSpec, *, device: str, dtype: str) -> tuple[str, ...]:
    """Names of the features that a configuration turns on for a model on `device` with the resolved compute `dtype`."""
    cache, scheduling = config.cache, config.scheduling
    kv_dtype = cache.kv_cache_dtype
    names = [
        f"device:{device}",
        f"family:{spec.family}",
        f"dtype:{dtype}",
        f"numerics:{config.numerics}",
        "weights:gguf" if spec.weight_dtype.startswith("gguf") else "weights:full_precision",
        f"batching:{scheduling.batching}",
        "chunked_prefill",
        f"policy:{scheduling.policy}",
        f"preemption:{scheduling.preemption}",
        "kv_dtype:compute" if kv_dtype in ("auto", dtype) else f"kv_dtype:{kv_dtype}",
    ]
    if len({(layer.attention, layer.window) for layer in spec.layers}) > 1:
        names.append("kv_groups")
    if cache.enable_prefix_caching:
        names.append("prefix_cache")
        if scheduling.wait_for_prefix:
            names.append("prefix_wait")
    return tuple(names)


def feature_matrix() -> Matrix:
    return Matrix(FEATURES)


def check_features(config: EngineConfig, spec: ModelSpec, *, device: str, dtype: str) -> None:
    """Raise UnsupportedError when the configuration's features do not go together on this model and device."""
    feature_matrix().check(features_of(config, spec, device=device, dtype=dtype))


def matrix_rows() -> list[MatrixRow]:
    """The whole table, features of this version first."""
    ordered = sorted(FEATURES, key=lambda f: not f.available)
    return [
        MatrixRow(
            feature=f.name,
            status="yes" if f.available else f.why_not,
            needs="; ".join(f"{other} ({why})" for other, why in f.needs),
            conflicts="; ".join(f"{other} ({why})" for other, why in f.conflicts),
            instead=f.instead or "",
        )
        for f in ordered
    ]
