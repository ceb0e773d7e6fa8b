"""Stored runs and experiments as a lint's facts. Numbers come from the raw records, computed again."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from paceline.assemble.lint.configuration import is_quantised
from paceline.assemble.lint.load import stream_facts
from paceline.assemble.lint.simulated import around, looks_of, simulated_starts
from paceline.assemble.lint.told import bare, count, mapping, mappings, number, whole, words
from paceline.config import full_table
from paceline.contracts.artefact import TOKEN_KINDS, RequestRecord, RunInfo, TokenSource
from paceline.contracts.metrics import RunMetrics
from paceline.errors import ConfigError
from paceline.lab.artefact import StoredRun, compare_runs
from paceline.lab.artefact.differences import workload_of
from paceline.lab.experiment.groups import group_of, plain
from paceline.lab.experiment.results import EdgeResult, ExperimentResult
from paceline.lab.metrics import compute
from paceline.lab.metrics.columns import columns_of
from paceline.lab.metrics.flow import ends_of, inside
from paceline.lab.metrics.judge import times_of
from paceline.planner.lint import (
    Asked,
    Change,
    EngineFacts,
    Facts,
    LoadFacts,
    PairFacts,
    RatioFact,
    RunFacts,
    Sample,
    StartFacts,
    StreamFacts,
    Timed,
    TraceFacts,
    WeightFacts,
)

_SERVER = "server."  # options of the server process: where it listens, whom it lets in
_FOLLOWS = ("host", "port", "num_blocks")  # no choice of a configuration: an address, and what its memory held


def run_facts(
    run: StoredRun,
    *,
    against: Sequence[StoredRun] = (),
    trace: TraceFacts | None = None,
    start_budget_s: float | None = None,
) -> Facts:
    """One run, beside `against`: earlier ones, each of which it is compared with."""
    metrics = compute(run.info, run.records)
    start = start_facts([run.info.start, *simulated_starts(run.info)])
    requests = _timed(run, metrics)
    found = around(run.info, requests)
    return Facts(
        source="run",
        name=run.info.name,
        engine=_engine(run.info),
        prices=found.prices,
        slo=tuple(run.info.slo),
        load=_load(run, metrics),
        run=RunFacts(info=run.info, metrics=metrics, requests=requests, samples=_samples(run, metrics, requests)),
        pairs=tuple(_pair(earlier, run) for earlier in against),
        trace=trace,
        starts=start,
        start_budget_s=start_budget_s,
        fleet=found.fleet,
        device=found.device,
    )


def experiment_facts(result: ExperimentResult, *, start_budget_s: float | None = None) -> Facts:
    """Its steps and its starts; the runs of its points are looked at one by one."""
    return Facts(
        source="experiment",
        name=result.name,
        slo=result.slo,
        pairs=tuple(_step(edge) for edge in result.edges),
        starts=start_facts(
            [{"kind": s.kind, "first_token_s": s.first_token_s, "ready_s": s.ready_s, "phases": s.phases}
             for node in result.nodes for s in node.starts]
        ),
        start_budget_s=start_budget_s,
    )  # fmt: skip


def start_facts(starts: Iterable[Mapping[str, Any]]) -> tuple[StartFacts, ...]:
    found = []
    for start in starts:
        seconds = number(start.get("first_token_s")) or number(start.get("ready_s"))
        if seconds is not None:
            told = mapping(start.get("phases")) or mapping(start.get("server"))
            phases = {name: took for name, value in told.items() if (took := number(value)) is not None}
            found.append(StartFacts(kind=str(start.get("kind", "as found")), seconds=seconds, phases=phases))
    return tuple(found)


# --- the server


def _engine(info: RunInfo) -> EngineFacts:
    config = {plain(name): bare(value) for name, value in info.config.items()}
    server = mapping(info.fingerprint.get("server"))
    blocks, size = count(server.get("num_blocks")), count(config.get("block_size"))
    one_group = server.get("num_kv_groups") == 1
    caching = config.get("enable_prefix_caching")
    return EngineFacts(
        max_num_seqs=count(config.get("max_num_seqs")),
        max_model_len=count(config.get("max_model_len")) or info.target.max_model_len,
        expected_context=count(config.get("expected_context")),
        prefix_cache_reserve=number(config.get("prefix_cache_reserve")),
        prefix_caching=caching if isinstance(caching, bool) else None,
        kv_tokens=None if not one_group or blocks is None or size is None else blocks * size,
        weights=_weights(server),
    )


def _weights(server: Mapping[str, Any]) -> WeightFacts | None:
    kind = str(server.get("weight_dtype"))
    stored, held = count(server.get("stored_weight_bytes")), count(server.get("weight_bytes"))
    if stored is None or held is None or not is_quantised(kind):
        return None
    return WeightFacts(stored=kind, stored_bytes=stored, held_bytes=held)


def _samples(run: StoredRun, metrics: RunMetrics, requests: Sequence[Timed]) -> tuple[Sample, ...]:
    """The server's own looks; of one replica that tells how long each request queued, as many as say something."""
    found = []
    for row in run.server_metrics:
        at_ns, values = whole(row.get("t_ns")), mapping(row.get("common"))
        if at_ns is not None and metrics.window.start_ns <= at_ns < metrics.window.end_ns and values:
            numbers = {name: number(values.get(name)) for name in ("num_running", "num_waiting", "kv_usage")}
            found.append(Sample(at_s=at_ns / 1e9, **numbers))
    told = any(sample.num_running is not None for sample in found)
    return tuple(found) if told else looks_of(metrics.window, requests)


