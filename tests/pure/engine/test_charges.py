"""What tenants pay for a step: shares of its predicted time, which add up, in any grouping."""

from __future__ import annotations

from typing import Any

import pytest
from tests.fakes.builders import make_request, simulated_engine

from paceline.cost.linear import LinearStepCost

COST = LinearStepCost(fixed_ms=5.0, per_token_ms=0.05, per_row_ms=0.05, per_context_token_ms=0.001)


def run(*requests: Any) -> tuple[float, dict[str, float]]:
    """(seconds of steps, what each tenant was charged in seconds)."""
    engine = simulated_engine(cost=COST, policy="fair", prefix_caching=False)
    for each in requests:
        engine.core.submit(each)
    while engine.core.has_work:
        engine.step()
    queue = engine.core.scheduler._queue
    return engine.core.clock.now(), {t: s / 1e12 for t, s in queue._classes[0].served.items()}


def request(request_id: int, prompt: int, output: int, tenant: str) -> Any:
    return make_request(request_id, [request_id + 1] * prompt, output, tenant=tenant, sampling={"ignore_eos": True})


def test_shares_of_a_step_add_up_to_it() -> None:
    seconds, served = run(request(0, 100, 30, "a"), request(1, 900, 12, "b"), request(2, 40, 50, "a"))
    assert sum(served.values()) == pytest.approx(seconds, rel=1e-3)


def test_a_token_of_an_answer_costs_more_than_a_position_of_a_prompt() -> None:
    """By positions both would have been served the same."""
    _, served = run(request(0, 401, 1, "prompts"), request(1, 1, 401, "answers"))
    assert served["answers"] > 5 * served["prompts"]


def test_context_is_paid_by_who_holds_it() -> None:
    _, served = run(request(0, 2000, 50, "long"), request(1, 2000, 1, "other"), request(2, 8, 51, "short"))
    prompt_s = served["other"]
    assert served["long"] - prompt_s > served["short"] + 0.8 * 50 * 2000 * 0.001e-3
