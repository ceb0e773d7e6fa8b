"""A fleet of simulated engines for a configuration: knobs, memory and prices as an engine would start with them.

Nothing is loaded and nothing is computed. The device is a card of the planner's table, or this machine, whose rates are
then measured; prices come from a calibration, or from the roofline of model and device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import paceline
from paceline import hub
from paceline.assemble.core import scheduler_settings
from paceline.assemble.files import find_files
from paceline.assemble.inspect import find_device
from paceline.assemble.memory import DTYPE_BYTES, memory_request
from paceline.assemble.step_cost import kv_bytes_per_token, load_calibration, step_prior, timed_here
from paceline.config import EngineConfig, read_environment, resolve_knobs
from paceline.contracts.artefact import RequestRecord, RunInfo, TargetInfo
from paceline.contracts.kv import KVLayout, kv_format, plan_kv_groups
from paceline.contracts.specs import DeviceSpec, ModelSpec
from paceline.cost import CalibrationKey, StepCost
from paceline.cost.memory import MemoryPlan, plan_memory
from paceline.cost.workspace import step_workspace
from paceline.errors import ConfigError, UnsupportedError
from paceline.lab.workload import WorkloadSpec, load_spec, make_plan, named, scale
from paceline.lab.workload.traces.reading import open_trace
from paceline.planner.cards import CARDS
from paceline.planner.devices import DEVICES
from paceline.sim.cluster import Joining, Outage, Totals
from paceline.sim.fleet import ReplicaSpec, for_fleet, make_cluster, size_of
from paceline.sim.record import info_of, record_of

_TRACES = (".csv", ".csv.gz", ".jsonl", ".jsonl.gz", ".tar", ".tar.gz", ".tgz")


@dataclass(frozen=True)
class SimulatedEngine:
    """What every replica is, and where its numbers are from."""

    replica: ReplicaSpec
    cost: StepCost
    spec: ModelSpec
    device: DeviceSpec
    dtype: str
    memory: MemoryPlan
    cost_source: str


@dataclass(frozen=True)
class Simulated:
    """A run that was simulated, ready to be written as the lab writes one."""

    info: RunInfo
    records: list[RequestRecord]
    plan: Sequence[Any]
    totals: Totals
    num_requests: list[int]  # taken in, by replica


def simulated_engine(
    config: EngineConfig, *, card: str | None = None, calibration: Path | str | None = None
) -> SimulatedEngine:
    """The engine that `paceline serve` would be with this configuration on the device, as far as can be known before.

    Left out of the memory ledger, so an engine may have fewer blocks: what others take of the device's memory, the
    process itself, the measured worst step, conversions of 16-bit arithmetic and compiled products on a CPU.

    Without a `card` and a `calibration`, prices are those timed on this machine, if there are any for this model.
    Raises ConfigError for an unknown card and a calibration of something else, ModelError, CapacityError, and
    UnsupportedError for what is not simulated.
    """
    spec, files = _model(config)
    device, dtype = _device(config, card)
    held_as = config.cache.kv_dtype(dtype)
    held = kv_format(held_as, spec)
    knobs = resolve_knobs(config, spec, device, dtype_bytes=DTYPE_BYTES[dtype], kv=held)
    if spec.state is not None:
        raise UnsupportedError("recurrent state is not simulated", seen=spec.name, expected="layers with a KV cache")
    weight_bytes = _weight_bytes(config, spec, files, device if card is None else None, dtype)
    groups = plan_kv_groups(spec, config.cache.block_size, held.element_bytes, held.scale_bytes)
    workspace = step_workspace(
        spec,
        num_tokens=knobs.max_num_batched_tokens,
        num_rows=knobs.max_num_seqs,
        dtype_bytes=DTYPE_BYTES[dtype],
        num_groups=len(groups),
        reference=config.numerics == "reference",
    )
    memory = plan_memory(
        memory_request(
            config,
            knobs,
            groups,
            device_bytes=device.memory_bytes,
            available_bytes=device.memory_bytes,
            taken_bytes=0,
            weight_bytes=weight_bytes,
            weights_in_place=False,
        ),
        workspace,
    )
    layout = KVLayout(groups=groups, num_blocks=memory.num_blocks, dtype=held_as)
    timed = None
    if calibration is not None:
        timed = load_calibration(calibration)
        _check_calibration(timed.key, spec, dtype, layout, device if card is None else None)
    elif card is None:
        timed = timed_here(read_environment().home, config, spec, device, dtype)
    if timed is not None:
        cost = timed.cost()
        source = f"{len(timed.cells)} sizes of step timed for {timed.key.model} on {timed.key.device}"
        if card is not None:
            source += f", whatever {device.name} would take"
    else:
        cost = StepCost.from_prior(step_prior(spec, device, dtype, layout, weight_bytes))
        source = f"counts over {device.gflops:.4g} GFLOP/s and {device.memory_gbps:.4g} GB/s ({device.source})"
    replica = ReplicaSpec(
        settings=scheduler_settings(config, knobs, memory),
        layout=layout,
        prefix_caching=config.cache.enable_prefix_caching,
    )
    return SimulatedEngine(
        replica=replica,
        cost=cost.frozen(),
        spec=spec,
        device=device,
        dtype=dtype,
        memory=memory,
        cost_source=source,
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
    key: CalibrationKey, spec: ModelSpec, dtype: str, layout: KVLayout, here: DeviceSpec | None
) -> None:
    """Raise ConfigError when the file was timed for another model or form of it. A card of the planner has no revision
    of its own; the device counts where it is this machine (`here`)."""
    seen: dict[str, object] = {"dtype": key.dtype, "kv_bytes_per_token": key.kv_bytes_per_token}
    asked: dict[str, object] = {"dtype": dtype, "kv_bytes_per_token": kv_bytes_per_token(layout.groups)}
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


def _device(config: EngineConfig, card: str | None) -> tuple[DeviceSpec, str]:
    if card is None:
        return find_device(config)
    found = DEVICES.get(card)
    if found is None:
        raise UnsupportedError(
            "no device of this name is known",
            seen=card,
            expected=", ".join(DEVICES),
            fix="leave it out for this machine",
        )
    dtype = config.model.dtype
    return found.spec, "bfloat16" if dtype == "auto" else dtype


def load_workload(
    name: str,
    engine: SimulatedEngine,
    *,
    num_replicas: int = 1,
    rate: float | None = None,
    duration_s: float | None = None,
    num_requests: int = 100,
) -> WorkloadSpec:
    """A named workload scaled to the fleet, a spec file, or a trace file replayed whole. `rate`: requests/s in all.

    Raises ConfigError for what is none of these.
    """
    settings = engine.replica.settings
    if rate is not None and not rate > 0:
        raise ConfigError("a rate must be above 0", seen=rate)
    if name.endswith(_TRACES):
        return _trace(Path(name), settings.max_model_len, rate=rate, duration_s=duration_s)
    if name.endswith(".toml") or "/" in name:
        spec = load_spec(Path(name))
    else:
        size = size_of(engine.cost, settings)
        found = named(name, size, num_requests=num_requests * num_replicas)
        if len(found) != 1:
            raise UnsupportedError("one workload is simulated at a time", seen=name, fix="name one of them")
        spec = found[0] if rate is not None else for_fleet(found[0], num_replicas)
    return scale(spec, rate=rate, duration_s=duration_s)


def _trace(path: Path, max_model_len: int, *, rate: float | None, duration_s: float | None) -> WorkloadSpec:
    """At its own pace, or at `rate` (requests/s over all of it); cut to the model's length."""
    source = open_trace(path)
    length_s = source.end_s * (1 - 1e-9)
    speed = 1.0 if rate is None else rate * length_s / len(source.rows(0.0, length_s))
    spec = load_spec(
        {
            "name": path.name.split(".")[0],
            "duration_s": length_s / speed,
            "max_model_len": max_model_len,
            "stream": [{"arrival": {"kind": "trace", "file": str(path.resolve()), "scale": speed}}],
        }
    )
    return scale(spec, duration_s=duration_s) if duration_s is not None else spec


