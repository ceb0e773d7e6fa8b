"""A plan from words: names become a model's sizes, a device with its rates, lengths, targets."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_args

import msgspec
import numpy as np

from paceline import hub
from paceline.assemble.device_card import find_card
from paceline.assemble.plan_model import describe_sizes
from paceline.assemble.plan_verify import verifier
from paceline.assemble.step_cost import kernels_in_use, load_calibration, timed_here
from paceline.config import (
    CacheConfig,
    EngineConfig,
    Environment,
    ModelConfig,
    Profile,
    check_features,
    read_environment,
)
from paceline.contracts.kv import KVFormat, kv_format
from paceline.contracts.specs import ModelSpec
from paceline.contracts.workload import SloClass
from paceline.errors import ConfigError
from paceline.lab.workload import parse_slo
from paceline.lab.workload.lengths import AnyLength, Empirical, Fixed, Lognormal, Uniform
from paceline.planner import CARDS, DeviceCard, Fleet, Kept, Plan, Question, Room, Traffic, make_plan
from paceline.planner.question import CUDA_ENGINE_BYTES

if TYPE_CHECKING:
    from paceline.runtime.quant.gguf import GgufBlocks

HERE = "here"
# What loading and a first step leave in a process; measured 66 MiB and 89 MiB with the two embedded models
LEFT_BY_LOADING = 77 << 20
VERIFIED = 3  # of the best layouts are simulated
NUM_QUANTILES = 64  # of a length distribution; the last is its 99.2 % quantile


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A plan as a person asks for it: every field as it is typed."""

    model: str = "smollm2-135m"
    device: str = HERE
    devices: int = 1
    nodes: int = 1
    input: str = "256"
    output: str = "128"
    rate: float | None = None  # requests per second
    slo: str = "ttft=1s,tpot=100ms"
    price: float | None = None  # of one device for an hour
    weights: str | None = None
    kv_cache_dtype: str = "auto"
    cached_share: float = 0.0
    arrival_cv: float = 1.0
    profile: Profile = "interactive"
    acceptance: str = ""  # tokens per step for 1, 2, ... drafts
    draft_ms: float = 0.0
    expert_imbalance: float | None = None
    calibration: str | None = None  # a file of `paceline calibrate`; None: where engines look. For this machine
    verify: int | None = None  # layouts to simulate; None: `VERIFIED`, where that is short


def plan(asked: Asked, *, environment: Environment | None = None) -> Plan:
    """Raises ConfigError for words that mean nothing, ModelError for a model that is not here."""
    question = read_question(asked, environment or read_environment())
    curve = [_number(part, "acceptance") for part in asked.acceptance.split(",")] if asked.acceptance else None
    if asked.verify == 0:
        return make_plan(question, acceptance=curve, draft_ms=asked.draft_ms)
    return make_plan(
        question,
        acceptance=curve,
        draft_ms=asked.draft_ms,
        verify=verifier(bounded=asked.verify is None),
        num_verified=asked.verify or VERIFIED,
    )


def read_question(asked: Asked, environment: Environment) -> Question:
    """The question that the words ask."""
    traffic = Traffic(
        input_tokens=quantiles(asked.input, "input"),
        output_tokens=quantiles(asked.output, "output"),
        rate_rps=asked.rate,
        cached_share=asked.cached_share,
        arrival_cv=asked.arrival_cv,
    )
    slo = parse_slo(asked.slo)
    if asked.price is not None and not 0 <= asked.price < float("inf"):
        raise ConfigError("a price must be 0 or more", seen=asked.price, expected="per device and hour")
    fleet = Fleet(num_devices=asked.devices, num_nodes=asked.nodes)
    if asked.device == HERE:
        question = _here(asked, fleet, traffic, slo, environment)
    else:
        question = _elsewhere(asked, fleet, traffic, slo, environment)
    if asked.expert_imbalance is None:
        return question
    if not 1 <= asked.expert_imbalance < float("inf"):
        raise ConfigError("the imbalance of experts is below 1", seen=asked.expert_imbalance, expected="busiest / mean")
    return replace(question, expert_imbalance=asked.expert_imbalance)


# --- lengths


