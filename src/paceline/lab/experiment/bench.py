"""A benchmark: one server, one workload or the whole matrix, each measured once and judged by its gates.

    with the_server(url or launch) as target:
        results = run_bench(target, specs, seed=0, out=folder)

One workload leaves its run in `out` itself; several leave one folder each and `matrix.json` beside them, written anew
after each, so that an interrupted matrix is a valid one. An experiment with repeats and a verdict between
configurations is `runner`'s; two stored runs are compared by `lab.artefact`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from paceline.contracts.artefact import Answer, Caution, Verdict
from paceline.contracts.slo import Outcome
from paceline.errors import LabError, PacelineError
from paceline.lab.artefact import StoredRun, canonical, read_plan, write_verdict
from paceline.lab.experiment.counts import Counts
from paceline.lab.experiment.measure import MeasureOptions, measure
from paceline.lab.experiment.process import Launch, OwnedServer
from paceline.lab.gates import Evidence, GateSpec, evaluate
from paceline.lab.gates.spec import GoodputGate, TpotGate, TtftGate
from paceline.lab.load import Progress, Target, probe
from paceline.lab.workload import WorkloadSpec

MATRIX_FILE = "matrix.json"
DEFAULT_GATES = GateSpec(ttft=TtftGate(required=False), tpot=TpotGate(required=False), goodput=GoodputGate())
"""Each class's own targets, at the share that it asks for; a class without one is not measured, which passes by."""
_RESULTS = ("run.json", MATRIX_FILE, "experiment.json")


class MatrixRow(msgspec.Struct, frozen=True, kw_only=True):
    """One workload of the matrix, as its run says."""

    name: str
    description: str = ""
    path: str = ""  # of the run, below the matrix's folder
    status: str = "ok"  # ok, partial, failed
    reason: str = ""  # why it failed
    answer: Answer = Answer.NOT_MEASURED
    sentence: str = ""
    figures: dict[str, Any] = {}  # name -> value: what a table shows
    cautions: tuple[Caution, ...] = ()


class MatrixResult(msgspec.Struct, frozen=True, kw_only=True):
    version: int = 1
    server: str = ""
    model: str = ""
    created: str = ""
    status: str = "complete"  # or partial: the rows are those that were measured
    rows: tuple[MatrixRow, ...] = ()


@contextmanager
def the_server(
    where: str | Launch, *, log: Path | None = None, on_phase: Callable[[str], None] | None = None, **keys: Any
) -> Iterator[tuple[Target, dict[str, Any]]]:
    """A server that is there (its URL), or one that is started for this and ended afterwards. Yields the target and how
    its start went ({} of a server that was there). `keys`: as `probe` takes them."""
    if isinstance(where, str):
        yield asyncio.run(probe(where, **keys)), {}
        return
    assert log is not None, "a server of our own writes a log"
    with OwnedServer(where, log) as server:
        phases = server.wait_ready(on_phase)
        start = {name: value for name, value in msgspec.to_builtins(phases).items() if value not in (None, {})}
        yield asyncio.run(probe(server.url, **keys)), {"kind": "warm", **start}


def refuse_used(out: Path) -> None:
    """LabError for a folder with results: nothing that was measured is written over."""
    for name in _RESULTS:
        if (out / name).exists():
            raise LabError("this folder holds results already", seen=out / name, fix="name another one")


