"""One simulated engine for a configuration: knobs, memory and prices as an engine would start with them.

Nothing is loaded and nothing is computed. The device is a card of the planner's table, or this machine, whose rates are
then measured; prices come from a calibration, or from the roofline of model and device. On a card an engine may be
divided over several devices: memory is then that of the fullest rank, prices are those of the planner's layout.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from paceline import hub
from paceline.assemble.core import scheduler_settings
from paceline.assemble.device_card import find_card
from paceline.assemble.files import find_files
from paceline.assemble.inspect import find_device
from paceline.assemble.isa import limit_isa
from paceline.assemble.memory import DTYPE_BYTES, memory_request
from paceline.assemble.round_prices import RoundPrices
from paceline.assemble.sim_template import template_of
from paceline.assemble.step_cost import (
    as_timed,
    kernels_in_use,
    kv_bytes_per_token,
    load_calibration,
    step_prior,
    timed_here,
)
from paceline.config import EngineConfig, Knobs, read_environment, resolve_knobs
from paceline.contracts.kv import KVLayout, ceil_div, kv_format, plan_kv_groups
from paceline.contracts.ports import CostModel
from paceline.contracts.specs import DeviceSpec, ModelSpec
from paceline.cost import Calibration, CalibrationKey, StepCost, StepPrior
from paceline.cost.memory import MemoryPlan, plan_memory
from paceline.cost.prior import Degrees
from paceline.cost.shards import rank_share
from paceline.cost.transfer import Link
from paceline.cost.workspace import step_workspace
from paceline.errors import ConfigError, UnsupportedError
from paceline.planner.cards import CARDS
from paceline.planner.devices import DeviceCard
from paceline.planner.layout import Layout
from paceline.planner.ledger import COMMUNICATION_BYTES, MOST_COMMUNICATION
from paceline.planner.step import LayoutSteps, layout_prior
from paceline.sim.fleet import ReplicaSpec
from paceline.sim.prompts import NO_TEMPLATE, Template

ONE_DEVICE = Degrees()
EXPERT_IMBALANCE = 1.2  # busiest over mean expert rank: the planner's, assumed until a run measures it


@dataclass(frozen=True)
class SimulatedEngine:
    """What every replica is, and where its numbers are from."""

    replica: ReplicaSpec
    cost: CostModel
    spec: ModelSpec
    device: DeviceSpec
    dtype: str
    memory: MemoryPlan  # of the fullest rank
    knobs: Knobs
    weight_bytes: int  # of the whole model, as held
    cost_source: str
    degrees: Degrees = ONE_DEVICE
    kv_bytes_per_token: float = 0.0  # of one rank
    template: Template = NO_TEMPLATE  # of its chats; a card has none
    request_ms: float = 0.0  # of an answer, outside the engine: where a server that served has told
    card: DeviceCard | None = None  # None: this machine
    expert_imbalance: float = 1.0  # that prices were made with

    @property
    def link(self) -> Link | None:
        """Of one device to another replica, where a card says so."""
        return None if self.card is None else self.card.network()


def simulated_engine(
    config: EngineConfig,
    *,
    card: str | None = None,
    calibration: Path | str | None = None,
    degrees: Degrees = ONE_DEVICE,
    expert_imbalance: float = EXPERT_IMBALANCE,
) -> SimulatedEngine:
    """The engine that `paceline serve` would be with this configuration on the device, as far as can be known before.

    Left out of the memory ledger, so an engine may have fewer blocks: what others take of the device's memory, the
    process itself, the measured worst step, conversions of 16-bit arithmetic and compiled products on a CPU.

    `degrees`: over how many devices one engine is divided, of a card of the table. Its rows and blocks are then those
    of all expert groups together; its memory is that of the fullest rank.

    Without a `card` and a `calibration`, prices are those timed on this machine, if there are any for this model.
    Raises ConfigError for an unknown card and a calibration of something else, ModelError, CapacityError, and
    UnsupportedError for what is not simulated.
    """
    divided = degrees.num_ranks > 1
    if divided and (card is None or calibration is not None):
        raise UnsupportedError(
            "an engine over several devices is simulated for a card of the table, with prices from counts",
            seen=f"tp {degrees.tp}, pp {degrees.pp}, ep {degrees.ep}, cp {degrees.cp}",
            fix="name a --device, and leave --calibration out",
        )
    spec, files = _model(config)
    found = None if card is None else find_card(card)
    device, dtype = _device(config, found)
    timed, other_kernels = None, False
    if calibration is not None:
        timed = load_calibration(calibration)
    elif found is None:
        timed, other_kernels = _timed(config, spec, device, dtype)
    if found is None:
        device = as_timed(device, timed)
    if spec.state is not None:
        raise UnsupportedError("recurrent state is not simulated", seen=spec.name, expected="layers with a KV cache")
    whole_bytes = _weight_bytes(config, spec, files, device if found is None else None, dtype)
    own, weight_bytes = rank_of(spec, degrees, dtype) if divided else (spec, whole_bytes)
    held_as = config.cache.kv_dtype(dtype)
    held = kv_format(held_as, spec)
    knobs = resolve_knobs(config, own, device, dtype_bytes=DTYPE_BYTES[dtype], kv=held)
    # A context parallel rank has its part of every block
    groups = tuple(
        msgspec.structs.replace(group, bytes_per_block=ceil_div(group.bytes_per_block, degrees.cp))
        for group in plan_kv_groups(own, config.cache.block_size, held.element_bytes, held.scale_bytes)
    )
    workspace = step_workspace(
        own,
        num_tokens=ceil_div(knobs.max_num_batched_tokens, degrees.cp),
        num_rows=knobs.max_num_seqs,
        dtype_bytes=DTYPE_BYTES[dtype],
        num_groups=len(groups),
        reference=config.numerics == "reference",
    )
    asked = memory_request(
        config,
        knobs,
        groups,
        device_bytes=device.memory_bytes,
        available_bytes=device.memory_bytes,
        taken_bytes=0,
        weight_bytes=weight_bytes,
        weights_in_place=False,
    )
    if divided:
        buffers = COMMUNICATION_BYTES.get(max(degrees.tp, degrees.ep, degrees.cp), MOST_COMMUNICATION)
        if degrees.cp > 1:  # keys of one layer that come, and those that are worked on
            buffers += round(2 * knobs.max_model_len * kv_bytes_per_token(groups) / own.num_layers)
        asked = msgspec.structs.replace(asked, communication_bytes=buffers)
    memory = plan_memory(asked, workspace)
    layout = KVLayout(groups=groups, num_blocks=memory.num_blocks * degrees.ep, dtype=held_as)
    cost = None
    if timed is not None and calibration is not None:
        _check_calibration(timed.key, config, spec, dtype, layout, device if found is None else None)
    if timed is not None:
        source = f"{len(timed.cells)} sizes of step timed for {timed.key.model} on {timed.key.device}"
        if timed.served:
            source = f"{timed.served} steps that served {timed.key.model} on {timed.key.device}"
        if found is not None:
            source += f", whatever {device.name} would take"
    else:
        source = f"counts over {device.gflops:.4g} GFLOP/s and {device.memory_gbps:.4g} GB/s ({device.source})"
        source += "; steps were timed here with other kernels" if other_kernels else ""
        if found is not None:
            steps = layout_steps(spec, found, degrees, dtype, held.sequence_bytes, whole_bytes, expert_imbalance)
            cost = RoundPrices(steps)
            source += f", {Layout(degrees=degrees)}" if divided else ""
    settings = scheduler_settings(config, knobs, memory)
    if degrees.ep > 1:  # every expert group has rows and a cache of its own
        rows = settings.max_num_seqs * degrees.ep
        tokens = max(settings.max_num_batched_tokens, rows)
        settings = msgspec.structs.replace(settings, max_num_seqs=rows, max_num_batched_tokens=tokens)
    replica = ReplicaSpec(settings=settings, layout=layout, prefix_caching=config.cache.enable_prefix_caching)
    return SimulatedEngine(
        replica=replica,
        cost=cost or _prices(timed, step_prior(spec, device, dtype, layout, weight_bytes)),
        spec=spec,
        device=device,
        dtype=dtype,
        memory=memory,
        knobs=knobs,
        weight_bytes=whole_bytes,
        cost_source=source,
        degrees=degrees,
        kv_bytes_per_token=kv_bytes_per_token(groups),
        template=template_of(config, files),
        request_ms=0.0 if timed is None else timed.request_ms,
        card=found,
        expert_imbalance=expert_imbalance if degrees.ep > 1 else 1.0,
    )


def _timed(config: EngineConfig, spec: ModelSpec, device: DeviceSpec, dtype: str) -> tuple[Calibration | None, bool]:
    """What an engine on this machine would take, and whether there is only what other kernels took (`PACELINE_CPU_ISA`
    was set, then or now)."""
    home = read_environment().home
    timed = timed_here(home, config, spec, device, dtype, kernels=kernels_in_use(config, device.kind, dtype))
    return timed, timed is None and timed_here(home, config, spec, device, dtype) is not None


def _prices(timed: Calibration | None, prior: StepPrior) -> StepCost:
    return (StepCost.from_prior(prior) if timed is None else timed.cost()).frozen()


def rank_of(spec: ModelSpec, degrees: Degrees, dtype: str) -> tuple[ModelSpec, int]:
    """The model of the fullest rank, and its weights in bytes. Raises UnsupportedError where it cannot be divided."""
    if DTYPE_BYTES[dtype] != 2:
        raise UnsupportedError("a divided engine is simulated with 16-bit weights", seen=dtype, expected="bfloat16")
    stages = sorted({0, degrees.pp - 1})
    shares = [rank_share(spec, tp=degrees.tp, pp=degrees.pp, ep=degrees.ep, stage=stage) for stage in stages]
    fullest = max(shares, key=lambda share: share.weight_bytes)
    return fullest.spec, fullest.weight_bytes


def layout_steps(
    spec: ModelSpec,
    card: DeviceCard,
    degrees: Degrees,
    dtype: str,
    sequence_bytes: Callable[[ModelSpec, int], int],
    weight_bytes: int,
    expert_imbalance: float,
) -> LayoutSteps:
    """Prices of an engine divided so, with 16-bit weights. `weight_bytes`: of the whole model."""
    return layout_prior(
        spec,
        card,
        Layout(degrees=degrees),
        per_node=card.per_node,
        weights="bf16",
        weight_bytes=weight_bytes,
        dtype_bytes=DTYPE_BYTES[dtype],
        kv_dtype_bytes=sequence_bytes(spec, 1) / spec.kv_bytes(1, 1),
        expert_imbalance=expert_imbalance,
    )


def _model(config: EngineConfig) -> tuple[ModelSpec, hub.ModelFiles | None]:
    """From a built-in card, which has no files, or from the model's files."""
    card = CARDS.get(config.model.model)
    if card is not None:
        return card.spec, None
    files = find_files(config, read_environment())
    return hub.describe(files), files


