"""The demo's numbers from timelines, what it calls a failure, and the command line of its server."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.cli.demo_load import demo_load
from paceline.cli.demo_report import problems, render, summarise
from paceline.cli.demo_server import flags_of
from paceline.config import load_config
from paceline.contracts.slo import Outcome, Timeline

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


def test_the_servers_command_line_gives_the_configuration_again() -> None:
    options = {"max_num_seqs": 3, "enable_prefix_caching": False, "profile": "batch", "watermark": 0.25}
    config = load_config(flags=options)
    flags = flags_of(config)
    assert sorted(flags) == sorted(
        ["--profile", "batch", "--no-enable-prefix-caching", "--watermark", "0.25", "--max-num-seqs", "3"]
    )
    assert flags_of(load_config()) == []
