from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.pure.lab.workload.specs import spec_of

from paceline.contracts.workload import PlannedRequest
from paceline.errors import ConfigError
from paceline.lab.workload import WorkloadSpec, make_plan, offered_rps, scale
from paceline.lab.workload.draw import zipf_weights

ARRIVALS: list[dict[str, Any]] = [
    {"kind": "constant", "rate": 3.0},
    {"kind": "poisson", "rate": 3.0},
    {"kind": "gamma", "rate": 3.0, "cv": 2.0},
    {"kind": "weibull", "rate": 3.0, "cv": 0.5},
    {"kind": "burst", "size": 9, "every_s": 4},
    {"kind": "ramp", "start": 0, "end": 5},
    {"kind": "steps", "rates": [1, 6]},
    {"kind": "periodic", "rate": 3, "period_s": 10},
    {"kind": "mmpp", "rates": [1, 9], "dwell_s": [5, 2]},
    {"kind": "closed", "slots": 3, "requests": 40},
]
LOGNORMAL = {"kind": "lognormal", "p50": 40, "p99": 200}


@st.composite
def specs(draw: st.DrawFn) -> WorkloadSpec:
    streams = []
    for i in range(draw(st.integers(1, 3))):
        arrival = draw(st.sampled_from(ARRIVALS))
        stream: dict[str, Any] = {"name": f"s{i}", "arrival": arrival, "input": LOGNORMAL, "output": LOGNORMAL}
        if draw(st.booleans()):
            stream["prefix"] = {"groups": 3, "tokens": 20, "zipf": 1.0}
        if draw(st.booleans()):
            stream["turns"] = {"max": 4, "mean": 2.0}
        if draw(st.booleans()):
            stream["faults"] = {"cancel_share": 0.2, "disconnect_share": 0.1, "timeout_s": 2}
        streams.append(stream)
    return spec_of(*streams, duration_s=draw(st.sampled_from([5, 20])), warmup_s=1, max_model_len=1024)


@given(specs(), st.integers(0, 10**9))
@settings(max_examples=15)
def test_a_plan_is_a_function_of_spec_and_seed(spec: WorkloadSpec, seed: int) -> None:
    first, again, other = make_plan(spec, seed=seed), make_plan(spec, seed=seed), make_plan(spec, seed=seed + 1)
    assert first == again
    assert [r.content_seed for r in first.requests[:9]] != [r.content_seed for r in other.requests[:9]]


