"""Rules about loads, sizes, starts and pairs: found in a configuration and in its simulation, and gone with the fix."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.pure.assemble.lint.kit import Case, Measured, numbers, one

from paceline.assemble.lint import Beside, lint_config, lint_folder
from paceline.assemble.lint.stored import run_facts
from paceline.lab.artefact import read_run, write_run
from paceline.planner.lint import Facts, lint
from paceline.router.scaling import ScalingPolicy

SETTINGS = {"model": "llama-3.1-8b", "max_model_len": 4096, "max_num_seqs": 16}
LOGNORMAL = {"kind": "lognormal", "p50": 60, "p99": 200}
STREAM: dict[str, Any] = {"arrival": {"kind": "poisson", "rate": 20.0}, "input": LOGNORMAL, "output": 8}
SLO = {"default": {"ttft_s": 1.0}}
CLOSED = {"kind": "closed", "slots": 4}


def case(folder: Path, stream: dict[str, Any], **load: Any) -> Case:
    size = {} if "num_requests" in load else {"duration_s": 4.0}
    return Case(folder, SETTINGS, {"slo": SLO, **size, **load, "stream": [{**STREAM, **stream}]})


def tail(run: Measured) -> float:
    """How far the slow ones are from most: one length has none but what queues make."""
    return run.p95("e2e") / run.p50("e2e")


def open_rate(run: Measured) -> float:
    """1: figures are of a given rate."""
    return float("closed_loop" not in {caution.code for caution in run.metrics.cautions})


def bound(run: Measured) -> float:
    """The share of good requests that is shown, of all that are."""
    attainment = run.metrics.whole.attainment
    assert attainment.value == 1.0
    assert attainment.lo is not None
    return attainment.lo


def together(run: Measured) -> float:
    mean = run.metrics.in_flight_mean
    assert mean is not None
    return mean


@pytest.mark.parametrize(
    ("code", "stream", "load", "shown"),
    [
        ("PL202", {"input": 64}, {}, tail),
        ("PL203", {"arrival": CLOSED}, {"num_requests": 24}, open_rate),
        ("PL204", {}, {"duration_s": 2.0}, bound),
        ("PL210", {"arrival": {**CLOSED, "slots": 1}}, {"num_requests": 12}, together),
    ],
)
def test_a_load_that_shows_little_is_found_before_and_after_and_its_fix_shows_more(
    tmp_path: Path, code: str, stream: dict[str, Any], load: dict[str, Any], shown: Callable[[Measured], float]
) -> None:
    wrong = case(tmp_path, stream, **load)
    predicted, before = wrong.predicted(code), wrong.measured(code)
    assert predicted is not None
    assert before.finding is not None
    for finding in (predicted, before.finding):
        fix = dict(finding.fix.workload)
        changed = {name: fix.pop(name) for name in ("input", "output", "arrival") if name in fix}
        right = case(tmp_path, {**stream, **changed}, **{**load, **fix})
        assert right.predicted(code) is None
        name = "predicted" if finding is predicted else "measured"
        after = right.measured(code, name=name)
        assert after.finding is None
        assert shown(after) > shown(before)


def test_a_calm_load_for_a_bursty_service(tmp_path: Path) -> None:
    trace = tmp_path / "service.jsonl"
    rows = [
        {"timestamp": 1000 * second + i, "input_length": 60, "output_length": 8, "hash_ids": []}
        for second in range(12)
        for i in range(10)
    ]
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    calm = case(tmp_path, {}, seed=3)
    file = tmp_path / "workload.toml"
    calm.predicted("PL202")  # writes it

    def judged(name: str) -> list[Any]:
        beside = Beside(device=calm.card, workload=str(file), trace=trace)
        return [
            one(lint_config(None, SETTINGS, beside), "PL211"),
            one(lint_folder(tmp_path / name, Beside(trace=trace))[0], "PL211"),
        ]

    calm.measured("PL202", name="calm")
    predicted, measured = judged("calm")
    assert predicted is not None
    assert measured is not None
    assert numbers(measured)["coefficient of variation, trace"] > 1.5
    arrival = {**measured.fix.workload["arrival"], "rate": 60.0}
    bursty = case(tmp_path, {"arrival": arrival}, seed=3)
    bursty.predicted("PL202")
    after = bursty.measured("PL202", name="bursty")
    assert judged("bursty") == [None, None]
    smooth = case(tmp_path, {"arrival": {"kind": "poisson", "rate": 60.0}}, seed=3).measured("PL202", name="smooth")
    assert after.p95("ttft") > 1.2 * smooth.p95("ttft")  # the queue that bursts make


def test_kv_planned_for_lengths_that_do_not_come(tmp_path: Path) -> None:
    """On a card of 24 GB, 5 GB are left for KV: ten sequences of 4,096 tokens, or hundreds of those that come."""
    stream = {"arrival": {"kind": "poisson", "rate": 25.0}, "input": 100, "output": 40}
    settings = {"model": "llama-3.1-8b", "max_model_len": 8192, "expected_context": 8192}
    load = {"duration_s": 3.0, "slo": SLO, "stream": [stream]}
    long = Case(tmp_path, settings, load, "l4")
    predicted, measured = long.predicted("PL102"), long.measured("PL102")
    for finding in (predicted, measured.finding):
        assert finding is not None
        assert finding.fix.options["expected_context"] <= 256
    assert predicted is not None
    short = replace(long, settings={**settings, **predicted.fix.options})
    assert short.predicted("PL102") is None
    after = short.measured("PL102", name="short")
    assert after.finding is None
    assert after.p50("ttft") < 0.5 * measured.p50("ttft")


def test_a_cold_start_beyond_the_budget_of_a_burst(tmp_path: Path) -> None:
    burst = {"kind": "steps", "rates": [0.5, 12.0, 0.5]}
    load = {"duration_s": 24.0, "drain_s": 300.0, "slo": {"default": {"ttft_s": 4.0}},
            "stream": [{"arrival": burst, "input": 400, "output": 40}]}  # fmt: skip
    slow = Case(tmp_path, {"model": "llama-3.1-8b"}, load, "l4", start_budget_s=5.0)
    scaling = ScalingPolicy(max_replicas=4, target_open=6.0, period_s=1.0)
    late = slow.measured("PL108", cold_start_s=60.0, phases={"process": 5.0, "weights": 55.0}, scaling=scaling)
    assert late.finding is not None
    assert "weights" in late.finding.sentence
    ready = slow.measured("PL108", name="ready", cold_start_s=2.0, scaling=scaling)
    assert ready.finding is None
    assert ready.p95("ttft") < 0.7 * late.p95("ttft")


def test_two_groups_of_options_changed_between_two_runs_hide_what_one_of_them_does(tmp_path: Path) -> None:
    """A prefix cache helps and one row at a time hurts more: together they say that the cache hurts."""
    stream = {"arrival": CLOSED, "input": 32, "output": 8, "prefix": {"groups": 2, "tokens": 1024}}
    load = {"num_requests": 24, "slo": SLO, "stream": [stream]}
    base = Case(tmp_path, {**SETTINGS, "enable_prefix_caching": False}, load).measured("PL202", name="base")
    both = Case(tmp_path, {**SETTINGS, "max_num_seqs": 1}, load)
    told = both.measured("PL205", name="both", against=base.folder)
    finding = told.finding
    assert finding is not None
    assert "batch" in finding.sentence
    assert finding.fix.options["max_num_seqs"] == 16
    single = replace(both, settings={**both.settings, **finding.fix.options})
    alone = single.measured("PL205", name="single", against=base.folder)
    assert alone.finding is None
    assert alone.p50("e2e") < base.p50("e2e") < told.p50("e2e")


def facts_with(folder: Path, change: Any) -> Facts:
    """A simulated run whose records another client would have left."""
    run = read_run(folder)
    change(run.records)
    other = folder.parent / "changed"
    write_run(other, run.info, run.records)
    return run_facts(read_run(other))


def test_more_hits_than_the_plan_explains_are_what_an_earlier_run_asked(tmp_path: Path) -> None:
    """A simulated server forgets between two runs; one that does not finds nearly all of each prompt."""

    def remembered(records: list[Any]) -> None:
        for record in records:
            record.cached_tokens = record.prompt_tokens - 1

    clean = case(tmp_path, {}).measured("PL201")
    assert clean.finding is None
    assert one(lint(facts_with(clean.folder, remembered)), "PL201") is not None
