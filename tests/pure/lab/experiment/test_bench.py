"""One workload and several, measured against the mock: what is stored, judged, refused and counted as failed."""

from __future__ import annotations

import asyncio
import threading

import msgspec
import pytest
from tests.fakes.lab.mock_scripts import never_answers

from paceline.contracts.artefact import Answer
from paceline.contracts.slo import Outcome
from paceline.errors import ConfigError, LabError
from paceline.lab.artefact import read_run
from paceline.lab.experiment.bench import DEFAULT_GATES, error_share, read_matrix, run_bench, the_server
from paceline.lab.experiment.counts import Counts
from paceline.lab.experiment.measure import MeasureOptions
from paceline.lab.gates import load_gate_spec
from paceline.lab.load import LoadOptions, probe
from paceline.lab.mock import Flavour, MockServer, Script
from paceline.lab.workload import load_spec

QUICK = MeasureOptions(
    load=LoadOptions(num_processes=0),
    calibrate=False,
    energy=(),
    server_metrics=False,
    fingerprint={"host": "test"},
    counts=Counts(),  # every mock counts alike: what one test counted, no other asks again
)
LOOSE = {"default": {"ttft_ms": 60_000, "tpot_ms": 60_000, "share": 0.9}}


def workload(name, arrival=None, **fields):
    stream = {"arrival": arrival or {"kind": "constant", "rate": 40}, "input": 24, "output": 2, **fields}
    return load_spec({"name": name, "description": f"the {name} one", "slo": LOOSE, "num_requests": 40,
                      "drain_s": 2, "stream": [stream]})  # fmt: skip


CLOSED = {"kind": "closed", "slots": 4}


@pytest.fixture(scope="module")
def mock():
    with MockServer(Script(flavour=Flavour.PACELINE)) as server:
        yield server


@pytest.fixture(scope="module")
def target(mock):
    with the_server(mock.url) as (target, start):
        assert start == {}
        yield target


def test_one_workload_leaves_its_run_and_its_verdict_in_the_folder(target, tmp_path):
    ended = []
    options = msgspec.structs.replace(QUICK, name="mine", command="paceline bench --url X")
    (run,) = run_bench(
        target, [workload("a", CLOSED)], seed=1, out=tmp_path / "run", options=options, on_end=ended.append
    )
    stored = read_run(tmp_path / "run")
    assert ended == [run]
    assert (stored.info.name, len(stored.records)) == ("mine", 40)
    assert stored.verdict.sentence == run.verdict.sentence
    assert {gate.gate for gate in stored.verdict.gates} == {"ttft", "tpot", "goodput"}
    assert stored.info.fingerprint == {"host": "test", "command": "paceline bench --url X"}
    assert error_share(run) == 0.0
    assert not (tmp_path / "run" / "matrix.json").exists()


def test_the_usual_gates_ask_for_the_share_of_the_class_and_for_no_base(target, tmp_path):
    (run,) = run_bench(target, [workload("a", CLOSED)], seed=1, out=tmp_path / "run", options=QUICK)
    gates = {gate.gate: gate for gate in run.verdict.gates}
    assert gates["ttft"].evidence["percentile"] == 0.9
    assert gates["goodput"].subject == "attainment of default"
    assert run.verdict.answer is not Answer.NOT_MEASURED
    assert DEFAULT_GATES.goodput.min_ratio is None


def test_gates_of_the_user_decide(target, tmp_path):
    gates = load_gate_spec({"goodput": {"min_rps": 1e6}})
    (run,) = run_bench(target, [workload("a", CLOSED)], seed=1, out=tmp_path / "run", options=QUICK, gates=gates)
    assert run.verdict.answer is Answer.FAIL


def test_a_workload_that_cannot_be_measured_is_a_row_and_the_next_one_is_tried(target, tmp_path):
    failed, out = [], tmp_path / "matrix"
    specs = [workload("closed", CLOSED), workload("open")]  # a rate cannot be given to the first
    runs = run_bench(
        target,
        specs,
        seed=1,
        out=out,
        rate=60.0,
        options=QUICK,
        on_failed=lambda spec, _error: failed.append(spec.name),
    )
    assert failed == ["closed"]
    assert [run.info.name for run in runs] == ["open"]
    found = read_matrix(out)
    assert found.status == "complete"
    row = found.rows[0]
    assert (row.name, row.status, row.answer, row.path) == (
        "closed", "failed", Answer.INVALID, "",
    )  # fmt: skip
    assert "closed loop" in found.rows[0].reason
    row = found.rows[1]
    assert (row.path, row.status, row.description) == ("open", "ok", "the open one")
    assert row.figures["num_requests"] == 40
    assert row.figures["outcomes"]["ok"] == 40
    assert read_run(out / row.path).verdict.answer is row.answer
    before = (out / "matrix.json").read_bytes()
    with pytest.raises(LabError, match="holds results already"):
        run_bench(target, specs, seed=1, out=out, options=QUICK)
    assert (out / "matrix.json").read_bytes() == before


def test_alone_it_is_an_error(target, tmp_path):
    with pytest.raises(ConfigError, match="closed loop"):
        run_bench(target, [workload("closed", CLOSED)], seed=1, out=tmp_path / "run", rate=60.0, options=QUICK)


def test_stopped_between_two_workloads_it_keeps_what_is_there(target, tmp_path):
    stop = threading.Event()
    specs = [workload(name, CLOSED) for name in ("a", "b", "c")]
    runs = run_bench(
        target, specs, seed=1, out=tmp_path / "m", options=QUICK, stop=stop, on_end=lambda _run: stop.set()
    )
    assert [run.info.name for run in runs] == ["a"]
    found = read_matrix(tmp_path / "m")
    assert (found.status, [row.name for row in found.rows]) == ("partial", ["a"])


def test_a_timeout_counts_as_a_failure_unless_the_workload_planned_it(tmp_path):
    options = msgspec.structs.replace(QUICK, load=LoadOptions(num_processes=0, timeout_s=0.2))
    with MockServer() as server:
        target = asyncio.run(probe(server.url))
        server.use(never_answers())
        quick = {"kind": "constant", "rate": 200}
        (run,) = run_bench(target, [workload("a", quick)], seed=1, out=tmp_path / "a", options=options)
        assert {record.outcome for record in run.records} == {Outcome.TIMEOUT}
        assert error_share(run) == 1.0
        impatient = workload("b", quick, faults={"timeout_share": 1.0, "timeout_s": 0.05})
        (run,) = run_bench(target, [impatient], seed=1, out=tmp_path / "b", options=options)
        assert {record.outcome for record in run.records} == {Outcome.TIMEOUT}
        assert error_share(run) == 0.0


def test_a_folder_without_a_matrix_is_an_error(tmp_path):
    with pytest.raises(LabError, match="no folder of a matrix"):
        read_matrix(tmp_path)
    (tmp_path / "matrix.json").write_text('{"rows": [{"name": "a", "answer": "splendid"}]}')
    with pytest.raises(LabError, match="no folder of a matrix"):
        read_matrix(tmp_path)
