"""Laws of shares between tenants, over random floods: the engine lives, everybody ends, nobody is preempted in vain,
and rows do not move back and forth."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.fakes.builders import make_request, simulated_engine

from paceline.contracts.decision import Decision, Kind, Reason
from paceline.contracts.request import Request

law = settings(deadline=None, max_examples=60, derandomize=True, suppress_health_check=list(HealthCheck))
fresh = settings(law, derandomize=False, max_examples=1000)


@st.composite
def engines(draw: st.DrawFn) -> dict[str, Any]:
    rows = draw(st.sampled_from([2, 3, 4, 8, 16]))
    return {
        "num_blocks": draw(st.sampled_from([16, 24, 40, 200])),
        "block_size": 4,
        "depth": draw(st.integers(1, 2)),
        "max_rows": rows,
        "max_tokens": 2 * rows + 64,
        "max_num_batched_tokens": rows + draw(st.sampled_from([4, 24, 64])),
        "max_model_len": 60,
        "prefix_caching": draw(st.booleans()),
        "prefill_priority": draw(st.sampled_from(["decode_first", "prefill_first"])),
        "watermark": draw(st.sampled_from([0.0, 0.1])),
    }


@st.composite
def floods(draw: st.DrawFn) -> dict[int, list[Request]]:
    """By step, requests of tenants of which some send and ask for much more than others."""
    num_classes = draw(st.sampled_from([1, 1, 2]))
    waves: dict[int, list[Request]] = {}
    number = 0
    for _ in range(draw(st.integers(2, 8))):
        at, tenant = draw(st.integers(0, 30)), draw(st.sampled_from("xxyz"))
        num_prompt, num_output = draw(st.sampled_from([1, 4, 40])), draw(st.sampled_from([1, 6, 16]))
        for _ in range(draw(st.sampled_from([1, 4, 12]))):
            prompt = [number % 3 + 8] * min(num_prompt, 8) + [number % 30 + 8] * max(0, num_prompt - 8)
            priority = draw(st.integers(0, num_classes - 1))
            waves.setdefault(at, []).append(make_request(number, prompt, num_output, tenant=tenant, priority=priority))
            number += 1
    return waves


def check_step(made: list[Decision], moves: list[tuple[int, int]]) -> None:
    """`moves`: (who lost a row, who got it) so far."""
    for decision in made:
        if decision.reason is Reason.ROW_FOR_SHARE:
            assert decision.other is not None
            assert any(d.request_id == decision.other and d.kind is Kind.ADMIT for d in made), "in vain"
            moves.append((decision.request_id, decision.other))


def run(options: dict[str, Any], waves: dict[int, list[Request]]) -> None:
    engine = simulated_engine(policy="fair", **options)
    moves: list[tuple[int, int]] = []
    ended: set[int] = set()
    for at in range(5000):
        for request in waves.get(at, ()):
            engine.core.submit(request)
        if at > max(waves) and not engine.core.has_work:
            break
        step = engine.scheduler.stats(0.0).step
        ended.update(o.request_id for o in engine.step() if o.finish is not None)
        assert engine.core.error is None, engine.core.error.__cause__
        check_step([d for d in engine.scheduler.decisions.tail(400) if d.step == step], moves)
    else:
        raise AssertionError(f"no end\n{engine.core.dump()}")
    assert ended == {r.request_id for wave in waves.values() for r in wave}
    assert len(moves) <= 2 * len(ended), "back and forth"


@law
@given(engines(), floods())
def test_random_floods_do_no_harm(options: dict[str, Any], waves: dict[int, list[Request]]) -> None:
    run(options, waves)


@pytest.mark.long
@fresh
@given(engines(), floods())
def test_new_floods_do_no_harm(options: dict[str, Any], waves: dict[int, list[Request]]) -> None:
    run(options, waves)
