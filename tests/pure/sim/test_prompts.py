from __future__ import annotations

import numpy as np
from tests.fakes.plans import make_admit
from tests.pure.sim.kit import plan_of, stream

from paceline.contracts.workload import PlannedRequest
from paceline.sim.prompts import Answers, Prompts

POISSON = {"kind": "poisson", "rate": 5.0}


def ids(prompts: Prompts, request: PlannedRequest) -> list[int]:
    return prompts.prompt(request).ids.tolist()


def test_prompts_have_the_asked_length_and_are_equal_as_far_as_the_plan_says() -> None:
    prefix = {"groups": 2, "tokens": 12}
    plan = plan_of(num_requests=12, stream=[stream(POISSON, 10, prefix=prefix)])
    prompts = Prompts(Answers(0))
    made = {r.id: ids(prompts, r) for r in plan.requests}
    groups = {r.id: r.prefix_group for r in plan.requests}
    assert len(set(groups.values())) == 2
    for one in plan.requests:
        assert len(made[one.id]) == one.num_input_tokens == 22
        for other in plan.requests:
            if one.id == other.id:
                continue
            same = made[one.id][:12] == made[other.id][:12]
            assert same == (groups[one.id] == groups[other.id])
            assert made[one.id][12:] != made[other.id][12:]


def test_passages_are_equal_by_id_and_the_last_is_cut_with_the_prompt() -> None:
    def request(number: int, shared: tuple[int, ...]) -> PlannedRequest:
        return PlannedRequest(
            id=number, stream="s", num_input_tokens=25, num_output_tokens=1, shared=shared, num_shared_tokens=10,
            content_seed=number,
        )  # fmt: skip

    prompts = Prompts(Answers(0))
    one, other = ids(prompts, request(1, (4, 5, 6))), ids(prompts, request(2, (4, 7, 6)))
    assert len(one) == len(other) == 25
    assert one[:10] == other[:10]
    assert one[10:20] != other[10:20]
    assert one[20:] == other[20:]  # the first half of passage 6


def test_a_later_turn_quotes_the_turns_before_and_their_answers() -> None:
    turns = {"max": 3, "think_s": 1.0, "think": "fixed"}
    plan = plan_of(num_requests=3, stream=[stream(POISSON, 6, 4, turns=turns)])
    answers = Answers(3)
    prompts = Prompts(answers)
    first, second, third = plan.requests
    begin = prompts.prompt(first)
    prompts.ended(first, begin, 4)
    following = prompts.prompt(second)
    said = [answers(make_admit(0, [1], request_id=first.id), position) for position in range(4)]
    assert following.ids[:10].tolist() == [*begin.ids.tolist(), *said]
    assert following.num_tokens == 16
    prompts.ended(second, following, 2)  # cut short
    assert prompts.prompt(third).num_tokens == 16 + 2 + 6


def test_without_a_cache_only_lengths_are_kept() -> None:
    turns = {"max": 2, "think_s": 1.0}
    plan = plan_of(num_requests=2, stream=[stream(POISSON, 6, 4, turns=turns)])
    prompts = Prompts(Answers(0), keyed=False)
    first, second = plan.requests
    begin = prompts.prompt(first)
    assert (begin.num_tokens, begin.num_keyed_tokens) == (6, 0)
    prompts.ended(first, begin, 4)
    assert prompts.prompt(second).num_tokens == 16


def test_an_answer_known_beforehand_is_what_is_drawn_token_by_token() -> None:
    answers = Answers(7)
    row = make_admit(0, [1, 2], request_id=90)
    assert list(answers.of(90)[5:25]) == [answers(row, 5 + i) for i in range(20)]
    assert np.iinfo(np.int32).max > answers.of(90)[-1]
