"""A workload through a fleet of simulated engines (`sim_engine`), and the lab's records of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

import paceline
from paceline.assemble.sim_engine import SimulatedEngine, simulated_engine
from paceline.assemble.sim_terms import server_terms
from paceline.assemble.sim_tiers import tier_rows, tier_words, tiering_of
from paceline.contracts.artefact import RequestRecord, RunInfo, TargetInfo
from paceline.cost.prior import Degrees
from paceline.cost.transfer import Link
from paceline.errors import ConfigError, UnsupportedError
from paceline.lab.metrics import compute
from paceline.lab.workload import WorkloadSpec, load_spec, make_plan, named, primers, scale
from paceline.lab.workload.traces.reading import open_trace
from paceline.router.scaling import Look, ScalingPolicy
from paceline.sim.cluster import Joining, Outage, Totals
from paceline.sim.elastic import Elastic, rows_of
from paceline.sim.fleet import for_fleet, make_cluster, size_of, takes_in
from paceline.sim.record import info_of, record_of
from paceline.sim.requests import TermsOf
from paceline.sim.split import Split, SplitCluster
from paceline.sim.tiered import TieredCluster, Tiering

_TRACES = (".csv", ".csv.gz", ".jsonl", ".jsonl.gz", ".tar", ".tar.gz", ".tgz")


@dataclass(frozen=True)
class Simulated:
    """A run that was simulated, ready to be written as the lab writes one."""

    info: RunInfo
    records: list[RequestRecord]
    plan: Sequence[Any]
    totals: Totals
    num_requests: list[int]  # taken in, by replica
    looks: list[Look] = field(default_factory=list)  # of the autoscaler
    transfer_s: tuple[float, float] = (0.0, 0.0)  # KV between replicas: links busy, prompts waiting for one
    tiers: list[dict[str, Any]] = field(default_factory=list)  # of KV caches, as the artefact has them


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
    split: Split | None = None,
    tiering: Tiering | None = None,
    scaling: ScalingPolicy | None = None,
    terms: TermsOf | None = None,
    phases: Mapping[str, float] | None = None,
    question: str = "",
    command: str = "",
) -> Simulated:
    """Run a workload through a fleet of such engines. The same arguments give the same run, byte for byte.

    `split`: prefill and decode apart. `tiering`: KV caches with lower tiers. `scaling`: replicas come and go with the
    load. `terms`: under which the server takes requests in; None: those it has by itself (`server_terms`). `phases`: of
    a cold start, seconds by name; only shown. Raises ConfigError for what does not go together.
    """
    if split is not None and scaling is not None:
        raise ConfigError("prefill and decode apart do not scale", seen="both", fix="leave one of them out")
    plan = make_plan(workload, seed=seed)
    records: list[RequestRecord] = []
    lag_s = engine.request_ms / 1e3
    cluster = make_cluster(
        engine.replica,
        engine.cost,
        plan,
        on_end=lambda ended: records.append(record_of(ended, lag_s, saves_restored=tiering is not None)),
        num_replicas=num_replicas,
        router=router,
        seed=seed,
        changes=changes,
        cold_start_s=cold_start_s,
        terms=server_terms() if terms is None else terms,
        macro_steps=macro_steps,
        split=split,
        tiering=tiering,
        lag_s=lag_s,
        template=engine.template,
    )
    if "prime" in workload.cache.protocol and takes_in(engine.replica):
        cluster.prime(primers(plan))
    elastic = None if scaling is None else Elastic(cluster, scaling)
    totals = cluster.run()
    looks = [] if elastic is None else elastic.looks
    tiers: list[dict[str, Any]] = []
    if tiering is not None and isinstance(cluster, TieredCluster):
        tiers = tier_rows(cluster, tiering.tiers, totals.virtual_s)
    records.sort(key=lambda record: record.id)
    info = info_of(
        workload,
        plan,
        records,
        target=_target(engine, num_replicas, router),
        config=_config(engine),
        fingerprint=_fingerprint(
            engine, num_replicas, router, changes, cold_start_s, phases, split, scaling, tiering, tiers, totals, command
        ),
        question=question,
    )
    links = (cluster.links.busy_s, cluster.links.waited_s) if isinstance(cluster, SplitCluster) else (0.0, 0.0)
    return Simulated(info, records, plan.requests, totals, list(cluster.num_requests), looks, links, tiers)


def with_drafts(engine: SimulatedEngine, lengths: tuple[float, ...]) -> SimulatedEngine:
    """The same engine with speculation, by its acceptance curve: tokens a step yields with 1, 2, ... drafts."""
    settings = msgspec.structs.replace(engine.replica.settings, num_draft_tokens=len(lengths))
    drafting = msgspec.structs.replace(engine.replica, settings=settings, acceptance=lengths)
    return replace(engine, replica=drafting)


def degrees_of(tp: int, pp: int, ep: int, cp: int = 1) -> Degrees:
    """Over how many devices one engine is divided."""
    return Degrees(tp=tp, pp=pp, ep=ep, cp=cp)


def link_of(text: str, engine: SimulatedEngine) -> Link:
    """`GBPS[,US]`, or the network of the engine's card. Raises ConfigError where there is neither."""
    if not text:
        if engine.link is None:
            raise ConfigError("nothing is known about the link that carries KV", fix="say it: --kv-link 50,20")
        return engine.link
    gbps, _, latency = text.partition(",")
    try:
        return Link(gbps=float(gbps), latency_us=float(latency or 0))
    except ValueError:
        raise ConfigError(
            "--kv-link was not understood", seen=text, expected="GB/s one way, and microseconds: 50,20"
        ) from None


