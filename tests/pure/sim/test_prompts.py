from __future__ import annotations

import numpy as np
from tests.fakes.plans import make_admit
from tests.pure.sim.kit import plan_of, stream

from paceline.contracts.workload import Endpoint, PlannedRequest
from paceline.sim.prompts import Answers, Prompts, Template

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


def test_what_a_chat_template_adds_is_shared_and_counts() -> None:
    """As with a real template: <system> PREFIX <end of it, user> OWN. So requests of a group share more than its
    prefix, and all chats their beginning."""

    def request(number: int, group: int | None, **more: object) -> PlannedRequest:
        return PlannedRequest(
            id=number, stream="s", num_input_tokens=40, num_output_tokens=1, prefix_group=group,
            num_prefix_tokens=20 if group is not None else 0, content_seed=number, **more,
        )  # fmt: skip

    def shared(one: PlannedRequest, other: PlannedRequest) -> int:
        same = [a == b for a, b in zip(ids(prompts, one), ids(prompts, other), strict=True)]
        return [*same, False].index(False)

    prompts = Prompts(Answers(0), template=Template(before=3, between=5))
    alike, alike_too, apart, alone = request(1, 7), request(2, 7), request(3, 8), request(4, None)
    assert {len(ids(prompts, each)) for each in (alike, alike_too, apart, alone)} == {40}
    assert shared(alike, alike_too) == 3 + 20 + 5
    assert shared(alike, apart) == shared(alike, alone) == 3
    assert shared(request(5, None, endpoint=Endpoint.COMPLETIONS), request(6, None)) == 0
    assert len(ids(prompts, PlannedRequest(id=9, stream="s", num_input_tokens=6, num_output_tokens=1))) == 6
