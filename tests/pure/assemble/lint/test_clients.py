"""PL206 a client that is late, PL209 one that asks again: what they make of a simulated server's figures, which the
simulator knows as they are, and that the fix brings them back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.pure.assemble.lint.kit import Case, Measured, numbers, one, toml

import paceline.assemble.sim as assembled
from paceline.assemble.lint import Beside, lint_config, lint_folder
from paceline.assemble.sim import Simulated
from paceline.contracts.artefact import ClientHealth
from paceline.contracts.lint import Finding, Severity
from paceline.contracts.slo import Outcome
from paceline.contracts.workload import PlannedRequest
from paceline.lab.artefact import read_run, write_run
from paceline.lab.load.generator import WorkerStats
from paceline.lab.load.health import client_health
from paceline.lab.metrics import compute
from paceline.lab.workload import load_spec, make_plan
from paceline.sim.client import REFUSED, Client

SETTINGS: dict[str, Any] = {"model": "llama-3.1-8b", "max_model_len": 4096, "max_num_seqs": 16}
LENGTHS = {"kind": "lognormal", "p50": 60, "p99": 200}
STREAM: dict[str, Any] = {"arrival": {"kind": "poisson", "rate": 20.0}, "input": LENGTHS, "output": 8}
LOAD: dict[str, Any] = {
    "duration_s": 6.0, "drain_s": 60.0, "slo": {"default": {"ttft_s": 0.3}}, "stream": [STREAM],
}  # fmt: skip


def stored(case: Case, run: Simulated, name: str, code: str) -> Measured:
    folder = case.folder / name
    write_run(folder, run.info, run.records, plan=run.plan)
    (result,) = lint_folder(folder)
    return Measured(one(result, code), compute(run.info, run.records), folder)


def foreseen(case: Case, code: str, client: Path) -> Finding | None:
    """From the configuration and an earlier run of the client."""
    file = case.folder / "workload.toml"
    file.write_text("".join(f"{key} = {toml(value)}\n" for key, value in case.workload.items()))
    return one(lint_config(None, case.settings, Beside(device=case.card, workload=str(file), client=client)), code)


# --- PL206


def sent_by(case: Case, monkeypatch: pytest.MonkeyPatch, *, send_s: float, num_processes: int) -> Simulated:
    """By a client each of whose processes takes `send_s` to send a request, and `send_s` / 8 for each token of its
    answer; the server gets each when it is sent."""
    plan = make_plan(load_spec(case.workload), seed=0)
    free, planned, requests = [0.0] * num_processes, {}, []
    for request in sorted(plan.requests, key=lambda r: (r.at_s or 0.0, r.id)):
        assert request.at_s is not None
        planned[request.id] = request.at_s
        process = free.index(min(free))
        at_s = max(request.at_s, free[process])
        free[process] = at_s + send_s
        requests.append(msgspec.structs.replace(request, at_s=at_s))
    late = msgspec.structs.replace(plan, requests=tuple(sorted(requests, key=lambda r: r.id)))
    with monkeypatch.context() as patched:
        patched.setattr(assembled, "make_plan", lambda *_, **__: late)
        run = case.simulated()
    for record in run.records:
        record.t_plan_ns = round(planned[record.id] * 1e9)
    num_chunks = sum(len(record.chunks) for record in run.records)
    worker = WorkerStats(cpu_s=num_chunks * send_s / 8 / num_processes, wall_s=plan.span_s, num_chunks=num_chunks)
    stats = [msgspec.structs.replace(worker, num_chunks=num_chunks // num_processes)] * num_processes
    run.info.client = client_health(run.records, stats, scheduled=set(planned), span_s=plan.span_s)
    return run


def test_a_client_that_sends_late_makes_its_own_queue_the_server_s_and_more_processes_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(tmp_path, SETTINGS, LOAD)
    truth = case.measured("PL206", name="truth")
    assert truth.finding is None
    # 20 requests a second come, and one process sends 16
    slow = stored(case, sent_by(case, monkeypatch, send_s=0.06, num_processes=1), "slow", "PL206")
    assert slow.finding is not None
    assert slow.finding.severity is Severity.ERROR
    assert "--processes" in slow.finding.fix.words
    assert numbers(slow.finding)["sent"] < 0.99 * numbers(slow.finding)["planned"]
    more = stored(case, sent_by(case, monkeypatch, send_s=0.06, num_processes=8), "more", "PL206")
    assert more.finding is None
    for name in ("ttft", "e2e"):
        assert slow.p95(name) > 3 * truth.p95(name)
        assert more.p95(name) == pytest.approx(truth.p95(name), rel=0.05)
    # whether targets are met is told wrongly, and then rightly
    shares = [run.metrics.whole.attainment.value for run in (truth, slow, more)]
    assert all(share is not None for share in shares)
    assert shares[0] == shares[2] == 1.0
    assert (shares[1] or 0.0) < 0.8


def test_a_client_that_will_be_too_busy_is_foreseen_and_a_lower_rate_or_more_processes_clear_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(tmp_path, SETTINGS, LOAD)
    run = sent_by(case, monkeypatch, send_s=0.06, num_processes=1)
    write_run(tmp_path / "client", run.info, run.records)
    client = tmp_path / "client"
    finding = foreseen(case, "PL206", client)
    assert finding is not None
    assert finding.severity is Severity.ERROR
    assert numbers(finding)["client's processor time for each"] == pytest.approx(60_000 / 8, rel=0.01)
    rate = finding.fix.workload["rate"]
    below = {**LOAD, "stream": [{**STREAM, "arrival": {"kind": "poisson", "rate": rate}}]}
    assert foreseen(replace(case, workload=below), "PL206", client) is None
    num = int(finding.fix.words.split()[1].rstrip(","))
    fixed = sent_by(case, monkeypatch, send_s=0.06, num_processes=num)
    write_run(tmp_path / "more", fixed.info, fixed.records)
    assert foreseen(case, "PL206", tmp_path / "more") is None
    assert fixed.info.client.cpu_share_max < 0.8 < run.info.client.cpu_share_max  # of a core, as measured
    assert fixed.info.client.lag_p99_ms < 0.2 * run.info.client.lag_p99_ms


def test_an_idle_client_is_none_to_fear_and_one_that_measured_nothing_is_not_judged(tmp_path: Path) -> None:
    case = Case(tmp_path, SETTINGS, LOAD)
    run = case.simulated()
    run.info.client = ClientHealth(cpu_us_per_chunk=50.0)
    write_run(tmp_path / "idle", run.info, run.records)
    assert foreseen(case, "PL206", tmp_path / "idle") is None
    run.info.client = ClientHealth()
    write_run(tmp_path / "blind", run.info, run.records)
    file = str(tmp_path / "workload.toml")
    for client, words in ((tmp_path / "blind", "their time"), (None, "--client")):
        result = lint_config(None, SETTINGS, Beside(device=case.card, workload=file, client=client))
        assert words in result.skipped["PL206"]


# --- PL209


class Retrying(Client):
    """Asks again, as an SDK does by default: twice, here a second and a half after a refusal."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._tries: Counter[int] = Counter()

    def ended(self, request: PlannedRequest, time: float, outcome: Outcome) -> Iterator[tuple[float, PlannedRequest]]:
        yield from super().ended(request, time, outcome)
        if outcome in REFUSED and self._tries[request.id] < 2:
            self._tries[request.id] += 1
            yield time + 1.5, request