def quantiles(text: str, name: str) -> np.ndarray:
    """Equally likely lengths of a distribution as people write it. [NUM_QUANTILES], or [1] for one length.

    1000                          every request alike
    p50=800,p99=6000[,max=8192]   lognormal
    min=10,max=200                uniform
    file=lengths.csv[,column=x]   as seen: one number a line, or a CSV column
    """
    law = _length(text, name)
    law.check(name)
    if isinstance(law, Fixed):
        return law.sample(np.array([0.5]))
    return law.sample((np.arange(NUM_QUANTILES) + 0.5) / NUM_QUANTILES)


def _length(text: str, name: str) -> AnyLength:
    if "=" not in text:
        return Fixed(tokens=round(_number(text, name)))
    split = (part.partition("=") for part in text.replace(" ", "").split(","))
    parts = {key: value for key, _, value in split}
    bounds: dict[str, Any] = {key: round(_number(parts[key], name)) for key in ("min", "max") if key in parts}
    rest = set(parts) - set(bounds)
    if rest == {"p50", "p99"}:
        return Lognormal(p50=_number(parts["p50"], name), p99=_number(parts["p99"], name), **bounds)
    if rest in ({"file"}, {"file", "column"}):
        return Empirical(file=parts["file"], column=parts.get("column"), **bounds)
    if not rest and "max" in bounds:
        return Uniform(**bounds)
    raise ConfigError(
        f"the {name} lengths were not understood",
        seen=text,
        expected="1000, or p50=800,p99=6000, or min=10,max=200, or file=lengths.csv (each with max=... if need be)",
    )


