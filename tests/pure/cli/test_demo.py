"""The demo's numbers from timelines, what it calls a failure, and the command line of its server."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from paceline.cli.demo_ladder import (
    BASE,
    LEAST_SHARED,
    MOST_SHARED,
    OUTPUT,
    OWN,
    shared_options,
    shared_tokens,
    write_ladder,
)
from paceline.cli.demo_load import demo_load
from paceline.cli.demo_predict import Foretold, choice
from paceline.cli.demo_report import problems, render, summarise
from paceline.config import full_table, load_config
from paceline.contracts.slo import Outcome, Timeline
from paceline.lab.experiment import load_experiment
from paceline.lab.experiment.runner import check_experiment
from paceline.lab.workload import TargetSize, load_spec, make_plan

ENGINE: dict[str, Any] = {
    "kv": {
        "hit_tokens": 50,
        "query_tokens": 200,
        "miss_reasons": {"first": 3},
        **dict.fromkeys(("total", "free"), 100),
        **dict.fromkeys(("cached", "held", "limbo"), 0),
    },
    "saved_prefill_ms": 1500.0,
    "num_preemptions": 0,
}


def lines_of(ttft_s: float, outcome: Outcome = Outcome.OK) -> dict[int, list[Timeline]]:
    """One timeline for each choice of the load: tokens 0.1 s apart."""
    found = {}
    for index, job in enumerate(demo_load()):
        chunks = [(job.at_s + ttft_s + 0.1 * i, 1) for i in range(5)]
        ends = Outcome.CLIENT_CANCEL if job.cancel_after else outcome
        line = Timeline(planned=job.at_s, arrival=job.at_s, chunks=chunks, end=chunks[-1][0], outcome=ends)
        found[index] = [line] * job.n
    return found


def test_a_load_within_its_targets_is_all_good() -> None:
    summary = summarise(demo_load(), lines_of(0.5), ENGINE)
    assert summary["calls"] >= 60
    assert summary["cancelled"] == 1
    assert summary["good_share"] == 1.0
    assert summary["goodput_per_s"] == pytest.approx(summary["sequences"] / summary["window_s"])
    assert summary["all"]["ttft_s"]["p95"] == pytest.approx(0.5)
    assert summary["all"]["tpot_s"]["p50"] == pytest.approx(0.1)
    assert summary["by_kind"]["long"]["ttft_s"]["p95"] is None  # too few to say
    assert summary["prefix_hit_rate"] == 0.25
    assert problems(summary) == []
    text = "\n".join(render(summary))
    assert "100% met TTFT <= 2 s" in text
    assert "25% of prompt tokens hit" in text


def test_late_answers_are_not_good_and_no_failure() -> None:
    summary = summarise(demo_load(), lines_of(2.5), ENGINE)
    assert summary["goodput_per_s"] == 0.0
    assert problems(summary) == []


def test_what_went_wrong_is_named() -> None:
    engine = {**ENGINE, "kv": {**ENGINE["kv"], "hit_tokens": 0, "held": 3}}
    wrong = "; ".join(problems(summarise(demo_load(), lines_of(0.5, Outcome.STREAM_ERROR), engine)))
    for words in ("sequences failed", "no prompt found its prefix", "3 KV blocks are still held"):
        assert words in wrong


def test_only_what_was_set_is_shared_by_all_configurations() -> None:
    options = {"max_num_seqs": 3, "enable_prefix_caching": False, "profile": "batch", "watermark": 0.25}
    assert shared_options(load_config(flags=options)) == options
    assert shared_options(load_config()) == {}


@pytest.mark.parametrize("calls", [8, 24, 64])
def test_every_kind_of_call_comes_whatever_their_number(calls: int) -> None:
    jobs = demo_load(num_calls=calls)
    assert len(jobs) == calls
    assert {job.kind for job in jobs} == {"shared prefix", "short", "long", "two choices", "sampled", "cancelled"}


def test_every_call_fits_the_served_length() -> None:
    """The texts have 3.9 characters a token in the embedded model's vocabulary; the template adds a few tokens."""
    for seed in range(20):
        for job in demo_load(seed):
            characters = sum(len(message["content"]) for message in job.messages)
            assert characters / 3.6 + 40 + job.max_tokens < BASE["max_model_len"]


def test_the_ladder_is_a_valid_experiment_whose_targets_follow_from_the_machine(tmp_path: Path) -> None:
    size = TargetSize(ttft_s=0.4, ttft_tokens=128, tpot_s=0.02, parallel=4.0, max_model_len=2048)
    file = write_ladder(size, 2.0, {"model": "a model", "dtype": "float32"}, tmp_path)
    mean_input = 32 + shared_tokens(size) // 2
    loaded = load_experiment(file)
    check_experiment(loaded, known_groups={name: option.group for name, option in full_table().items()})
    assert isinstance(loaded.workload, dict)
    targets = loaded.workload["slo"]["default"]
    assert targets["tpot_s"] == pytest.approx(2 * size.tpot_s)
    assert targets["ttft_s"] == pytest.approx(5 * size.prefill_s(mean_input), rel=0.01)
    assert loaded.spec.options_of("prefix")["enable_prefix_caching"] is True
    assert loaded.spec.options_of("base")["batching"] == "static"
    assert loaded.spec.options_of("base")["model"] == "a model"
    plan = make_plan(load_spec({**loaded.workload, "duration_s": 300.0}), seed=1, salt="")
    asked = [r.num_input_tokens for r in plan.requests]
    assert sum(asked) / len(asked) == pytest.approx(mean_input, rel=0.25)


@pytest.mark.parametrize(
    ("ttft_s", "tpot_s", "expected"),
    [
        (0.2, 0.02, 128),  # prompts are dear: an answer's share of decoding is worth 150 tokens, in steps of 64
        (0.06, 0.01, 256),  # 0.12 s of decoding at 0.47 ms a token
        (2.0, 0.01, LEAST_SHARED),
        (0.01, 0.05, MOST_SHARED),
    ],
)
def test_the_shared_prompt_is_worth_an_answer_on_any_machine(ttft_s: float, tpot_s: float, expected: int) -> None:
    size = TargetSize(ttft_s=ttft_s, ttft_tokens=128, tpot_s=tpot_s, parallel=4.0, max_model_len=2048)
    assert shared_tokens(size) == expected
    assert expected + OWN[1] + OUTPUT[1] < BASE["max_model_len"]


def foretold(node: str, rate: float, measured: float, simulated: float) -> Foretold:
    return Foretold(node, rate, {"goodput_rps": measured}, {"goodput_rps": simulated})


def test_a_wrong_choice_of_the_simulator_has_its_price() -> None:
    points = [
        foretold("base", 1.0, 1.0, 0.9),
        foretold("base", 2.0, 1.0, 1.5),
        foretold("prefix", 1.0, 0.9, 1.0),
        foretold("prefix", 2.0, 1.6, 0.8),
    ]
    assert choice(points) == ["best simulated: base; best measured: prefix; goodput regret of the choice 20.0%"]


def test_a_right_choice_costs_nothing_and_unknown_points_count_for_nothing() -> None:
    points = [foretold("base", 1.0, 1.0, math.nan), foretold("prefix", 1.0, 2.0, 1.0)]
    assert choice(points) == ["best simulated: prefix; best measured: prefix; goodput regret of the choice 0.0%"]
    assert choice(points[:1]) == []
