from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.pure.lab.workload.specs import spec_of
from tests.pure.lab.workload.traces import samples
from tests.pure.lab.workload.traces.samples import saved, servegen

from paceline.errors import ConfigError
from paceline.lab.workload import Content, WordCounter, expected_hit, load_spec, make_plan, offered_rps, scale
from paceline.lab.workload.content.counter import texts_of
from paceline.lab.workload.traces.rows import RecordedTrace, TraceRows, by_time


def _stream(path: Path, **arrival: Any) -> dict[str, Any]:
    return {"arrival": {"kind": "trace", "file": str(path), **arrival}, "input": None, "output": None}


def _long(folder: Path) -> Path:
    """400 requests in bursts of one to five, ten seconds apart on average."""
    rng = np.random.default_rng(1)
    at, rows = 0.0, ["Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"]
    for i in range(400):
        at += 0.0 if rng.random() < 0.6 else float(rng.exponential(25))
        rows.append(f"{at:.3f},m,{10 + i % 90},{1 + i % 20},0,API log")
    return saved(folder, "long.csv", "\n".join(rows))


def test_lengths_and_times_are_the_traces(tmp_path: Path) -> None:
    plan = make_plan(spec_of(_stream(saved(tmp_path, "a.csv", samples.AZURE_2023), scale=1.0), duration_s=2.5))
    assert [(round(r.at_s or 0, 3), r.num_input_tokens, r.num_output_tokens) for r in plan.requests] == [
        (0.0, 4808, 10),
        (0.252, 3180, 8),
        (2.0, 110, 27),
        (2.0, 7433, 14),
    ]


@pytest.mark.parametrize("scaling", [{"scale": 4.0}, {"scale": 0.5}, {"rate": 3.0}, {"rate": 0.2}])
def test_scaling_keeps_order_and_burst_shape(tmp_path: Path, scaling: dict[str, float]) -> None:
    path = _long(tmp_path)
    slow = make_plan(spec_of(_stream(path, scale=1.0), duration_s=3000)).requests
    fast = make_plan(spec_of(_stream(path, **scaling), duration_s=60)).requests
    assert len(fast) > 5
    before = np.asarray([r.at_s for r in slow[: len(fast)]])
    after = np.asarray([r.at_s for r in fast])
    assert [r.num_input_tokens for r in fast] == [r.num_input_tokens for r in slow[: len(fast)]]
    factor = scaling.get("scale") or before[-1] / after[-1]
    assert np.allclose(after * factor, before, atol=1e-6)


def test_a_rate_is_met_over_the_span(tmp_path: Path) -> None:
    for rate in (0.5, 2.0, 5.0):
        spec = spec_of(_stream(_long(tmp_path), rate=rate), duration_s=60)
        assert len(make_plan(spec).requests) == pytest.approx(rate * 60, abs=5)  # a burst may straddle the end
        assert offered_rps(scale(spec, rate=1.0)) == 1.0
    scaled = scale(spec_of(_stream(_long(tmp_path), scale=2.0), duration_s=60), rate=1.0)
    assert offered_rps(scaled) == pytest.approx(1.0, rel=0.5)


def test_a_start_skips_what_came_before(tmp_path: Path) -> None:
    plan = make_plan(
        spec_of(_stream(saved(tmp_path, "m.jsonl", samples.MOONCAKE), scale=1.0, start_s=2.0), duration_s=8)
    )
    assert [r.at_s for r in plan.requests] == [1.0, 7.0]


def test_a_trace_that_is_too_short_says_what_it_has(tmp_path: Path) -> None:
    path = _long(tmp_path)
    with pytest.raises(ConfigError, match=r"too short.*seen: 400 requests.*expected: 600"):
        make_plan(spec_of(_stream(path, rate=10.0), duration_s=60))
    with pytest.raises(ConfigError, match="too short"):
        make_plan(spec_of(_stream(path, scale=1.0), duration_s=10**6))
    with pytest.raises(ConfigError, match="not both"):
        spec_of(_stream(path, scale=1.0, rate=2.0))
    with pytest.raises(ConfigError, match="format is not known"):
        spec_of(_stream(path, format="azur"))


def test_own_lengths_replace_the_traces(tmp_path: Path) -> None:
    stream = {**_stream(saved(tmp_path, "m.jsonl", samples.MOONCAKE), scale=1.0), "input": 50, "output": 5}
    plan = make_plan(spec_of(stream, duration_s=8))
    assert {(r.num_input_tokens, r.num_output_tokens, r.shared) for r in plan.requests} == {(50, 5, ())}


def test_a_trace_without_lengths_needs_those_of_the_stream(tmp_path: Path) -> None:
    arrival = {"kind": "trace", "file": str(servegen(tmp_path, lengths=False)), "rate": 2.0}
    bare = load_spec({"duration_s": 20, "stream": [{"arrival": arrival, "input": 40}]})
    with pytest.raises(ConfigError, match="no output lengths"):
        make_plan(bare)
    whole = load_spec({"duration_s": 20, "stream": [{"arrival": arrival, "input": 40, "output": 7}]})
    assert {(r.num_input_tokens, r.num_output_tokens) for r in make_plan(whole).requests} == {(40, 7)}


def test_blocks_become_shared_text(tmp_path: Path) -> None:
    """Equal ids at the front are equal words at the front, scaled with the lengths."""
    stream = _stream(saved(tmp_path, "m.jsonl", samples.MOONCAKE), scale=1.0, length_scale=0.25)
    spec = spec_of(stream, duration_s=9.5)
    plan = make_plan(spec)
    assert [(r.num_input_tokens, r.shared, r.num_shared_tokens) for r in plan.requests] == [
        (300, (0, 1, 2), 128),
        (225, (0, 3), 128),
        (275, (0, 1, 4), 128),
        (75, (5,), 128),
    ]
    content = Content(spec, 0, "s", WordCounter())
    asyncio.run(content.prepare(plan.requests))
    first, second, third, fourth = (" ".join(texts_of(content.render(r))).split() for r in plan.requests)
    assert [len(p) for p in (first, second, third, fourth)] == [300, 225, 275, 75]
    assert first[:256] == third[:256]
    assert first[:128] == second[:128]
    assert first[256:264] != third[256:264]
    assert fourth[:4] != first[:4]
    assert expected_hit(plan.requests, block_tokens=128) == (128 + 256) / (300 + 225 + 275 + 75)


def test_servegen_is_replayed_at_the_asked_rate(tmp_path: Path) -> None:
    spec = spec_of(_stream(servegen(tmp_path), rate=20.0, start_s=1200), duration_s=30)
    plan = make_plan(spec, seed=4)
    assert len(plan.requests) == pytest.approx(600, rel=0.2)
    assert {(r.num_input_tokens, r.num_output_tokens) for r in plan.requests} == {(900, 80)}
    assert plan == make_plan(spec, seed=4)
    rates = spec_of({**_stream(servegen(tmp_path, lengths=False), rate=5.0, start_s=600), "input": 9, "output": 3})
    assert {r.num_input_tokens for r in make_plan(rates).requests} == {9}


@given(st.lists(st.floats(0, 100), min_size=1, max_size=40), st.floats(0, 50), st.floats(0.1, 100))
def test_parts_of_a_trace_are_counted_right(times: list[float], start: float, length: float) -> None:
    trace = RecordedTrace(by_time(TraceRows(np.asarray(times), None, None)))
    rows = trace.rows(start, length)
    assert all(0 <= at < length for at in rows.at_s)
    shifted = np.sort(times) - min(times)
    assert len(rows) == np.sum((shifted >= start) & (shifted < start + length))
