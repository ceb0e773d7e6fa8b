from __future__ import annotations

from tests.pure.lab.workload.specs import spec_of

from paceline.contracts.workload import PlannedRequest
from paceline.lab.workload import expected_hit, make_plan, reusable_tokens


def _request(**fields: object) -> PlannedRequest:
    return PlannedRequest(id=0, stream="s", num_input_tokens=100, num_output_tokens=10, **fields)  # type: ignore[arg-type]


def test_a_group_is_warm_from_its_second_request_on() -> None:
    plan = [_request(prefix_group=g, num_prefix_tokens=70) for g in (0, 1, 0)]
    assert reusable_tokens(plan) == [(0, 100), (0, 100), (64, 100)]
    assert reusable_tokens(plan, primed=True) == [(64, 100)] * 3
    assert reusable_tokens(plan, block_tokens=1)[2] == (70, 100)


def test_tenants_do_not_share() -> None:
    plan = [_request(prefix_group=0, num_prefix_tokens=64, tenant=t) for t in ("a", "b", "a")]
    assert [hit for hit, _ in reusable_tokens(plan)] == [0, 0, 64]


def test_passages_are_reused_as_far_as_all_before_them_are() -> None:
    plan = [_request(shared=ids, num_shared_tokens=32) for ids in ((1, 2), (1, 3), (2, 1), (1, 2))]
    assert [hit for hit, _ in reusable_tokens(plan)] == [0, 32, 0, 64]
    cold = [_request(shared=(1,), num_shared_tokens=32, prefix_group=g, num_prefix_tokens=32) for g in (0, 1)]
    assert [hit for hit, _ in reusable_tokens(cold)] == [0, 0]


def test_a_turn_reuses_its_whole_history() -> None:
    plan = [_request(session=1), _request(session=1, turn=1), _request(session=1, turn=2)]
    assert reusable_tokens(plan) == [(0, 100), (96, 210), (208, 320)]


def test_the_last_token_is_always_computed() -> None:
    plan = [_request(shared=(1, 2), num_shared_tokens=50)] * 2
    assert reusable_tokens(plan, block_tokens=1) == [(0, 100), (99, 100)]


def test_no_sharing_no_hit() -> None:
    assert expected_hit(make_plan(spec_of()).requests) == 0
    high = make_plan(spec_of({"prefix": {"groups": 2, "tokens": 192}}))
    assert expected_hit(high.requests, primed=True) == 192 / 256
