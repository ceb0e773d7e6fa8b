"""One measured point: `measure(...)` is what `paceline bench`, `paceline tune` and the demo have in common.

    measure(target: Target, spec: WorkloadSpec, *, seed: int, out: Path, salt: str | None = None,
            rate: float | None = None, options: MeasureOptions = MeasureOptions(),
            on_progress: Callable[[Progress], None] | None = None, stop: threading.Event | None = None) -> StoredRun

    target   what `paceline.lab.load.probe` found
    spec     the workload; `rate` (requests/s) scales its open streams together, None leaves them as they are
    seed     of the plan and the content: two points with equal seeds ask the same requests, paired by their ids
    salt     in the content of every prompt, so that no earlier run's cache can help; None draws a fresh one
    out      the run's folder, see `paceline.lab.artefact`; it must not hold a run yet
    stop     set it (a Ctrl-C handler does) and the point ends early, as a valid artefact marked partial

The order: plan, content, calibration of the client, cache flushed and primed, load (warm-up, window, drain) with the
server's metrics and energy read beside it, hit rate verified, artefact, metrics as they are read back from there.

Raises ConfigError for a workload that cannot be planned and LabError when the server cannot be measured at all. A load
in which requests fail raises nothing: failures are results.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import msgspec

from paceline.contracts.artefact import ClientHealth, RequestRecord, RunInfo, Window
from paceline.errors import LabError
from paceline.lab.artefact import StoredRun, write_run
from paceline.lab.experiment.cache_protocol import bearer, prepare_cache, verify_cache
from paceline.lab.experiment.counts import Counts, RememberingCounter
from paceline.lab.experiment.energy import Meter
from paceline.lab.experiment.energy_sources import EnergySource
from paceline.lab.experiment.fingerprint import fingerprint
from paceline.lab.experiment.server_metrics import Scraper
from paceline.lab.experiment.validators import mark_whole, validators_of
from paceline.lab.load import (
    Calibration,
    HttpTokenCounter,
    LoadOptions,
    LoadResult,
    Progress,
    Target,
    Validate,
    calibrate_client,
    run_load,
)
from paceline.lab.workload import Content, Plan, WorkloadSpec, make_plan, scale, spec_to_dict

_TOLD = (  # of a paceline server's own account: what an analysis of the run needs beside its options
    *("device", "dtype", "weight_dtype", "weight_bytes", "stored_weight_bytes"),
    *("num_blocks", "num_kv_groups"),
)


class MeasureOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a point is measured. Nothing here changes what is asked of the server."""

    name: str = ""  # of the run; "": the workload's
    question: str = ""
    load: LoadOptions = LoadOptions()
    calibrate: bool = True  # measure the client against the null server first
    calibration: Calibration | None = None  # an earlier one of this client, for at least this rate
    counts: Counts | None = None  # token counts of earlier points of this model
    server_metrics: bool = True
    energy: tuple[EnergySource, ...] | None = None  # None: every counter this machine lets us read; (): none
    idle_watts: float | None = None
    validate: Validate | None = None  # None: the validators that the classes name
    config: dict[str, Any] = {}  # option -> value, as the server runs or as it was declared
    config_source: str = ""  # resolved, declared; "": ask the server
    start: dict[str, Any] = {}  # of an owned server
    fingerprint: dict[str, Any] | None = None  # None: take one
    command: str = ""  # that asked for this point, without keys; stored beside the fingerprint


