"""First tokens that wait until they are due, and the queue cut to those that can be in time: in virtual time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.fakes.builders import make_request, simulated_engine
from tests.fakes.traffic import Served, serve

from paceline.contracts.request import Request
from paceline.contracts.slo import Slo
from paceline.cost.linear import LinearStepCost
from paceline.engine.holding import Holding
from paceline.engine.plan_builder import PlanBuilder
from paceline.engine.plan_columns import Selection

# 5 ms a step, 50 µs a token, 0.1 ms a row
COST = LinearStepCost(fixed_ms=5.0, per_token_ms=0.05, per_row_ms=0.05, per_context_token_ms=0.0)
BOTH = Slo(ttft_s=0.5, tpot_s=0.010)


def request(request_id: int, prompt: int, output: int, slo: Slo, **fields: Any) -> Request:
    """Ids that no other request shares."""
    ids = np.random.default_rng(request_id).integers(1, 30_000, prompt)
    return make_request(request_id, ids, output, sampling={"ignore_eos": True}, slo=slo, **fields)


def run(requests: list[tuple[float, Request]], mode: str = "auto", **more: Any) -> Served:
    settings = {"max_num_batched_tokens": 2048, "max_num_seqs": 32, "scheduling_mode": mode, **more}
    return serve(simulated_engine(cost=COST, **settings), requests)


def num_good(served: Served, slo: Slo) -> int:
    return sum(t.is_good(slo) for t in served.timelines.values())


def burst(num: int, prompt: int, slo: Slo, output: int = 40) -> list[tuple[float, Request]]:
    return [(0.0, request(i, prompt, output, slo)) for i in range(num)]


def test_first_tokens_wait_where_their_rows_would_make_other_prompts_late() -> None:
    # 8 prompts of 50 ms: in time one after the other, and not at half of the speed beside the first of them as rows
    served = run(burst(8, 1000, BOTH))
    assert num_good(served, BOTH) == 8
    ttfts = [served.ttft([i]) for i in range(8)]
    assert min(ttfts) > 0.25  # the first prompt is computed after 60 ms
    assert max(ttfts) <= 0.5


@pytest.mark.parametrize("slo", [BOTH, Slo(ttft_s=0.5)])
def test_first_tokens_do_not_wait_for_nothing(slo: Slo) -> None:
    # two prompts have time enough, whatever runs beside them
    served = run(burst(2, 1000, slo))
    assert served.ttft([0]) < 0.12
    assert num_good(served, slo) == 2


def test_without_a_target_for_the_tokens_a_first_token_has_nothing_to_wait_for() -> None:
    slo = Slo(ttft_s=0.5)
    assert run(burst(8, 1000, slo)).ttft([0]) < 0.12


def test_a_first_token_that_waited_is_an_explained_decision() -> None:
    settings = {"max_num_batched_tokens": 2048, "max_num_seqs": 32, "scheduling_mode": "auto"}
    built = simulated_engine(cost=COST, **settings)
    serve(built, burst(8, 1000, BOTH))
    held = [d for i in range(8) for d in built.core.decisions(i) if d.reason == "first_token_held"]
    assert held
    assert all(0.0 < d.numbers["due_ms"] <= 500.1 for d in held)


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_first_tokens_do_not_wait_for_who_has_no_row(rows: int) -> None:
    # nobody can be computed meanwhile: waiting would win nothing
    served = run(burst(8, 1000, BOTH), max_num_seqs=rows)
    assert served.ttft([0]) < 0.07 * rows
    assert all(t.num_tokens == 40 for t in served.timelines.values())


def test_whoever_has_waited_with_a_first_token_is_served_to_the_end() -> None:
    # far more than can be in time, and more to come: nobody is forgotten with all but one position computed
    requests = burst(16, 1000, BOTH)
    requests += [(0.1 * i, request(20 + i, 500, 20, BOTH)) for i in range(10)]
    served = run(requests)
    assert sorted(t.num_tokens for t in served.timelines.values()) == [20] * 10 + [40] * 16


def test_of_a_burst_beyond_what_can_be_served_the_longest_are_late() -> None:
    # two prompts of 175 ms come first, then six of 25 ms: by arrival, all are late behind the first two
    slo = Slo(ttft_s=0.3)
    requests = [(0.0, request(i, 3500, 2, slo)) for i in range(2)]
    requests += [(0.0, request(10 + i, 500, 2, slo)) for i in range(6)]
    served = run(requests)
    assert all(served.timelines[10 + i].is_good(slo) for i in range(6))
    assert all(t.num_tokens == 2 for t in served.timelines.values())
    assert num_good(run(requests, "fixed"), slo) < 6


def test_nobody_is_late_where_all_can_be_in_time() -> None:
    slo = Slo(ttft_s=1.0)
    requests = [(0.0, request(i, 3500, 2, slo)) for i in range(2)]
    requests += [(0.0, request(10 + i, 500, 2, slo)) for i in range(6)]
    served = run(requests)
    assert num_good(served, slo) == 8
    assert served.ttft([0]) < served.ttft([10])  # and the order is that of arrival


def test_drafts_leave_room_for_rows_that_hold_back_and_then_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that were left out decode after all when no prompt can go on: they count where drafts are."""

    class Guesses:
        def propose(self, token_ids: np.ndarray, max_drafts: int) -> list[int]:
            return [7] * max_drafts

    sizes: list[int] = []
    columns = PlanBuilder._columns

    def note(self: PlanBuilder, selection: Selection) -> Any:
        drafts = sum(map(len, selection.drafts.values()))
        sizes.append(len(selection.decodes) + drafts + sum(count for _, count in selection.prefills))
        return columns(self, selection)

    monkeypatch.setattr(PlanBuilder, "_columns", note)
    monkeypatch.setattr(Holding, "choose", lambda _, decodes, *__: decodes[:1])
    built = simulated_engine(
        cost=COST, scheduling_mode="auto", max_num_seqs=6, max_num_batched_tokens=8, num_draft_tokens=3,
        host_drafts=True, drafter=Guesses(),
    )  # fmt: skip
    serve(built, [(0.0, request(i, 4, 20, BOTH)) for i in range(6)])
    assert max(sizes) <= 8
    assert sorted(sizes)[-3] > 6  # and there are drafts
