"""KL and agreement against a model whose every probability is known."""

import asyncio
import math
import random
from itertools import pairwise

import numpy as np
import pytest
from tests.fakes.lab.toy_lm import WORDS, ToyLm, ToyServer

from paceline.errors import LabError
from paceline.lab.quality import Caller, greedy_agreement, prompt_divergence
from paceline.lab.quality.distributions import Distribution
from paceline.lab.quality.divergence import Point, compare_position, compare_text, summarise

BASE, NEAR, FAR = ToyLm(), ToyLm(noise=0.05), ToyLm(noise=1.0)


def texts(count=6, length=60):
    draw = random.Random(3)
    return [" ".join(draw.choice(WORDS) for _ in range(length)) for _ in range(count)]


def entries(model, ids, num_top):
    return [
        Distribution(str(b), float(model.logprobs[a][b]), {str(t): v for t, v in model.entry(a, b, num_top).items()})
        for a, b in pairwise(ids)
    ]


@pytest.mark.parametrize("num_top", [1, 3, 10, 40])
@pytest.mark.parametrize("other", [NEAR, FAR])
def test_the_true_kl_lies_between_the_bounds_where_the_assumption_holds(num_top, other):
    draw = random.Random(num_top)
    for _ in range(50):
        last, own = draw.randrange(40), draw.randrange(40)
        p, q = entries(BASE, [last, own], num_top), entries(other, [last, own], num_top)
        point = compare_position(p[0], q[0], 1)
        true = BASE.kl(other, last)
        untold = float(np.abs(BASE.logprobs[last] - other.logprobs[last]).max())  # what the assumption asks of D
        assert point.low <= true + 1e-9
        assert true <= point.told + point.rest_p * untold + 1e-9
        if num_top == 40:  # everything is told: nothing is left to bound
            assert point.low == pytest.approx(true, abs=1e-9)
            assert point.rest_p == pytest.approx(0.0, abs=1e-9)


def test_top1_is_the_best_of_each():
    a = Distribution("x", math.log(0.6), {"x": math.log(0.6), "y": math.log(0.3)})
    b = Distribution("x", math.log(0.3), {"x": math.log(0.3), "y": math.log(0.6)})
    assert compare_position(a, a, 1).top1
    assert not compare_position(a, b, 1).top1


def test_different_tokens_at_one_position_are_no_comparison():
    p, q = Distribution("a", -1.0, {"a": -1.0}), Distribution("b", -1.0, {"b": -1.0})
    with pytest.raises(LabError, match="different tokens"):
        compare_text([p], [q])
    with pytest.raises(LabError, match="different tokens"):
        compare_text([p], [])


def test_buckets_are_by_position():
    def point(position):
        return Point(position, 0.1 if position < 1000 else 0.4, 0.1, 0.0, 0.2, position % 2 == 0)

    text = [point(i) for i in range(1, 5001)]
    found = summarise([text, text], reference="a", candidate="b", method="echo", num_top=5)
    by_name = {bucket.bucket: bucket for bucket in found.buckets}
    assert list(by_name) == ["all", "0-1k", "1k-4k", "4k-8k"]
    assert [by_name[n].num_positions for n in by_name] == [10_000, 2 * 999, 6000, 2 * 1001]
    assert by_name["0-1k"].kl.value == pytest.approx(0.1)
    assert by_name["1k-4k"].kl.value == pytest.approx(0.4)
    assert by_name["1k-4k"].top1.value == pytest.approx(0.5)


def divergence(abilities, other, num_top=20):
    async def ask():
        async with Caller(one.url) as a, Caller(two.url) as b:
            return await prompt_divergence(a, b, texts(), num_top=num_top)

    with ToyServer(BASE, abilities=abilities[0]) as one, ToyServer(other, abilities=abilities[1]) as two:
        return asyncio.run(ask())