def measure(
    target: Target,
    spec: WorkloadSpec,
    *,
    seed: int,
    out: Path,
    salt: str | None = None,
    rate: float | None = None,
    options: MeasureOptions | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    stop: threading.Event | None = None,
) -> StoredRun:
    """Measures one point and leaves its artefact at `out`. See the module's words."""
    options = options or MeasureOptions()
    stop = stop or threading.Event()
    if (out / "run.json").exists():
        raise LabError("this folder holds a run already", seen=out, fix="name another one")
    spec = scale(spec, rate=rate)
    if salt is None:
        salt = secrets.token_hex(8) if "salt" in spec.cache.protocol else ""
    plan = make_plan(spec, seed=seed, salt=salt)
    content = asyncio.run(_content(target, spec, plan, options.counts))
    calibration = options.calibration
    if calibration is None and options.calibrate and not plan.closed_loop:
        calibration = calibrate_client(plan.offered_rps, options=options.load)
    info = _describe(target, spec, plan, options)
    done = prepare_cache(target, spec, plan, content, options.load)
    meter = Meter(options.energy)
    meter.idle_watts = options.idle_watts
    scraper = Scraper(target.info.url, headers=bearer(target)) if options.server_metrics else None
    with ExitStack() as beside:
        beside.enter_context(meter)
        if scraper is not None:
            beside.enter_context(scraper)
        validate = options.validate or validators_of(spec.classes)
        result = run_load(target, plan, content, options.load, validate=validate, on_progress=on_progress, stop=stop)
    mark_whole(spec.classes, plan.requests, result.records)
    info.status = "partial" if result.partial else "complete"
    info.problems = result.problems
    info.created = result.started_wall
    info.window = window_of(spec, plan, result)
    info.client = _client(result.health, calibration)
    info.cache = verify_cache(done, spec, plan.requests, result.records, info.window)
    info.energy = meter.summary(result.t0_ns + info.window.start_ns, result.t0_ns + info.window.end_ns)
    rows = scraper.rows(result.t0_ns) if scraper is not None and scraper.supported else None
    return write_run(out, info, result.records, plan=plan.requests, server_metrics=rows)


async def _content(target: Target, spec: WorkloadSpec, plan: Plan, known: Counts | None) -> Content:
    async with HttpTokenCounter(target) as asked:
        counter = RememberingCounter(asked, known or Counts())
        content = Content(spec, seed=plan.seed, salt=plan.salt, counter=counter)
        await content.prepare(plan.requests)
        return content


def window_of(spec: WorkloadSpec, plan: Plan, result: LoadResult) -> Window:
    """The planned times that are measured: after the warm-up, to the end of the schedule or where it was cut short. A
    closed loop without a time ends with its last answer."""
    end_s = result.span_s if result.partial and result.span_s > 0 else plan.span_s
    end_ns = round(end_s * 1e9) if end_s > 0 else _last_ns(result.records)
    return Window(start_ns=min(round(spec.warmup_s * 1e9), end_ns), end_ns=end_ns)


def _last_ns(records: list[RequestRecord]) -> int:
    return max((r.t_close_ns for r in records), default=0)


def _describe(target: Target, spec: WorkloadSpec, plan: Plan, options: MeasureOptions) -> RunInfo:
    """All of RunInfo that is known before the load."""
    config, source = options.config, options.config_source
    told: dict[str, Any] = {}
    if not source:
        told = server_report(target)
        config = {row["name"]: row["value"] for row in told.get("options", ())}
        source = "resolved" if config else "unknown"
    server: dict[str, Any] = {
        "kind": target.info.kind,
        "version": target.info.version,
        "model": target.info.model,
        **{name: told[name] for name in _TOLD if name in told},
    }
    taken = options.fingerprint
    if taken is None:
        taken = fingerprint(target.info.url, server=server, model_path=told.get("path"))
    if options.command:
        taken = {**taken, "command": options.command}
    return RunInfo(
        name=options.name or spec.name,
        question=options.question,
        seed=plan.seed,
        salt=plan.salt,
        spec=spec_to_dict(spec),
        slo=spec.classes,
        closed_loop=plan.closed_loop,
        span_s=plan.span_s,
        target=target.info,
        config=config,
        config_source=source,
        start=options.start,
        fingerprint=taken,
    )


def server_report(target: Target) -> dict[str, Any]:
    """A paceline server's resolved configuration; {} of other servers, and where it is not for us to see."""
    if target.info.kind != "paceline":
        return {}
    url = target.info.url.rstrip("/") + "/v1/internal/config"
    try:
        answer = httpx.get(
            url, headers=bearer(target), timeout=10.0, verify=target.ssl_context() or True, trust_env=False
        )
        body = answer.json() if answer.status_code == 200 else {}
    except (httpx.HTTPError, ValueError):
        return {}
    return body if isinstance(body, dict) else {}


def _client(health: ClientHealth, calibration: Calibration | None) -> ClientHealth:
    if calibration is None:
        return health
    return msgspec.structs.replace(health, calibrated_rps=calibration.rps, calibrated_lag_p99_ms=calibration.lag_p99_ms)
