"""What limits say of the tokens to come, once it is known how much of them answers use."""

from __future__ import annotations

import numpy as np
import pytest
from tests.fakes.builders import make_request, simulated_engine
from tests.fakes.traffic import serve

from paceline.contracts.request import Request
from paceline.contracts.slo import Slo
from paceline.cost.linear import LinearStepCost
from paceline.engine import lengths
from paceline.engine.lengths import EDGES, LEAST, MAX_CLASSES, MOST, Lengths
from paceline.engine.request_state import RequestState
from paceline.engine.stop import StopRules

PROMPT = 10
COST = LinearStepCost(fixed_ms=5.0, per_token_ms=0.05, per_row_ms=0.05, per_context_token_ms=0.0)
NO_TARGETS = Slo()


def state(limit: int, made: int, latency_class: str = "chat") -> RequestState:
    request: Request = make_request(1, range(1, PROMPT + 1), limit, latency_class=latency_class)
    found = RequestState(request, StopRules(frozenset(), 0, PROMPT + limit), PROMPT + limit, 0, "", 0.0)
    found.known += made
    found.output_tokens = made
    return found


def learnt(*ends: tuple[int, int]) -> Lengths:
    """`ends`: (limit, tokens made) of answers that ended, over and over until enough are known."""
    found = Lengths()
    for _ in range(LEAST):
        for limit, made in ends:
            found.note(state(limit, made))
    return found


def test_until_enough_answers_have_ended_the_limit_is_expected() -> None:
    found = Lengths()
    for _ in range(LEAST - 1):
        found.note(state(400, 100))
    assert found.left(state(400, 0)) == 400
    found.note(state(400, 100))
    assert found.left(state(400, 0)) == 100


def test_answers_that_use_their_limits_are_expected_to() -> None:
    found = learnt((100, 100), (37, 37), (1000, 1000))
    for limit, made in ((512, 0), (512, 511), (3, 1), (1, 0)):
        assert found.left(state(limit, made)) == limit - made


def test_a_share_of_the_limit_is_expected_whatever_the_limit() -> None:
    found = learnt((400, 100), (80, 20))
    assert found.left(state(1000, 0)) == 250
    assert found.left(state(1000, 200)) == 50


def test_who_has_outlived_most_is_expected_to_go_on_like_those_that_did() -> None:
    found = learnt(*[(1000, 125)] * 9, (1000, 1000))
    assert found.left(state(1000, 0)) == 125
    assert found.left(state(1000, 300)) == 700


def test_who_has_outlived_all_is_expected_to_reach_its_limit() -> None:
    assert learnt((1000, 125)).left(state(1000, 300)) == 700


def test_a_row_is_expected_to_make_a_token_and_never_more_than_its_limit_leaves() -> None:
    found = learnt((1000, 125), (1000, 9), (1000, 600))
    for limit in (1, 2, 10, 1000):
        for made in range(limit):
            assert 1 <= found.left(state(limit, made)) <= limit - made


def test_classes_are_told_apart_and_what_is_known_is_bounded() -> None:
    found = learnt((400, 100))
    assert found.left(state(400, 0, "another")) == 400
    for number in range(MAX_CLASSES):
        found.note(state(400, 100, f"class {number}"))
    assert found.left(state(400, 0)) == 400  # forgotten
    assert len(found._of) == MAX_CLASSES


def test_the_class_of_which_nothing_ended_for_longest_is_forgotten_first() -> None:
    found = learnt((400, 100))
    for number in range(MAX_CLASSES + 3):
        found.note(state(400, 100, f"class {number}"))
        found.note(state(400, 100))
    assert found.left(state(400, 0)) < 400


def test_what_was_long_ago_counts_for_less() -> None:
    found = Lengths()
    for _ in range(MOST - 1):
        found.note(state(1000, 1000))
    for _ in range(4 * MOST):
        found.note(state(1000, 125))
    assert found.left(state(1000, 0)) == 125
    assert sum(found._of["chat"].counts) < MOST


@pytest.mark.parametrize("share", [0.0, 1e-6, EDGES[0], 0.3, 1.0])
def test_any_share_has_a_bin(share: float) -> None:
    shares = lengths._Shares()
    shares.note(share)
    assert sum(shares.counts) == 1


@pytest.mark.parametrize("known", [False, True])
def test_a_target_for_the_whole_is_spread_over_the_tokens_that_will_come(known: bool) -> None:
    """400 tokens of 5 ms take longer than the target allows, so by its limit alone it asks nothing and a prompt that
    came with it goes first. Its class is known to make 20."""
    whole = Slo(e2e_s=1.0)
    before = [(0.05 * i, request(i, 8, 400, whole)) for i in range(1, LEAST + 1)] if known else []
    arrivals = [*before, (4.0, request(100, 1900, 400)), (4.0, request(101, 1900, 400, whole))]
    made = {request.request_id: 20 for _, request in arrivals}
    served = serve(simulated_engine(cost=COST, scheduling_mode="auto", output_lengths=made), arrivals)
    assert (served.timelines[101].ttft_s < served.timelines[100].ttft_s) is known


def request(request_id: int, prompt: int, limit: int, slo: Slo = NO_TARGETS) -> Request:
    """Ids that no other request shares."""
    ids = np.arange(prompt) + 2000 * request_id + 1
    return make_request(request_id, 100 + ids % 30_000, limit, slo=slo)