def simulate(
    engine: SimulatedEngine,
    workload: WorkloadSpec,
    *,
    num_replicas: int = 1,
    router: str = "round-robin",
    seed: int = 0,
    changes: Sequence[Outage | Joining] = (),
    cold_start_s: float = 0.0,
    macro_steps: bool = True,
    question: str = "",
    command: str = "",
) -> Simulated:
    """Run a workload through a fleet of such engines. The same arguments give the same run, byte for byte."""
    plan = make_plan(workload, seed=seed)
    records: list[RequestRecord] = []
    cluster = make_cluster(
        engine.replica,
        engine.cost,
        plan,
        on_end=lambda ended: records.append(record_of(ended)),
        num_replicas=num_replicas,
        router=router,
        seed=seed,
        changes=changes,
        cold_start_s=cold_start_s,
        slos={name: each.slo for name, each in workload.slo.items()},
        macro_steps=macro_steps,
    )
    totals = cluster.run()
    records.sort(key=lambda record: record.id)
    info = info_of(
        workload,
        plan,
        records,
        target=_target(engine, num_replicas, router),
        config=_config(engine),
        fingerprint=_fingerprint(engine, num_replicas, router, changes, cold_start_s, command),
        question=question,
    )
    return Simulated(info, records, plan.requests, totals, list(cluster.num_requests))


def _target(engine: SimulatedEngine, num_replicas: int, router: str) -> TargetInfo:
    return TargetInfo(
        url=f"sim://{num_replicas}x{engine.device.name.replace(' ', '-')}/{router}",
        model=engine.spec.name,
        kind="simulation",
        version=paceline.__version__,
        max_model_len=engine.replica.settings.max_model_len,
        token_ids=True,
        ignore_eos=True,
        chunk_usage=True,
        final_usage=True,
        cached_tokens=True,
        timings=True,
    )


def _config(engine: SimulatedEngine) -> dict[str, Any]:
    settings, layout = engine.replica.settings, engine.replica.layout
    values = {name: getattr(settings, name) for name in settings.__struct_fields__}
    return {
        **values,
        "enable_prefix_caching": engine.replica.prefix_caching,
        "block_size": layout.block_size,
        "num_blocks": layout.num_blocks,
        "dtype": engine.dtype,
        "kv_cache_dtype": layout.dtype,
    }


def _fingerprint(
    engine: SimulatedEngine,
    num_replicas: int,
    router: str,
    changes: Sequence[Outage | Joining],
    cold_start_s: float,
    command: str,
) -> dict[str, Any]:
    device = engine.device
    found: dict[str, Any] = {
        "simulation": {
            "replicas": num_replicas,
            "router": router,
            "prices": engine.cost_source,
            "changes": [_shown(change) for change in changes],
            "cold_start_s": cold_start_s,
        },
        "device": {
            "name": device.name,
            "memory_bytes": device.memory_bytes,
            "gflops": device.gflops,
            "memory_gbps": device.memory_gbps,
            "source": device.source,
        },
    }
    return {**found, "command": command} if command else found


def _shown(change: Outage | Joining) -> str:
    if isinstance(change, Joining):
        return f"one more at {change.at_s:g} s"
    return f"replica {change.replica} fails at {change.at_s:g} s"


__all__ = [
    "Joining",
    "Outage",
    "Simulated",
    "SimulatedEngine",
    "load_workload",
    "simulate",
    "simulated_engine",
]
