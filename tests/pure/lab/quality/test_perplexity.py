"""Perplexity: windows that score each token once, and the number a known model must give."""

import asyncio
import math
import random
from itertools import pairwise

import pytest
from tests.fakes.lab.toy_lm import WORDS, ToyLm, ToyServer, ids_of

from paceline.errors import ConfigError, LabError
from paceline.lab.quality import Caller, perplexity
from paceline.lab.quality.perplexity import ratio, spans

BASE, FAR = ToyLm(), ToyLm(noise=1.0)
TEXT = " ".join(random.Random(5).choice(WORDS) for _ in range(300))


@pytest.mark.parametrize(("n", "window", "stride"), [(300, 64, 32), (10, 64, 32), (64, 64, 1), (65, 64, 63), (2, 8, 4)])
def test_every_token_but_the_first_is_scored_once_with_enough_before_it(n, window, stride):
    found = spans(n, window, stride)
    scored = [token for begin, end, first in found for token in range(first, end)]
    assert scored == list(range(1, n))
    for index, (begin, end, first) in enumerate(found):
        assert end - begin <= window
        assert index == 0 or first - begin >= window - stride


def test_a_stride_that_does_not_fit_is_refused():
    with pytest.raises(ConfigError, match="stride"):
        spans(10, 8, 8)


def measure(model, **options):
    abilities = options.pop("abilities", ("tokenize", "prompt_logprobs"))

    async def ask():
        async with Caller(server.url) as caller:
            return await perplexity(caller, TEXT, **options)

    with ToyServer(model, abilities=abilities) as server:
        return asyncio.run(ask())


def test_it_is_exp_of_the_mean_negative_log_probability():
    ids = ids_of(TEXT)
    true = math.exp(-sum(BASE.logprobs[a][b] for a, b in pairwise(ids)) / (len(ids) - 1))
    found = measure(BASE, window=64, stride=32)  # the model looks one token back, so windows do not matter
    assert found.method == "tokens"
    assert found.num_tokens == len(ids) - 1
    assert found.value == pytest.approx(true, rel=1e-9)
    assert measure(BASE, window=1000, stride=500).value == pytest.approx(true, rel=1e-9)
    assert measure(BASE, window=64, stride=32, abilities=("tokenize", "echo", "logprobs")).value == pytest.approx(true)


def test_the_ratio_of_two_servers_is_paired_by_window():
    a, b = measure(BASE, window=64, stride=32), measure(FAR, window=64, stride=32)
    found = ratio(a, b)
    assert found.value == pytest.approx(b.value / a.value)
    assert found.lo < found.value < found.hi
    assert ratio(a, a).value == 1.0
    with pytest.raises(ConfigError, match="different windows"):
        ratio(a, measure(BASE, window=64, stride=16))


def test_a_server_without_log_probabilities_is_refused():
    with pytest.raises(LabError, match="does not tell"):
        measure(BASE, abilities=("tokenize", "logprobs"))