BY_ID, ECHO, NONE = ("tokenize", "prompt_logprobs", "logprobs"), ("echo", "logprobs"), ("logprobs",)
BOTH = (*BY_ID, "echo")


@pytest.mark.parametrize(
    ("abilities", "method"),
    [((BY_ID, BY_ID), "prompt_logprobs"), ((ECHO, ECHO), "echo"), ((BOTH, ECHO), "echo")],
)
def test_kl_over_http_is_that_of_the_two_models(abilities, method):
    found = divergence(abilities, FAR, num_top=40)
    pairs = [WORDS.index(word) for text in texts() for word in text.split()[:-1]]
    true = sum(BASE.kl(FAR, last) for last in pairs) / len(pairs)
    whole = found.buckets[0]
    assert found.method == method
    assert whole.num_positions == len(pairs)
    assert whole.kl.value == pytest.approx(true, rel=1e-6)
    assert whole.kl.lo < true < whole.kl.hi
    thin = divergence(abilities, FAR, num_top=5).buckets[0]
    assert thin.kl.value <= true <= thin.kl_upper


def test_a_server_does_not_differ_from_itself():
    whole = divergence((BY_ID, BY_ID), BASE).buckets[0]
    assert whole.kl.value == pytest.approx(0.0, abs=1e-9)
    assert whole.top1.value == 1.0


def test_a_server_without_log_probabilities_of_a_prompt_says_so():
    with pytest.raises(LabError) as caught:
        divergence((NONE, NONE), BASE)
    assert "llama-server has neither" in str(caught.value)
    assert "paceline quality agree" in caught.value.fix


def agreement(other, abilities=BOTH, num_tokens=20):
    async def ask():
        async with Caller(one.url) as a, Caller(two.url) as b:
            return await greedy_agreement(a, b, WORDS, num_tokens=num_tokens, num_top=40)

    with ToyServer(BASE, abilities=abilities) as one, ToyServer(other, abilities=abilities) as two:
        return asyncio.run(ask())


def test_equal_servers_agree_to_the_last_token():
    found = agreement(BASE)
    assert found.whole.value == 1.0
    assert found.part_rate.value == 0.0
    assert found.divergence.buckets[0].kl.value == pytest.approx(0.0, abs=1e-9)


def test_where_two_answers_part_is_found_and_nothing_is_compared_behind_it():
    found = agreement(FAR)
    for start, text in enumerate(found.texts):
        ours, theirs = BASE.continue_greedily([start], 20), FAR.continue_greedily([start], 20)
        shared = next((i for i in range(20) if ours[i] != theirs[i]), 20)
        assert text.num_same == shared
        assert text.same is (shared == 20)
        assert len(text.points) == min(shared + 1, 20)
        contexts = [start, *ours][: len(text.points)]
        for point, last in zip(text.points, contexts, strict=True):
            assert point.low == pytest.approx(BASE.kl(FAR, last), abs=1e-9)
    assert 0 < found.part_rate.value < 1
    assert found.divergence.method == "generated"


def test_without_log_probabilities_texts_are_compared():
    found = agreement(FAR, abilities=())
    assert found.unit == "characters"
    assert found.divergence is None
    assert found.whole.value < 1


def test_agreement_of_the_first_choice_is_as_uncertain_as_the_texts_make_it():
    """Two texts that agree everywhere and two that never do are four samples, not four thousand."""

    def text(agrees):
        return [Point(i, 0.1, 0.1, 0.0, 0.2, agrees) for i in range(1, 1001)]

    found = summarise([text(True), text(True), text(False), text(False)], reference="a", candidate="b", method="echo",
                      num_top=5).buckets[0].top1  # fmt: skip
    assert (found.value, found.n, found.n_eff) == (0.5, 4000, 4.0)
    assert found.lo < 0.2
    assert found.hi > 0.8
    alike = summarise([text(True)] * 4, reference="a", candidate="b", method="echo", num_top=5).buckets[0].top1
    assert 0.99 < alike.lo < alike.hi == 1.0
