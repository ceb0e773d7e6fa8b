"""The folder of a run, and what can be had from it again.

    run.json                 RunInfo: everything that is not a record
    requests.jsonl.gz        one RequestRecord a line, as they ended
    plan.jsonl.gz            one PlannedRequest a line (optional)
    server_metrics.jsonl.gz  the server's own numbers over time (optional)
    metrics.json             compute(run.json, requests.jsonl.gz), byte for byte
    verdict.json             the gates' answer (optional)
    report.html, log.txt     for a person (written by others)

A folder without metrics.json, or with records that end in the middle, is what a crash while writing leaves: a partial
artefact, and still valid. JSON files are replaced whole, never half written.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from paceline.contracts.artefact import RequestRecord, RunInfo, Verdict
from paceline.contracts.metrics import RunMetrics
from paceline.contracts.workload import PlannedRequest
from paceline.errors import LabError
from paceline.lab.artefact.encode import canonical
from paceline.lab.artefact.lines import LineReader, LineWriter
from paceline.lab.metrics import compute

RUN, REQUESTS, PLAN, SERVER_METRICS = "run.json", "requests.jsonl.gz", "plan.jsonl.gz", "server_metrics.jsonl.gz"
METRICS, VERDICT, REPORT, LOG = "metrics.json", "verdict.json", "report.html", "log.txt"
VERSION = 1
_MAX_JSON_BYTES = 256 << 20

T = TypeVar("T")


class StoredRun(msgspec.Struct, kw_only=True):
    """One run as it lies on disk."""

    path: Path
    info: RunInfo
    records: list[RequestRecord]
    metrics: RunMetrics
    server_metrics: list[dict[str, Any]] = []
    verdict: Verdict | None = None


def write_run(
    path: Path | str,
    info: RunInfo,
    records: Sequence[RequestRecord],
    *,
    plan: Sequence[PlannedRequest] | None = None,
    server_metrics: Iterable[dict[str, Any]] | None = None,
    verdict: Verdict | None = None,
) -> StoredRun:
    """Writes a run's folder and returns it as `read_run` would.

    The metrics are computed from `info` as it reads back (its floats are rounded), so `recompute` gives equal bytes.
    """
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    head = canonical(info)
    again = msgspec.json.decode(head, type=RunInfo)
    ordered = sorted(records, key=lambda r: r.id)
    _replace(folder / RUN, head)
    _replace_lines(folder / REQUESTS, ordered)
    if plan is not None:
        _replace_lines(folder / PLAN, plan)
    scraped = None if server_metrics is None else list(server_metrics)
    if scraped is not None:
        _replace_lines(folder / SERVER_METRICS, scraped)
    if verdict is not None:
        write_verdict(folder, verdict)
    metrics = canonical(compute(again, ordered))
    _replace(folder / METRICS, metrics)
    return StoredRun(
        path=folder,
        info=again,
        records=ordered,
        metrics=msgspec.json.decode(metrics, type=RunMetrics),
        server_metrics=scraped or [],
        verdict=verdict,
    )


def write_verdict(path: Path | str, verdict: Verdict) -> None:
    _replace(Path(path) / VERDICT, canonical(verdict))


def read_run(path: Path | str) -> StoredRun:
    """Reads a folder. Without metrics.json (an interrupted run) they are computed. LabError for what is no run."""
    folder = Path(path)
    info, records = _read(folder)
    stored = folder / METRICS
    server = folder / SERVER_METRICS
    verdict = folder / VERDICT
    return StoredRun(
        path=folder,
        info=info,
        records=records,
        metrics=_decode(stored, RunMetrics) if stored.exists() else compute(info, records),
        server_metrics=list(LineReader(server, dict[str, Any])) if server.exists() else [],
        verdict=_decode(verdict, Verdict) if verdict.exists() else None,
    )


def read_plan(path: Path | str) -> list[PlannedRequest]:
    """The requests that were planned; empty where the run did not keep them."""
    file = Path(path) / PLAN
    return list(LineReader(file, PlannedRequest)) if file.exists() else []


def recompute(path: Path | str) -> bytes:
    """metrics.json again, from run.json and the records alone."""
    return canonical(compute(*_read(Path(path))))


def is_intact(path: Path | str) -> bool:
    """metrics.json is what its records give."""
    stored = Path(path) / METRICS
    return stored.exists() and stored.read_bytes() == recompute(path)


def _read(folder: Path) -> tuple[RunInfo, list[RequestRecord]]:
    if not (folder / RUN).is_file():
        raise LabError(f"{folder} is no run", seen="no run.json", expected="a folder that `paceline bench` wrote")
    info = _decode(folder / RUN, RunInfo)
    if info.version > VERSION:
        raise LabError(
            f"{folder} was written by a newer paceline", seen=f"version {info.version}", expected=f"at most {VERSION}"
        )
    requests = folder / REQUESTS
    reader = LineReader(requests, RequestRecord)
    records = list(reader) if requests.exists() else []
    if reader.cut or not requests.exists():
        info.status = "partial"
    return info, records


def _decode(path: Path, kind: type[T]) -> T:
    if path.stat().st_size > _MAX_JSON_BYTES:
        raise LabError(f"{path} is too large", seen=f"{path.stat().st_size} bytes", expected=f"{_MAX_JSON_BYTES}")
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except msgspec.MsgspecError as error:
        raise LabError(
            f"{path} cannot be read", seen=str(error), expected=f"a {kind.__name__}", fix="restore it, or run again"
        ) from None


def _replace(path: Path, content: bytes) -> None:
    """All or nothing, even if the machine stops."""
    fresh = path.with_name(path.name + ".new")
    with fresh.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)


def _replace_lines(path: Path, values: Iterable[Any]) -> None:
    fresh = path.with_name(path.name + ".new")
    fresh.unlink(missing_ok=True)
    with LineWriter(fresh) as lines:
        lines.extend(values)
    fresh.replace(path)