BURST: dict[str, Any] = {
    "duration_s": 9.0, "drain_s": 60.0, "slo": {"default": {"e2e_s": 30.0}},
    "stream": [{"arrival": {"kind": "steps", "rates": [4.0, 20.0, 1.0]}, "input": LENGTHS, "output": 10}],
}  # fmt: skip
NARROW = {**SETTINGS, "max_num_seqs": 4, "max_waiting_requests": 4}


def test_retries_hide_what_the_server_refused_and_without_them_it_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(tmp_path, NARROW, BURST, "l4")
    clean = case.measured("PL209", name="clean")
    assert clean.finding is None
    records = read_run(clean.folder).records
    num = len(records)
    refused = sum(record.outcome is Outcome.REJECTED for record in records)
    truth = 1 - refused / num  # of those who ask, and of what this server takes
    assert 0.2 < truth < 0.9
    assert clean.metrics.whole.attainment.value == pytest.approx(truth)

    with monkeypatch.context() as patched:
        patched.setattr("paceline.sim.fleet.Client", Retrying)
        run = case.simulated()
    retried = stored(case, run, "retried", "PL209")
    assert retried.finding is not None
    assert retried.finding.severity is Severity.ERROR
    assert "max_retries = 0" in retried.finding.fix.words
    # as an SDK tells it: each request once, by its last attempt
    last = {record.id: record.outcome for record in sorted(run.records, key=lambda r: r.t_send_ns)}
    assert len(last) == num
    told = sum(outcome is Outcome.OK for outcome in last.values()) / num
    assert told > truth + 0.1
    # and the load was another one than was planned
    assert len(run.records) > 1.2 * num
    assert numbers(retried.finding)["records"] == len(run.records)
    assert retried.metrics.whole.attainment.value != pytest.approx(truth, abs=0.05)

    # the same client is foreseen, and the one that did not retry is not
    finding = foreseen(case, "PL209", retried.folder)
    assert finding is not None
    assert finding.severity is Severity.WARNING
    assert numbers(finding)["requests sent more than once, earlier"] > 0
    assert foreseen(case, "PL209", clean.folder) is None