# --- the load


def _load(run: StoredRun, metrics: RunMetrics) -> LoadFacts:
    info, window = run.info, metrics.window
    streams = list(mappings(info.spec.get("stream") or info.spec.get("streams")))
    arrivals = [mapping(stream.get("arrival")) for stream in streams]
    slots = [count(a.get("slots")) or 0 for a in arrivals if a.get("kind") == "closed"]
    cache = mapping(info.spec.get("cache"))
    return LoadFacts(
        name=str(info.spec.get("name", info.name)),
        requests=tuple(
            Asked(
                stream=r.stream,
                slo_class=r.slo_class,
                num_input=r.num_input_asked,
                num_output=r.num_output_asked,
                in_window=window.start_ns <= r.t_plan_ns < window.end_ns,
            )
            for r in run.records
        ),
        window_s=window.seconds,
        closed_loop=info.closed_loop,
        slots=sum(slots) or None,
        at_s=() if info.closed_loop else _arrivals(run),
        protocol=words(info.cache.get("protocol")) or words(cache.get("protocol")),
        seed=info.seed,
        texts=tuple(_text(stream, info) for stream in streams),
    )


def _text(stream: Mapping[str, Any], info: RunInfo) -> StreamFacts:
    """A server that cannot be made to go on ends where it wants to."""
    told = stream.get("exact_output")
    exact = (told if isinstance(told, bool) else None) if info.target.ignore_eos else False
    return stream_facts(str(stream.get("name", "")), str(stream.get("content", "natural")), exact)


def _arrivals(run: StoredRun) -> tuple[float, ...]:
    return tuple(sorted(r.t_plan_ns / 1e9 for r in run.records if r.turn == 0 and r.t_plan_ns >= 0))


def _timed(run: StoredRun, metrics: RunMetrics) -> tuple[Timed, ...]:
    columns = columns_of(run.records)
    times, ends = times_of(columns), ends_of(columns)
    here = inside(columns.plan, metrics.window)
    found = []
    for i, record in enumerate(columns.records):
        known = record.prompt_tokens >= 0 and math.isfinite(columns.tokens[i])
        found.append(
            Timed(
                id=record.id,
                slo_class=record.slo_class,
                in_window=bool(here[i]),
                ok=bool(columns.ok[i]),
                first_s=_finite(columns.first[i]),
                last_s=_finite(columns.last[i]),
                send_s=_finite(columns.send[i]),
                end_s=_finite(ends[i]),
                tpot_s=_finite(times.tpot[i]),
                lag_s=_finite(times.lag[i]),
                num_tokens=record.prompt_tokens + int(columns.tokens[i]) if known else None,
                num_prompt=_told(record.prompt_tokens),
                num_cached=_told(record.cached_tokens),
                num_restored=_whole_number(record.server.get("restored_tokens")),
                tokens_per_step=_per_step(record),
                at_length=_at_length(record),
                replica=int(record.server["replica"]) if "replica" in record.server else None,
                queue_s=_seconds(record.server.get("queue_ms")),
                prefill_s=_seconds(record.server.get("prefill_ms")),
            )
        )
    return tuple(found)


