"""Workloads, traces and clients as a lint's facts."""

from __future__ import annotations

from pathlib import Path

from paceline.contracts.workload import SloClass
from paceline.errors import ConfigError
from paceline.lab.artefact import read_run
from paceline.lab.workload import (
    TargetSize,
    WorkloadSpec,
    load_spec,
    make_plan,
    named,
    parse_slo,
    reusable_tokens,
    scale,
    with_slo,
)
from paceline.lab.workload.arrivals import Closed
from paceline.lab.workload.traces import open_trace
from paceline.planner.lint import Asked, ClientFacts, LoadFacts, Prices, StreamFacts, TraceFacts, again
from paceline.planner.lint.load import gap_cv

_SIZED_BY = 128  # prompt tokens, as the lab sizes a server
_AT_ONCE = 8
_DECIDES = ("tools", "structured")  # content whose answer ends where it must


def find_workload(name: str, prices: Prices | None, max_model_len: int | None) -> WorkloadSpec:
    """A TOML file, or a named workload scaled to what the cost model says of the server. Raises ConfigError."""
    if name.endswith(".toml") or "/" in name:
        return load_spec(Path(name))
    found = named(name, size_of(prices, max_model_len))
    if len(found) != 1:
        raise ConfigError("a lint looks at one workload", seen=name, fix="name one of `paceline bench --list`")
    return found[0]


def size_of(prices: Prices | None, max_model_len: int | None) -> TargetSize:
    """How big and fast a server is, predicted; the lab's defaults without a cost model."""
    size = TargetSize() if max_model_len is None else TargetSize(max_model_len=max_model_len)
    if prices is None:
        return size
    alone, together = prices.decode(1, _SIZED_BY).value, prices.decode(_AT_ONCE, _SIZED_BY).value
    return TargetSize(
        max_model_len=size.max_model_len,
        ttft_s=(alone + prices.prefill_ms(_SIZED_BY)) / 1e3,
        ttft_tokens=_SIZED_BY,
        tpot_s=alone / 1e3,
        parallel=min(float(_AT_ONCE), max(1.0, _AT_ONCE * alone / together)),
    )


def adjusted(
    spec: WorkloadSpec, *, slo: str = "", rate: float | None = None, duration_s: float | None = None
) -> WorkloadSpec:
    """With the targets, rate and time that were asked for instead of its own."""
    if slo:
        spec = with_slo(spec, parse_slo(slo))
    return scale(spec, rate=rate, duration_s=duration_s)


def load_facts(spec: WorkloadSpec) -> LoadFacts:
    """From the plan that the workload makes: what would be sent."""
    plan = make_plan(spec, salt="lint")
    prompts = reusable_tokens(plan.requests, primed="prime" in spec.cache.protocol)
    slots = [stream.arrival.slots for stream in spec.streams if isinstance(stream.arrival, Closed)]
    return LoadFacts(
        name=spec.name,
        requests=tuple(
            Asked(
                stream=r.stream,
                slo_class=r.slo_class,
                num_input=total,
                num_output=r.num_output_tokens,
                num_cached=cached,
                in_window=r.at_s is None or r.at_s >= plan.warmup_s,
                group=r.prefix_group,
                num_prefix=r.num_prefix_tokens,
            )
            for r, (cached, total) in zip(plan.requests, prompts, strict=True)
        ),
        window_s=max(0.0, plan.span_s - plan.warmup_s),
        closed_loop=plan.closed_loop,
        slots=sum(slots) if slots else None,
        at_s=tuple(sorted(r.at_s for r in plan.requests if r.at_s is not None)),
        protocol=spec.cache.protocol,
        seed=plan.seed,
        texts=tuple(stream_facts(stream.name, stream.content, stream.exact_output) for stream in spec.streams),
    )


def stream_facts(name: str, content: str, exact_output: bool | None) -> StreamFacts:
    """`exact_output` None: as the lab takes it, so where the answer does not decide by itself."""
    return StreamFacts(
        name=name, content=content, forced=content not in _DECIDES if exact_output is None else exact_output
    )


def slo_of(slo: str, spec: WorkloadSpec | None) -> tuple[SloClass, ...]:
    """The workload's classes (which `adjusted` gave the asked targets), or one class of these targets."""
    if spec is not None:
        return tuple(spec.classes)
    return (parse_slo(slo),) if slo else ()


def trace_facts(path: Path) -> TraceFacts:
    """How bursty a recorded load is. Raises ConfigError for what is no trace, or has fewer than three requests."""
    trace = open_trace(path)
    at_s = [float(t) for t in trace.rows(0.0, trace.end_s + 1.0, "lint").at_s]
    cv = gap_cv(at_s)
    if cv is None:
        raise ConfigError("the trace is too short to be bursty", seen=f"{path}: {len(at_s)} requests", expected="3")
    return TraceFacts(name=path.name, cv=cv, num_requests=len(at_s))


def client_facts(path: Path) -> ClientFacts:
    """Of the client that made a run. Raises LabError for what is no run."""
    run = read_run(path)
    num, attempts, _ = again(record.id for record in run.records)
    return ClientFacts(name=run.info.name, health=run.info.client, num_again=num, num_attempts=attempts)