def is_met(simulated: Simulated) -> bool:
    """Every class had the share of good requests that it asks for: a burst was survived."""
    metrics = compute(simulated.info, simulated.records)
    shares = {each.name: each.share for each in simulated.info.slo}
    for group in metrics.groups:
        if group.kind == "class" and group.num_requests and group.name in shares:
            good = group.attainment.value
            if good is None or good < shares[group.name]:
                return False
    return True


def scale_up_budget(run: Callable[[float], Simulated], most_s: float, *, tries: int = 7) -> tuple[float, float | None]:
    """The longest cold start with which the targets are still met, and the shortest that was too long (None: none up to
    `most_s` was): the time that a scale-up may take. `run(cold start)` simulates. A longer cold start is taken to be
    worse, so it is found by halving. Raises ConfigError where the targets are missed even without any cold start."""
    if is_met(run(most_s)):
        return most_s, None
    if not is_met(run(0.0)):
        raise ConfigError(
            "the targets are missed whatever the cold start",
            seen="a cold start of 0 s",
            fix="allow more replicas, more of them at a look, or a shorter period",
        )
    low, high = 0.0, most_s
    for _ in range(tries):
        middle = (low + high) / 2
        low, high = (middle, high) if is_met(run(middle)) else (low, middle)
    return low, high


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
        "expected_context": engine.knobs.expected_context,
        "prefix_cache_reserve": engine.knobs.prefix_cache_reserve,
    }


def _fingerprint(
    engine: SimulatedEngine,
    num_replicas: int,
    router: str,
    changes: Sequence[Outage | Joining],
    cold_start_s: float,
    phases: Mapping[str, float] | None,
    split: Split | None,
    scaling: ScalingPolicy | None,
    tiering: Tiering | None,
    tiers: list[dict[str, Any]],
    totals: Totals,
    command: str,
) -> dict[str, Any]:
    device, degrees = engine.device, engine.degrees
    found: dict[str, Any] = {
        "simulation": {
            "replicas": num_replicas,
            "router": router,
            "prices": engine.cost_source,
            "changes": [_shown(change) for change in changes],
            "cold_start_s": cold_start_s,
            **({} if not phases else {"cold_start_phases_s": dict(phases)}),
            **({} if degrees.num_ranks == 1 else {"devices_per_replica": str(degrees)}),
            **_made_of(engine),
            **({} if split is None else {"prefill_and_decode": msgspec.to_builtins(split)}),
            **({} if scaling is None else {"scaling": msgspec.to_builtins(scaling)}),
            **({} if tiering is None else {"tier_policy": tiering.policy, "tiers": tiers}),
            "replica_seconds": round(totals.replica_s, 3),
        },
        "device": {
            "name": device.name,
            "kind": device.kind,
            "memory_bytes": device.memory_bytes,
            "gflops": device.gflops,
            "memory_gbps": device.memory_gbps,
            "source": device.source,
        },
        "server": {
            "num_blocks": engine.replica.layout.num_blocks,
            "num_kv_groups": len(engine.replica.layout.groups),
            "weight_dtype": engine.spec.weight_dtype,
            "weight_bytes": engine.weight_bytes,
            "stored_weight_bytes": engine.spec.weight_bytes,
        },
    }
    return {**found, "command": command} if command else found


def _made_of(engine: SimulatedEngine) -> dict[str, Any]:
    """What prices can be made of again, by whoever looks at the run later."""
    found: dict[str, Any] = {}
    if engine.card is not None:
        found["card"] = msgspec.to_builtins(engine.card)
        found["degrees"] = msgspec.to_builtins(engine.degrees)
        found["expert_imbalance"] = engine.expert_imbalance
    if engine.spec.experts is not None:
        found["experts"] = engine.spec.experts.num_experts
    if engine.replica.acceptance:
        found["acceptance"] = list(engine.replica.acceptance)
    return found


def _shown(change: Outage | Joining) -> str:
    if isinstance(change, Joining):
        return f"one more at {change.at_s:g} s"
    return f"replica {change.replica} fails at {change.at_s:g} s"


__all__ = [
    "Joining",
    "Outage",
    "ScalingPolicy",
    "Simulated",
    "SimulatedEngine",
    "Split",
    "Tiering",
    "degrees_of",
    "is_met",
    "link_of",
    "load_workload",
    "rows_of",
    "scale_up_budget",
    "server_terms",
    "simulate",
    "simulated_engine",
    "tier_words",
    "tiering_of",
    "with_drafts",
]
