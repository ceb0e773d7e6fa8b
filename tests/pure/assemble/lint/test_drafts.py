"""PL106: speculation with every row taken, predicted and simulated; fewer drafts are faster."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.pure.assemble.lint.kit import Case, numbers
from tests.pure.lab.metrics.logs import info, steady_log
from tests.pure.planner.lint.worlds import found, stored

from paceline.assemble.lint import serving_of
from paceline.assemble.lint.stored import run_facts
from paceline.contracts.lint import Severity
from paceline.contracts.workload import SloClass

SETTINGS = {"model": "llama-3.1-8b", "max_model_len": 4096, "max_num_seqs": 256}
CURVE = (1.4, 1.5, 1.52)
FULL = {"kind": "poisson", "rate": 20_000.0}
FEW = {"kind": "closed", "slots": 4}


def case(folder: Path, arrival: dict[str, Any], num: int, curve: tuple[float, ...] = CURVE) -> Case:
    stream = {"arrival": arrival, "input": 64, "output": 16}
    load = {"num_requests": num, "slo": {"default": {"e2e_s": 2.0}}, "stream": [stream]}
    return Case(folder, SETTINGS, load, serving=serving_of(acceptance=curve))


def test_drafts_on_a_full_device_cost_more_than_they_bring_and_fewer_do_not(tmp_path: Path) -> None:
    full = case(tmp_path, FULL, 256)
    predicted, measured = full.predicted("PL106"), full.measured("PL106")
    for finding in (predicted, measured.finding):
        assert finding is not None
        seen = numbers(finding)
        assert seen["positions of a step"] > seen["positions at which reading and computing are even"]
        assert seen["tokens per second, with over without"] < 0.95
        assert finding.fix.fleet == {"speculative": "1.4"}
    assert measured.finding is not None
    told = numbers(measured.finding)["tokens that a step brings a row"]  # by the records
    assert told == pytest.approx(1.5, rel=0.1)
    fewer = case(tmp_path, FULL, 256, CURVE[:1])
    assert fewer.predicted("PL106") is None
    after = fewer.measured("PL106", name="fewer")
    assert after.finding is None
    assert after.p50("e2e") < 0.9 * measured.p50("e2e")


@pytest.mark.parametrize(("slower", "seen"), [(1.6, 1), (0.7, 0)])
def test_a_run_with_drafts_against_the_one_without(slower: float, seen: int) -> None:
    slo = SloClass(ttft_s=0.2, tpot_s=0.012)
    before = stored(steady_log(300), info(slo, end=30_000.0, name="plain", config={"num_draft_tokens": 0}))
    log = steady_log(300, gap=10.0 * slower, ttft=50.0 * slower)
    after = stored(log, info(slo, end=30_000.0, name="drafts", config={"num_draft_tokens": 3}))
    findings = found(run_facts(after, against=(before,)), "PL106")
    assert len(findings) == seen
    for finding in findings:
        assert finding.severity is Severity.ERROR
        assert finding.fix.fleet == {"speculative": ""}
        assert "num_draft_tokens 0 -> 3" in finding.sentence


def test_drafts_for_few_rows_pay(tmp_path: Path) -> None:
    few = case(tmp_path, FEW, 32)
    assert few.predicted("PL106") is None
    plain = replace(few, serving=serving_of()).measured("PL202", name="plain")
    drafted = few.measured("PL106", against=plain.folder)
    assert drafted.finding is None
    assert drafted.p50("e2e") < plain.p50("e2e")