@given(specs(), st.integers(0, 10**9))
@settings(max_examples=30)
def test_what_holds_for_every_plan(spec: WorkloadSpec, seed: int) -> None:
    plan = make_plan(spec, seed=seed)
    assert [r.id for r in plan.requests] == list(range(len(plan.requests)))
    scheduled = [r.at_s for r in plan.requests if r.at_s is not None]
    assert scheduled == sorted(scheduled)
    assert all(0 <= at < plan.span_s for at in scheduled)
    assert len({r.content_seed for r in plan.requests}) == len(plan.requests)
    history: dict[int | None, int] = {}
    for r in plan.requests:
        assert (r.at_s is None) == (r.turn > 0 or r.loop_slots is not None)
        assert r.num_input_tokens >= 1
        assert r.num_output_tokens >= 1
        assert r.num_prefix_tokens <= r.num_input_tokens
        assert (r.prefix_group is None) == (r.num_prefix_tokens == 0)
        before = history.get(r.session, 0) if r.turn else 0
        assert before + r.num_input_tokens + r.num_output_tokens <= 1024
        if r.session is not None:
            history[r.session] = before + r.num_input_tokens + r.num_output_tokens
        if r.faults.cancel_after_tokens is not None:
            assert 1 <= r.faults.cancel_after_tokens <= max(1, r.num_output_tokens // 2)
    _check_sessions(plan.requests)


def _check_sessions(requests: tuple[PlannedRequest, ...]) -> None:
    by_session: dict[int, list[PlannedRequest]] = {}
    for r in requests:
        if r.session is not None:
            by_session.setdefault(r.session, []).append(r)
        else:
            assert r.last_turn
            assert r.turn == 0
    for turns in by_session.values():
        assert [r.turn for r in turns] == list(range(len(turns)))
        assert [r.last_turn for r in turns] == [False] * (len(turns) - 1) + [True]
        assert len({r.stream for r in turns}) == 1


@given(specs(), st.floats(0.3, 4))
@settings(max_examples=12)
def test_a_stream_asks_the_same_at_any_rate(spec: WorkloadSpec, factor: float) -> None:
    if any(s.arrival.mean_rps(1) == 0 for s in spec.streams):
        with pytest.raises(ConfigError, match="closed loop"):
            scale(spec, rate=3.0)
        return
    scaled = scale(spec, rate=offered_rps(spec) * factor)
    assert offered_rps(scaled) == pytest.approx(offered_rps(spec) * factor)
    for stream in spec.streams:
        before = [_question(r) for r in make_plan(spec, seed=1).requests if r.stream == stream.name]
        after = [_question(r) for r in make_plan(scaled, seed=1).requests if r.stream == stream.name]
        num = min(len(before), len(after))
        assert before[:num] == after[:num]


def _question(r: PlannedRequest) -> tuple[Any, ...]:
    return (r.content_seed, r.num_input_tokens, r.num_output_tokens, r.prefix_group, r.turn, r.faults, r.streamed)


def test_a_stream_does_not_notice_another() -> None:
    alone = make_plan(spec_of({"name": "a", "input": LOGNORMAL}))
    beside = make_plan(
        spec_of({"name": "a", "input": LOGNORMAL}, {"name": "b", "arrival": {"kind": "constant", "rate": 2}})
    )
    assert [(r.at_s, *_question(r)) for r in alone.requests] == [
        (r.at_s, *_question(r)) for r in beside.requests if r.stream == "a"
    ]


def test_shares_are_honoured() -> None:
    faults = {"cancel_share": 0.3, "disconnect_share": 0.2, "timeout_share": 0.1, "timeout_s": 1.5}
    plan = make_plan(spec_of({"faults": faults}, duration_s=100))
    num = len(plan.requests)
    kinds = Counter(
        "cancel"
        if r.faults.cancel_after_tokens
        else "drop"
        if r.faults.disconnect_after_s
        else "late"
        if r.faults.timeout_s
        else "none"
        for r in plan.requests
    )
    assert kinds["cancel"] == pytest.approx(0.3 * num, abs=8)
    assert kinds["drop"] == pytest.approx(0.2 * num, abs=8)
    assert kinds["late"] == pytest.approx(0.1 * num, abs=8)
    whole = make_plan(spec_of({"streaming_share": 0.25, "faults": {"timeout_s": 9.0}}, duration_s=100))
    assert sum(r.streamed for r in whole.requests) == pytest.approx(0.25 * len(whole.requests), abs=8)
    assert all(r.faults.timeout_s == 9.0 for r in whole.requests)


def test_prefix_groups_follow_their_popularity() -> None:
    plan = make_plan(spec_of({"prefix": {"groups": 5, "tokens": 30, "zipf": 1.0}}, duration_s=600))
    counts = Counter(r.prefix_group for r in plan.requests)
    for group, weight in enumerate(zipf_weights(5, 1.0)):
        assert counts[group] == pytest.approx(weight * len(plan.requests), rel=0.2)
    assert all(r.num_input_tokens == 30 + 64 for r in plan.requests)


def test_turns_have_their_mean_and_think_time() -> None:
    plan = make_plan(spec_of({"turns": {"max": 50, "mean": 3.0, "think_s": 2.0}}, duration_s=200))
    turns = Counter(r.session for r in plan.requests)
    assert sum(turns.values()) / len(turns) == pytest.approx(3.0, rel=0.15)
    thinks = [r.think_s for r in plan.requests if r.turn]
    assert sum(thinks) / len(thinks) == pytest.approx(2.0, rel=0.15)
    assert all(r.think_s == 0 for r in plan.requests if r.turn == 0)
    fixed = make_plan(spec_of({"turns": {"max": 4, "think_s": 2.0, "think": "fixed"}}))
    assert set(Counter(r.session for r in fixed.requests).values()) == {4}
    assert {r.think_s for r in fixed.requests if r.turn} == {2.0}


def test_documents_come_from_the_pool_without_repeats() -> None:
    plan = make_plan(spec_of({"documents": {"pool": 6, "per_request": 3, "tokens": 50, "zipf": 1.0}}, duration_s=100))
    for r in plan.requests:
        assert len(set(r.shared)) == 3
        assert set(r.shared) <= set(range(6))
        assert r.num_input_tokens == 64 + 150
    popular = Counter(passage for r in plan.requests for passage in r.shared)
    assert popular[0] > popular[5]


@pytest.mark.parametrize("arrival", [a for a in ARRIVALS if a["kind"] not in ("ramp", "steps")])
def test_a_number_of_requests_is_kept_exactly(arrival: dict[str, Any]) -> None:
    for turns in ({}, {"turns": {"max": 3, "mean": 2.0}}):
        plan = make_plan(spec_of({"arrival": arrival, **turns}, duration_s=None, num_requests=37))
        assert len(plan.requests) == 37
        scheduled = [r.at_s for r in plan.requests if r.at_s is not None]
        assert all(at < plan.span_s for at in scheduled)
        assert plan.closed_loop == (arrival["kind"] == "closed")
        if arrival["kind"] == "poisson" and not turns:
            assert plan.offered_rps == pytest.approx(3.0, rel=0.5)


def test_a_closed_loop_names_its_slots_and_has_no_schedule() -> None:
    plan = make_plan(spec_of({"arrival": {"kind": "closed", "slots": 4, "requests": 10}}, duration_s=None))
    assert [r.at_s for r in plan.requests] == [None] * 10
    assert {r.loop_slots for r in plan.requests} == {4}
    assert (plan.span_s, plan.offered_rps, plan.closed_loop) == (0.0, 0.0, True)


def test_the_warm_up_comes_on_top_of_the_duration() -> None:
    plan = make_plan(spec_of(duration_s=20, warmup_s=10))
    assert (plan.span_s, plan.warmup_s) == (30, 10)
    assert max(r.at_s or 0 for r in plan.requests) > 25


def test_requests_are_cut_to_fit_the_model_and_counted() -> None:
    plan = make_plan(spec_of({"input": 900, "output": 900}, max_model_len=1000))
    assert {(r.num_input_tokens, r.num_output_tokens) for r in plan.requests} == {(500, 500)}
    assert plan.num_cut == len(plan.requests)
    assert make_plan(spec_of(max_model_len=1000)).num_cut == 0


def test_scaling_sets_rate_and_duration() -> None:
    spec = spec_of(
        {"arrival": {"kind": "poisson", "rate": 6}},
        {"name": "b", "arrival": {"kind": "burst", "size": 4, "every_s": 2}},
    )
    assert offered_rps(spec) == 8
    scaled = scale(spec, rate=4.0, duration_s=100)
    assert [s.arrival.mean_rps(1) for s in scaled.streams] == [3, 1]
    assert scaled.duration_s == 100
    with pytest.raises(ConfigError, match="above 0"):
        scale(spec, rate=0)


def test_a_closed_loop_keeps_its_requests_at_another_duration() -> None:
    spec = spec_of({"arrival": {"kind": "closed", "slots": 2}}, duration_s=None, num_requests=10)
    plan = make_plan(scale(spec, duration_s=30))
    assert (len(plan.requests), plan.span_s) == (10, 30)


def test_more_requests_than_a_plan_holds_are_refused() -> None:
    for stream, rest in (
        ({"arrival": {"kind": "closed", "slots": 2, "requests": 10**8}}, {}),
        ({"arrival": {"kind": "constant", "rate": 1e6}}, {"num_requests": 10**8}),
    ):
        with pytest.raises(ConfigError, match="too big"):
            make_plan(spec_of(stream, duration_s=None, **rest))


def test_a_plan_without_requests_is_refused() -> None:
    with pytest.raises(ConfigError, match="no request"):
        make_plan(spec_of({"arrival": {"kind": "burst", "size": 1, "every_s": 100}}, duration_s=10))