def run_bench(
    target: Target,
    specs: Sequence[WorkloadSpec],
    *,
    seed: int,
    out: Path,
    rate: float | None = None,
    options: MeasureOptions | None = None,
    gates: GateSpec | None = None,
    on_begin: Callable[[WorkloadSpec, int], None] = lambda _spec, _number: None,
    on_progress: Callable[[Progress], None] | None = None,
    on_end: Callable[[StoredRun], None] = lambda _run: None,
    on_failed: Callable[[WorkloadSpec, PacelineError], None] = lambda _spec, _error: None,
    stop: threading.Event | None = None,
) -> list[StoredRun]:
    """Measures every spec in order; the runs that were measured. A workload that cannot be is written down as failed
    and the next one is tried, unless it is the only one: then LabError or ConfigError is raised, as for a folder with
    results. `stop` ends after what is under way."""
    options, stop = options or MeasureOptions(), stop or threading.Event()
    options = msgspec.structs.replace(options, counts=options.counts or Counts())  # counted once for all of them
    single = len(specs) == 1
    folders = [out if single else out / spec.name for spec in specs]
    for folder in dict.fromkeys((out, *folders)):
        refuse_used(folder)
    runs: list[StoredRun] = []
    rows: list[MatrixRow] = []
    for number, (spec, folder) in enumerate(zip(specs, folders, strict=True), 1):
        if stop.is_set():
            break
        on_begin(spec, number)
        named = msgspec.structs.replace(options, name=options.name if single and options.name else spec.name)
        try:
            run = measure(
                target, spec, seed=seed, out=folder, rate=rate, options=named, on_progress=on_progress, stop=stop
            )
        except PacelineError as error:
            if single:
                raise
            rows.append(_failed(spec, error))
            on_failed(spec, error)
        else:
            run.verdict = judged(run, gates or DEFAULT_GATES)
            write_verdict(folder, run.verdict)
            runs.append(run)
            rows.append(_row(spec, run, out))
            on_end(run)
        if not single:
            whole = len(rows) == len(specs) and all(row.status != "partial" for row in rows)
            _write_matrix(target, runs, rows, out, whole=whole)
    return runs


def judged(run: StoredRun, gates: GateSpec) -> Verdict:
    """The gates' answer on one run."""
    return evaluate(Evidence(runs=[run]), gates)


def error_share(run: StoredRun) -> float:
    """Requests that ended badly, of all but those that the client ended because the workload says so. A time-out that
    nobody planned is the server's."""
    planned = {request.id for request in read_plan(run.path) if request.faults.timeout_s is not None}
    left = (Outcome.CLIENT_CANCEL, Outcome.DISCONNECT)
    counted = [
        record.outcome
        for record in run.records
        if record.outcome not in left and not (record.outcome is Outcome.TIMEOUT and record.id in planned)
    ]
    return sum(outcome is not Outcome.OK for outcome in counted) / len(counted) if counted else 0.0


def read_matrix(folder: Path) -> MatrixResult:
    """Raises LabError where there is none."""
    try:
        return msgspec.json.decode((folder / MATRIX_FILE).read_bytes(), type=MatrixResult)
    except (OSError, msgspec.DecodeError) as error:
        raise LabError(
            "this is no folder of a matrix", seen=str(error), expected=f"{MATRIX_FILE} in {folder}"
        ) from None


def _failed(spec: WorkloadSpec, error: PacelineError) -> MatrixRow:
    reason = error.message if error.seen is None else f"{error.message}: {error.seen}"
    return MatrixRow(
        name=spec.name, description=spec.description, status="failed", reason=reason[:300], answer=Answer.INVALID
    )


def _row(spec: WorkloadSpec, run: StoredRun, out: Path) -> MatrixRow:
    whole = run.metrics.whole
    figures: dict[str, Any] = {
        "num_requests": whole.num_requests,
        "offered_rps": run.metrics.offered_rps,
        "goodput_rps": whole.goodput_rps.value,
        "attainment": whole.attainment.value,
        "output_tokens_per_s": run.metrics.output_tokens_per_s.value,
        "prefix_hit": whole.prefix_hit.value,
        "outcomes": whole.outcomes,
    }
    for name in ("ttft", "tpot", "e2e"):
        if (found := whole.latency.get(name)) is not None:
            figures[f"{name}_p50_s"], figures[f"{name}_p95_s"] = found.p50.value, found.p95.value
    assert run.verdict is not None
    return MatrixRow(
        name=spec.name,
        description=spec.description,
        path=str(run.path.relative_to(out)),
        status="ok" if run.info.status == "complete" else "partial",
        answer=run.verdict.answer,
        sentence=run.verdict.sentence,
        figures=figures,
        cautions=run.metrics.cautions,
    )


def _write_matrix(
    target: Target, runs: Sequence[StoredRun], rows: Sequence[MatrixRow], out: Path, *, whole: bool
) -> None:
    """All or nothing."""
    result = MatrixResult(
        server=f"{target.info.kind} {target.info.version}".strip(),
        model=target.info.model,
        created=runs[0].info.created if runs else "",
        status="complete" if whole else "partial",
        rows=tuple(rows),
    )
    out.mkdir(parents=True, exist_ok=True)
    fresh = out / f"{MATRIX_FILE}.new"
    fresh.write_bytes(canonical(result))
    fresh.replace(out / MATRIX_FILE)
