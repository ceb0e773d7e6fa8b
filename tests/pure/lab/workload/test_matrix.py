"""The named workloads, for a slow server with little context, the default one, and a fast one."""

from __future__ import annotations

import pytest

from paceline.errors import ConfigError
from paceline.lab.workload import MATRIX, TargetSize, load_spec, make_plan, named, offered_rps, spec_to_dict

NAMES = [
    *("short-short", "long-short", "short-long", "long-long", "prefix-high", "prefix-low", "rag", "agent"),
    *("batch-prefix", "steady", "burst", "periodic", "stream", "non-stream", "tenants", "tools", "structured"),
    *("cancel", "timeout", "disconnect", "multi-turn"),
]
SIZES = {
    "tiny": TargetSize(max_model_len=512, ttft_s=0.5, tpot_s=0.05),
    "small": TargetSize(),
    "fast": TargetSize(max_model_len=32768, ttft_s=0.03, tpot_s=0.008, parallel=64),
}


def test_the_matrix_has_every_name_in_order_with_a_description() -> None:
    assert list(MATRIX) == NAMES
    assert all(10 < len(text) < 80 for text in MATRIX.values())
    assert [spec.name for spec in named("matrix")] == NAMES


def test_an_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean long-short"):
        named("long-shrt")


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", NAMES)
def test_every_workload_fits_every_server(name: str, size: str) -> None:
    target = SIZES[size]
    (spec,) = named(name, target)
    assert load_spec(spec_to_dict(spec)) == spec
    assert spec.description == MATRIX[name]
    plan = make_plan(spec, seed=5)
    assert plan.num_cut == 0, "a named workload is made to fit, not cut"
    assert len(plan.requests) >= 40
    assert len(plan.requests) <= 64 * 1.6 or plan.span_s <= 31
    for stream in spec.streams:
        assert spec.slo[stream.slo_class]
    if not plan.closed_loop:
        mean_in = sum(r.num_input_tokens for r in plan.requests) / len(plan.requests)
        mean_out = sum(r.num_output_tokens for r in plan.requests) / len(plan.requests)
        assert offered_rps(spec) < 1.3 * target.capacity_rps(mean_in, mean_out)


def test_rates_suit_a_small_cpu_server() -> None:
    rates = {spec.name: offered_rps(spec) for spec in named("matrix") if spec.duration_s}
    assert all(0.2 < rate < 3 for rate in rates.values()), rates
    assert 1 < rates["short-short"] < 2


def test_what_makes_each_workload_its_own() -> None:
    plans = {spec.name: make_plan(spec, seed=2) for spec in named("matrix")}

    def mean(name: str, field: str) -> float:
        return sum(getattr(r, field) for r in plans[name].requests) / len(plans[name].requests)

    assert mean("long-short", "num_input_tokens") > 4 * mean("short-short", "num_input_tokens")
    assert mean("short-long", "num_output_tokens") > 4 * mean("short-short", "num_output_tokens")
    assert mean("prefix-high", "num_prefix_tokens") > 0.7 * mean("prefix-high", "num_input_tokens")
    assert mean("prefix-low", "num_prefix_tokens") < 0.15 * mean("prefix-low", "num_input_tokens")
    assert all(len(r.shared) == 3 for r in plans["rag"].requests)
    assert max(r.turn for r in plans["agent"].requests) == 5
    assert {r.prefix_group for r in plans["agent"].requests if r.turn == 0} == {0}
    assert plans["batch-prefix"].closed_loop
    assert len({r.at_s for r in plans["burst"].requests}) < len(plans["burst"].requests) / 4
    assert not any(r.streamed for r in plans["non-stream"].requests)
    assert {r.tenant for r in plans["tenants"].requests} == {"gold", "silver", "bronze"}
    assert {r.content for r in plans["tools"].requests} == {"tools"}
    assert {r.content for r in plans["structured"].requests} == {"structured"}
    assert any(r.faults.cancel_after_tokens for r in plans["cancel"].requests)
    assert any(r.faults.timeout_s for r in plans["timeout"].requests)
    assert any(r.faults.disconnect_after_s for r in plans["disconnect"].requests)
    assert 1 <= max(r.turn for r in plans["multi-turn"].requests) <= 4


def test_the_asked_number_of_requests_sets_the_length() -> None:
    short, long = named("steady", num_requests=60)[0], named("steady", num_requests=600)[0]
    assert long.duration_s == pytest.approx(10 * (short.duration_s or 0), rel=0.01)
    assert offered_rps(long) == offered_rps(short)
