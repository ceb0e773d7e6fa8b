"""A configuration as a lint's facts: options resolved for the model and the device, steps priced, nothing loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline import hub
from paceline.assemble.device_card import find_card
from paceline.assemble.files import find_files
from paceline.assemble.lint.fleet import ALONE, Serving, Work, device_facts, fleet_facts, layouts_of
from paceline.assemble.lint.prices import divided_prices, prices_of
from paceline.assemble.memory import DTYPE_BYTES
from paceline.assemble.report import option_value
from paceline.assemble.sim_engine import rank_of
from paceline.assemble.step_cost import kernels_in_use, timed_here
from paceline.config import EngineConfig, Knobs, check_features, option_table, read_environment, resolve_knobs
from paceline.contracts.kv import KVFormat, kv_format
from paceline.contracts.specs import DeviceSpec, ModelSpec
from paceline.errors import UnsupportedError
from paceline.planner.cards import CARDS
from paceline.planner.devices import DeviceCard
from paceline.planner.lint import Change, DeviceFacts, EngineFacts, FleetFacts, LoadFacts, Prices, WeightFacts

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
    kv: KVFormat
    serving: Serving
    card: DeviceCard | None  # None: this machine

    def fleet(self, load: LoadFacts | None) -> FleetFacts:
        """What stands around the engine, priced for the load's requests; without one, for sequences as planned."""
        if self.card is None or self.serving.degrees.tp == 1:
            return fleet_facts(self.serving, self.spec)
        serving, knobs = self.serving, self.knobs
        half = max(1.0, knobs.expected_context / 2)
        num_prompt, num_output, num_cached = half, half, 0.0
        if load is not None and load.requests:
            num = len(load.requests)
            num_prompt = sum(r.num_input for r in load.requests) / num
            num_output = max(1.0, sum(r.num_output for r in load.requests) / num)
            num_cached = sum(r.num_cached for r in load.requests) / num if self.engine.prefix_caching else 0.0
        work = Work(
            num_rows=knobs.max_num_seqs,
            num_prompt=max(1.0, num_prompt - num_cached),
            num_output=num_output,
            context=max(1, round(num_prompt + num_output / 2)),
            chunk=knobs.max_num_batched_tokens,
        )
        layouts = layouts_of(
            self.spec, self.card, serving.degrees, serving.num_replicas, work, dtype=self.dtype, kv=self.kv,
            expert_imbalance=serving.expert_imbalance, room_share=knobs.memory_utilization,
        )  # fmt: skip
        return fleet_facts(serving, self.spec, layouts)

    def device_facts(self) -> DeviceFacts | None:
        return None if self.card is None else device_facts(self.card)


def resolve(config: EngineConfig, card: str = "", serving: Serving | None = None) -> Resolved:
    """`card`: a device of the planner's table or of a file, for which the table's models are known by name as well; ""
    is this machine, measured. `serving`: what is around the engine; one that is divided wants a card. Raises as a start
    would."""
    serving = serving or ALONE
    serving.check()
    degrees = serving.degrees
    divided = degrees.num_ranks > 1
    if divided and not card:
        raise UnsupportedError(
            "an engine over several devices is priced for a card", seen=f"{degrees}", fix="name a --device"
        )
    environment = read_environment()
    found = find_card(card) if card else None
    files = None
    if card and config.model.model in CARDS:
        spec = CARDS[config.model.model].spec
    else:
        files = find_files(config, environment)
        spec = hub.describe(files)
    device, dtype = _on_card(config, found) if found is not None else _here(config)
    check_features(config, spec, device=device.kind, dtype=dtype)
    kv = kv_format(config.cache.kv_dtype(dtype), spec)
    own, own_bytes = rank_of(spec, degrees, dtype) if divided else (spec, spec.num_parameters * DTYPE_BYTES[dtype])
    knobs = resolve_knobs(config, own, device, dtype_bytes=DTYPE_BYTES[dtype], kv=kv)
    weights = None if card or files is None else weight_facts(config, files, spec, device.kind, dtype)
    held = weights.held_bytes if weights is not None else spec.num_parameters * DTYPE_BYTES[dtype]
    timed = None
    if not card:
        kernels = kernels_in_use(config, device.kind, dtype)
        timed = timed_here(environment.home, config, spec, device, dtype, kernels=kernels)
    load_s = None if timed is None else held / (1e9 * timed.load_gbps)
    derived = {d.name: d.value for d in knobs.derived}
    if divided and found is not None:
        prices = divided_prices(spec, own, found, degrees, dtype, kv, serving.expert_imbalance)
    else:
        prices = prices_of(spec, device, dtype, kv, held, timed)
    return Resolved(
        config=config,
        spec=spec,
        device=device,
        dtype=dtype,
        knobs=knobs,
        engine=engine_facts(config, own_bytes, device, derived, weights, load_s),
        prices=prices,
        serving=serving,
        card=found,
        kv=kv,
    )


def engine_facts(
    config: EngineConfig,
    float_bytes: int,
    device: DeviceSpec,
    knobs: Mapping[str, Any],
    weights: WeightFacts | None,
    load_s: float | None = None,
) -> EngineFacts:
    """`float_bytes`: weights of one device as floats. `knobs`: derived options by name.
    `load_s`: seconds to load the weights, where that was timed."""
    granted = int(knobs["memory_utilization"] * device.memory_bytes)
    return EngineFacts(
        max_num_seqs=knobs["max_num_seqs"],
        max_model_len=knobs["max_model_len"],
        expected_context=knobs["expected_context"],
        prefix_cache_reserve=knobs["prefix_cache_reserve"],
        prefix_caching=config.cache.enable_prefix_caching,
        kv_room_bytes=max(0, granted - float_bytes),  # as the profile counts it
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
    from paceline.assemble.isa import limit_isa

    limit_isa(read_environment())
    return find_device(config)


def _on_card(config: EngineConfig, card: DeviceCard) -> tuple[DeviceSpec, str]:
    wanted = config.model.dtype
    return card.spec, "bfloat16" if wanted == "auto" else wanted
