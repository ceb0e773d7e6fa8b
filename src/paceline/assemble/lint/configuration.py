"""A configuration as a lint's facts: options resolved for the model and the device, steps priced, nothing loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline import hub
from paceline.assemble.files import find_files
from paceline.assemble.lint.prices import prices_of
from paceline.assemble.memory import DTYPE_BYTES
from paceline.assemble.report import option_value
from paceline.assemble.step_cost import timed_here
from paceline.config import EngineConfig, Knobs, check_features, option_table, read_environment, resolve_knobs
from paceline.contracts.kv import kv_format
from paceline.contracts.specs import DeviceSpec, ModelSpec
from paceline.errors import ConfigError
from paceline.planner.cards import CARDS
from paceline.planner.devices import DEVICES
from paceline.planner.lint import Change, EngineFacts, Prices, WeightFacts

_GGUF, _FLOATS = "gguf:", ("F32", "F16", "BF16")


@dataclass(frozen=True)
class Resolved:
    """A configuration on a device, before anything is loaded."""

    config: EngineConfig
    spec: ModelSpec
    device: DeviceSpec
    dtype: str
    knobs: Knobs
    engine: EngineFacts
    prices: Prices


def resolve(config: EngineConfig, card: str = "") -> Resolved:
    """`card`: a device of the planner's table, for which its models are known by name as well; "" is this machine,
    measured. Raises as a start would."""
    environment = read_environment()
    files = None
    if card and config.model.model in CARDS:
        spec = CARDS[config.model.model].spec
    else:
        files = find_files(config, environment)
        spec = hub.describe(files)
    device, dtype = _on_card(config, card) if card else _here(config)
    check_features(config, spec, device=device.kind, dtype=dtype)
    kv = kv_format(config.cache.kv_dtype(dtype), spec)
    knobs = resolve_knobs(config, spec, device, dtype_bytes=DTYPE_BYTES[dtype], kv=kv)
    weights = None if card or files is None else weight_facts(config, files, spec, device.kind, dtype)
    held = weights.held_bytes if weights is not None else spec.num_parameters * DTYPE_BYTES[dtype]
    timed = None if card else timed_here(environment.home, config, spec, device, dtype)
    load_s = None if timed is None else held / (1e9 * timed.load_gbps)
    return Resolved(
        config=config,
        spec=spec,
        device=device,
        dtype=dtype,
        knobs=knobs,
        engine=engine_facts(config, spec, device, dtype, {d.name: d.value for d in knobs.derived}, weights, load_s),
        prices=prices_of(spec, device, dtype, kv, held, timed),
    )


def engine_facts(
    config: EngineConfig,
    spec: ModelSpec,
    device: DeviceSpec,
    dtype: str,
    knobs: Mapping[str, Any],
    weights: WeightFacts | None,
    load_s: float | None = None,
) -> EngineFacts:
    """`knobs`: derived options by name. `load_s`: seconds to load the weights, where that was timed."""
    granted = int(knobs["memory_utilization"] * device.memory_bytes)
    return EngineFacts(
        max_num_seqs=knobs["max_num_seqs"],
        max_model_len=knobs["max_model_len"],
        expected_context=knobs["expected_context"],
        prefix_cache_reserve=knobs["prefix_cache_reserve"],
        prefix_caching=config.cache.enable_prefix_caching,
        kv_room_bytes=max(0, granted - spec.num_parameters * DTYPE_BYTES[dtype]),  # as the profile counts it
        weights=weights,
        load_s=load_s,
    )


def weight_facts(
    config: EngineConfig, files: hub.ModelFiles, spec: ModelSpec, device: str, dtype: str
) -> WeightFacts | None:
    """How a quantised file's weights would be held here; None for files of floats."""
    stored = spec.weight_dtype
    if not is_quantised(stored) or not spec.weight_bytes:
        return None
    from paceline.assemble.weights import find_weight_method

    kept = find_weight_method(config, files, device=device, dtype=dtype) is not None
    held = spec.weight_bytes if kept else spec.num_parameters * DTYPE_BYTES[dtype]
    why, instead = ("", {}) if kept else why_widened(config, dtype)
    return WeightFacts(stored=stored, stored_bytes=spec.weight_bytes, held_bytes=held, why=why, instead=instead)


def is_quantised(weight_dtype: str) -> bool:
    """By the type that a `ModelSpec` gives; only GGUF files hold quantised weights in this version."""
    return weight_dtype.startswith(_GGUF) and weight_dtype.removeprefix(_GGUF) not in _FLOATS


def why_widened(config: EngineConfig, dtype: str) -> tuple[str, dict[str, Any]]:
    """The reason as the options give it, and what to set instead."""
    if config.model.quantization == "none":
        return "quantization=none asks for floats", {"quantization": "auto"}
    if config.numerics == "reference":
        return "numerics=reference multiplies floats only", {"numerics": "fast"}
    if dtype != "float32":
        return f"no kernel multiplies such blocks with {dtype}", {"dtype": "float32"}
    return "no kernel of this machine multiplies them", {}


def changes(before: Resolved, after: Resolved) -> tuple[Change, ...]:
    """Every option of the engine that differs, resolved."""
    values = [_values(one) for one in (before, after)]
    return tuple(
        Change(name=option.path, group=option.group, before=values[0][option.name], after=values[1][option.name])
        for option in option_table().values()
        if values[0][option.name] != values[1][option.name]
    )


def _values(one: Resolved) -> Mapping[str, Any]:
    derived = {d.name: d.value for d in one.knobs.derived}
    return {name: derived.get(name, option_value(one.config, option)) for name, option in option_table().items()}


def _here(config: EngineConfig) -> tuple[DeviceSpec, str]:
    from paceline.assemble.inspect import find_device

    return find_device(config)


def _on_card(config: EngineConfig, name: str) -> tuple[DeviceSpec, str]:
    if name not in DEVICES:
        raise ConfigError("no such device in the table", seen=name, expected=", ".join(DEVICES))
    wanted = config.model.dtype
    return DEVICES[name].spec, "bfloat16" if wanted == "auto" else wanted