def _told(count: int) -> int | None:
    return count if count >= 0 else None


def _whole_number(value: float | None) -> int | None:
    return None if value is None else round(value)


def _seconds(ms: float | None) -> float | None:
    return None if ms is None else ms / 1e3


def _per_step(record: RequestRecord) -> float | None:
    """Tokens of an answer's pieces after its first, each of which is what one step brought; None where the server does
    not say how many, or it came in one."""
    if record.token_source is not TokenSource.CHUNK_USAGE:
        return None
    counts = [chunk.num_tokens for chunk in record.chunks if chunk.kind in TOKEN_KINDS and chunk.num_tokens > 0][1:]
    return sum(counts) / len(counts) if counts else None


def _at_length(record: RequestRecord) -> bool | None:
    if record.completion_tokens < 0 or not record.num_output_asked:
        return None
    return record.reason == "length" and record.completion_tokens == record.num_output_asked


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


# --- two of them


def _pair(before: StoredRun, after: StoredRun) -> PairFacts:
    found = compare_runs(before, after)
    ratios = tuple(
        RatioFact(figure=line.figure, ratio=line.ratio.value, lo=line.ratio.lo, hi=line.ratio.hi, answer=line.answer)
        for line in found.lines
    )
    return PairFacts(
        before=_named(before, after),
        after=_named(after, before),
        changes=_changes(before.info, after.info),
        ratios=ratios,
        num_equal_prompts=_asked_before(before, after),
    )


def _named(run: StoredRun, other: StoredRun) -> str:
    """Its own name; with the folder's, where both have the same."""
    return run.info.name if run.info.name != other.info.name else f"{run.info.name} ({run.path.name})"


def _changes(before: RunInfo, after: RunInfo) -> tuple[Change, ...]:
    found = []
    x, y = ({name: bare(value) for name, value in info.config.items()} for info in (before, after))
    for name in sorted({*x, *y}):
        if not name.startswith(_SERVER) and plain(name) not in _FOLLOWS and x.get(name) != y.get(name):
            found.append(Change(name=name, group=_group(name), before=x.get(name), after=y.get(name)))
    if before.target.model != after.target.model and all(plain(c.name) != "model" for c in found):
        found.append(Change(name="model", group="model", before=before.target.model, after=after.target.model))
    if workload_of(before) != workload_of(after):
        found.append(Change(name=f"workload {after.spec.get('name', '')}".strip(), group="workload"))
    if {c.name: c for c in before.slo} != {c.name: c for c in after.slo}:
        found.append(Change(name="targets", group="slo"))
    return tuple(found)


def _group(option: str) -> str:
    try:
        return group_of(option, {name: found.group for name, found in full_table().items()}, {})
    except ConfigError:
        return "unknown"


def _asked_before(before: StoredRun, after: StoredRun) -> int:
    """Prompts of the later run that the earlier one had sent to the same server. One that was started for this run, or
    is another, remembers nothing."""
    if after.info.start or before.info.target.url != after.info.target.url:
        return 0
    sent = {r.prompt_sha256 for r in before.records if r.prompt_sha256}
    return sum(r.prompt_sha256 in sent for r in after.records if r.prompt_sha256)


def _step(edge: EdgeResult) -> PairFacts:
    return PairFacts(
        before=edge.parent,
        after=edge.child,
        changes=tuple(Change(name=c.name, group=c.group, before=c.before, after=c.after) for c in edge.changes),
        ratios=tuple(
            RatioFact(figure=r.figure, ratio=r.ratio.value, lo=r.ratio.lo, hi=r.ratio.hi, answer=r.answer)
            for r in edge.ratios
        ),
        declared_group=edge.group,
    )