def _weight_bytes(
    config: EngineConfig, spec: ModelSpec, files: hub.ModelFiles | None, here: DeviceSpec | None, dtype: str
) -> int:
    """As an engine holds them: floats of the compute type, or a GGUF file's blocks where a kernel of this machine
    (`here`) multiplies them. Cards of the table are GPUs, for which there is no such kernel."""
    if config.model.quantization == "int8":
        raise UnsupportedError(
            "weights rounded to 8 bits are not simulated", seen="quantization=int8", expected="auto or none"
        )
    if files is not None and here is not None:
        from paceline.assemble.plan import kept_bytes
        from paceline.assemble.weights import find_weight_method

        method = find_weight_method(config, files, device=here.kind, dtype=dtype)
        if method is not None and files.kind == "gguf":
            return kept_bytes(files, method)
    return spec.num_parameters * DTYPE_BYTES[dtype]


def _check_calibration(
    key: CalibrationKey, config: EngineConfig, spec: ModelSpec, dtype: str, layout: KVLayout, here: DeviceSpec | None
) -> None:
    """Raise ConfigError when the file was timed for another model or form of it. A card of the planner has no revision
    of its own; the device counts where it is this machine (`here`)."""
    seen: dict[str, object] = {
        "dtype": key.dtype,
        "activation_dtype": key.activations,
        "kv_bytes_per_token": key.kv_bytes_per_token,
    }
    asked: dict[str, object] = {
        "dtype": dtype,
        "activation_dtype": config.model.activation_dtype,
        "kv_bytes_per_token": kv_bytes_per_token(layout.groups),
    }
    if spec.name not in CARDS:
        seen["revision"], asked["revision"] = key.revision, spec.revision
    if here is not None:
        seen["device"], asked["device"] = key.device, f"{here.kind} {here.name}"
    differ = [name for name, value in asked.items() if seen[name] != value]
    if differ:
        raise ConfigError(
            "this calibration is of something else",
            seen=", ".join(f"{name} {seen[name]}" for name in differ),
            expected=", ".join(f"{name} {asked[name]}" for name in differ),
            fix="run `paceline calibrate` with the model and options that are simulated",
        )


def _device(config: EngineConfig, card: DeviceCard | None) -> tuple[DeviceSpec, str]:
    if card is None:
        limit_isa(read_environment())
        return find_device(config)
    dtype = config.model.dtype
    return card.spec, "bfloat16" if dtype == "auto" else dtype