def _number(text: str, name: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ConfigError(f"{name}: not a number", seen=text)
    return number


# --- models and devices


def find_spec(
    name: str, environment: Environment, *, weights: bool = False
) -> tuple[ModelSpec, str, str, hub.ModelFiles | None]:
    """The model's sizes, the format its weights are published in, what `serve` calls it, and its files if it has any
    here. Nothing is fetched; `weights` must be there only if asked for."""
    if name in CARDS:
        card = CARDS[name]
        return card.spec, card.weights, card.hub_id, None
    files = hub.resolve(name, environment.home, download=False, weights=weights)
    spec, stored = describe_sizes(files)
    return spec, stored, name, files


def _elsewhere(asked: Asked, fleet: Fleet, traffic: Traffic, slo: SloClass, environment: Environment) -> Question:
    """A device of the table, nothing else running on it, 16-bit arithmetic."""
    card = find_card(asked.device, others=(HERE,))
    spec, published, serve_name, _ = find_spec(asked.model, environment)
    kv = KVFormat(2) if asked.kv_cache_dtype == "auto" else _kv(asked.kv_cache_dtype, spec)
    tiles = asked.kv_cache_dtype == "int8" and card.spec.kind == "cuda"  # the kernel that reads codes is for CPUs
    return Question(
        spec=spec,
        card=card,
        fleet=fleet,
        traffic=traffic,
        slo=slo,
        kept=Kept(weights=asked.weights or published, kv=kv, kv_cache_dtype=asked.kv_cache_dtype, reference=tiles),
        price_per_hour=asked.price,
        profile=asked.profile,
        serve_name=serve_name,
    )


def _here(asked: Asked, fleet: Fleet, traffic: Traffic, slo: SloClass, environment: Environment) -> Question:
    """This machine, as an engine would find it: rates and memory measured, weights in the form it would keep."""
    if fleet.num_devices > 1:
        raise ConfigError("this machine is one device", seen=f"{fleet.num_devices} devices", fix="name a device")
    if asked.weights is not None:
        raise ConfigError(
            "on this machine weights are kept as the engine keeps them", seen=asked.weights, fix="leave weights out"
        )
    if asked.model in CARDS:
        raise ConfigError(
            "a plan for this machine needs the model's files",
            seen=f"{asked.model}, of which only the sizes are known",
            fix="name a fetched model, a folder or a .gguf file, or plan for a device of the table",
        )
    from paceline.assemble.inspect import find_device
    from paceline.assemble.isa import limit_isa
    from paceline.assemble.memory import DTYPE_BYTES
    from paceline.assemble.weights import find_weight_method
    from paceline.runtime.device import DTYPES, device_memory, process_rss
    from paceline.runtime.kernels.dispatch import choose, widens
    from paceline.text import load_tokenizer

    config = EngineConfig(
        profile=asked.profile,
        model=ModelConfig(model=asked.model),
        cache=CacheConfig(kv_cache_dtype=asked.kv_cache_dtype),  # type: ignore[arg-type]
    )
    spec, _, serve_name, files = find_spec(asked.model, environment, weights=True)
    assert files is not None
    limit_isa(environment)
    device, dtype = find_device(config)
    kv_dtype = config.cache.kv_dtype(dtype)
    kv = _kv(kv_dtype, spec)
    check_features(config, spec, device=device.kind, dtype=dtype)
    load_tokenizer(files)  # an engine has one too
    method = find_weight_method(config, files, device=device.kind, dtype=dtype)
    blocks = method is not None and files.kind == "gguf"
    stored = kept_bytes(files, method) if blocks and method else float_bytes(spec, DTYPE_BYTES[dtype])
    reading, taken = device_memory(device.kind), process_rss()
    if asked.calibration is None:
        kernels = kernels_in_use(config, device.kind, dtype)
        timed = timed_here(environment.home, config, spec, device, dtype, kernels=kernels)
    else:
        timed = load_calibration(asked.calibration)
    attention = choose("int8_attention" if kv_dtype == "int8" else "attention", device.kind, DTYPES[dtype], "fast")
    return Question(
        spec=spec,
        card=DeviceCard(
            spec=device, link="none", link_gbps=1.0, link_latency_us=(0.0, 0.0, 0.0), net_gbps=1.0, source="measured"
        ),
        fleet=fleet,
        traffic=traffic,
        slo=slo,
        kept=Kept(
            stored_bytes=stored,
            dtype=dtype,
            dtype_bytes=DTYPE_BYTES[dtype],
            kv=kv,
            kv_cache_dtype=asked.kv_cache_dtype,
            reference=attention.name == "reference",
            widened=widens(device.kind, DTYPES[dtype], "fast"),
        ),
        room=Room(
            device_bytes=reading.total_bytes,
            available_bytes=reading.available_bytes,
            taken_bytes=taken if device.kind == "cpu" else 0,
            engine_bytes=taken + LEFT_BY_LOADING if device.kind == "cpu" else CUDA_ENGINE_BYTES,
            compiles=choose("linear", device.kind, DTYPES[dtype], "fast").compiles,
        ),
        price_per_hour=asked.price,
        profile=asked.profile,
        times=None if timed is None else timed.cost().frozen(),
        serve_name=serve_name,
    )


def _kv(dtype: str, spec: ModelSpec) -> KVFormat:
    known = ("float32", "bfloat16", "float16", "int8")
    if dtype not in known:
        raise ConfigError("no such type of KV cache", seen=dtype, expected=f"auto, {', '.join(known)}")
    return kv_format(dtype, spec)


def read_profile(name: str) -> Profile:
    known: tuple[Profile, ...] = get_args(Profile)
    for profile in known:
        if profile == name:
            return profile
    raise ConfigError("no such profile", seen=name, expected=", ".join(known))


def float_bytes(spec: ModelSpec, dtype_bytes: int) -> int:
    """Weights once loaded as floats: norms stay 4 bytes in every dtype, those of heads once for each head."""
    from paceline.runtime.loader.dummy import weight_shapes

    heads, total = {"q_norm": spec.num_heads, "k_norm": spec.num_kv_heads}, 0
    for name, shape in weight_shapes(spec):
        part = name.removesuffix(".weight").rpartition(".")[2]
        total += math.prod(shape) * (4 * heads.get(part, 1) if part.endswith("norm") else dtype_bytes)
    return total


def kept_bytes(files: hub.ModelFiles, method: GgufBlocks) -> int:
    """Weights of a GGUF file once loaded: blocks and matrices of floats as a kernel packs them, all else as 4-byte
    floats, norms of heads once for each head."""
    from paceline.hub.ggml_types import GGML_TYPES

    numbers = {kind.name: number for number, kind in GGML_TYPES.items()}
    spec, total = hub.describe(files), 0
    heads = {"attn_q_norm": spec.num_heads, "attn_k_norm": spec.num_kv_heads}
    for name, tensor in hub.GGUFFile(files.path).tensors.items():
        number = numbers[tensor.type.name]
        if len(tensor.shape) == 2 and method.takes(number):
            total += method.kernel.packed_bytes(number, *tensor.shape)
        elif len(tensor.shape) == 2:
            total += method.kernel.float_bytes(*tensor.shape)
        else:
            total += 4 * math.prod(tensor.shape) * heads.get(name.removesuffix(".weight").rpartition(".")[2], 1)
    return total
