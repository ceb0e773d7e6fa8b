"""Ratios along an edge: paired, with the run-to-run part in, and better only when all repeats say so."""

from __future__ import annotations

import math

import numpy as np
import pytest

from paceline.contracts.artefact import Estimate
from paceline.lab.experiment.edges import Pair, answer_of, pair_up, ratio_of, ratio_of_runs
from paceline.lab.experiment.figures import Samples


def pairs(factors: list[float], n: int = 300, spread: float = 0.3, seed: int = 0) -> list[Pair]:
    """Repeats in which each request of the child takes `factor` times as long, up to noise."""
    rng = np.random.default_rng(seed)
    found = []
    for repeat, factor in enumerate(factors):
        base = rng.lognormal(0, spread, n)
        child = base * factor * rng.lognormal(0, 0.02, n)
        found.append(Pair(repeat=repeat, parent=samples(base), child=samples(child)))
    return found


def samples(latency) -> Samples:
    return Samples(
        e2e_p50_s=latency,
        e2e_p95_s=latency,
        goodput_rps=(latency < 1.0).astype(float),
        attainment=np.ones(len(latency)),
    )


def test_a_slower_child_is_worse_in_latency():
    found = ratio_of("e2e_p50_s", pairs([1.2, 1.2]), 0.03)
    assert found.answer == "worse"
    assert found.ratio.lo < 1.2 < found.ratio.hi
    assert found.ratio.value == pytest.approx(1.2, rel=0.1)
    assert ratio_of("e2e_p50_s", pairs([0.8, 0.8]), 0.03).answer == "better"


def test_fewer_good_requests_are_worse_goodput():
    found = ratio_of("goodput_rps", pairs([1.5, 1.5]), 0.03)
    assert found.answer == "worse"
    assert found.ratio.hi < 1
    assert found.child < found.parent


def test_equal_arms_are_never_called_different():
    answers = {ratio_of("e2e_p50_s", pairs([1.0, 1.0], n=100, seed=s), 0.03).answer for s in range(8)}
    assert answers <= {"same", "inconclusive"}


def test_repeats_that_disagree_are_inconclusive():
    found = ratio_of("e2e_p50_s", pairs([1.6, 0.95]), 0.03)
    assert found.answer == "inconclusive"


def test_three_repeats_put_their_own_spread_into_the_interval():
    steady = ratio_of("e2e_p50_s", pairs([1.2] * 3), 0.03)
    moody = ratio_of("e2e_p50_s", pairs([1.02, 1.2, 1.42]), 0.03)
    assert "t interval" in moody.ratio.method
    assert moody.ratio.hi / moody.ratio.lo > steady.ratio.hi / steady.ratio.lo
    assert (moody.answer, steady.answer) == ("inconclusive", "worse")


def test_one_repeat_says_what_it_does_not_know():
    assert "one repeat" in ratio_of("e2e_p50_s", pairs([1.2]), 0.03).ratio.reason


def test_requests_pair_by_id_and_only_those_both_have():
    a = ([3, 1, 2], Samples(e2e_p50_s=np.array([30.0, 10.0, 20.0])))
    b = ([2, 4, 1], Samples(e2e_p50_s=np.array([200.0, 400.0, 100.0])))
    pair = pair_up(0, a, b)
    assert pair.parent["e2e_p50_s"].tolist() == [10.0, 20.0]
    assert pair.child["e2e_p50_s"].tolist() == [100.0, 200.0]


def test_a_request_in_one_window_only_counts_for_the_rate_of_that_one():
    """A later turn that a slow child puts off until after its window is missing from the child's goodput."""
    a = ([0, 1, 2, 3], Samples(goodput_rps=np.ones(4), attainment=np.ones(4)))
    b = ([0, 1], Samples(goodput_rps=np.ones(2), attainment=np.ones(2)))
    pair = pair_up(0, a, b)
    assert pair.child["goodput_rps"].tolist() == [1, 1, 0, 0]
    assert pair.child["attainment"].tolist() == [1, 1]
    assert ratio_of("goodput_rps", [pair], 0.03).ratio.value == pytest.approx(0.5)


def test_rates_of_one_repeat_are_one_run():
    """Both carry the low rate whole; the high one only the child does."""

    def point(repeat: int, rate: float, parent_good: float, child_good: float) -> Pair:
        rng = np.random.default_rng(repeat)
        parent, child = (Samples(goodput_rps=(rng.random(100) < p).astype(float)) for p in (parent_good, child_good))
        return Pair(repeat=repeat, parent=parent, child=child, rate_rps=rate)

    pairs = [point(i, rate, *good) for i in range(2) for rate, good in ((1.0, (1, 1)), (4.0, (0.2, 0.9)))]
    found = ratio_of("goodput_rps", pairs, 0.03)
    assert found.answer == "better"
    assert found.ratio.value == pytest.approx(1.9 / 1.2, rel=0.1)
    assert "t interval" not in found.ratio.method  # two repeats, not four


def test_requests_that_failed_are_infinitely_late():
    base, child = np.full(100, 1.0), np.full(100, 1.0)
    child[:60] = math.inf
    found = ratio_of("e2e_p50_s", [Pair(repeat=0, parent=samples(base), child=samples(child))], 0.03)
    assert found.child is None
    assert found.ratio.value is None
    assert "infinite" in found.ratio.reason
    assert found.answer in ("not measured", "worse")  # in some resamples the median is finite
    late = np.full(100, math.inf)
    found = ratio_of("e2e_p50_s", [Pair(repeat=0, parent=samples(base), child=samples(late))], 0.03)
    assert found.answer == "worse"


def test_no_time_between_tokens_is_a_time_too():
    """Tokens of one read have a TPOT of 0. With the parent's median at 0 the child is the slower one still."""
    rng = np.random.default_rng(0)
    child = 0.2 * rng.lognormal(0, 0.01, 24)
    for num_zero in (10, 16):
        parent = 0.001 * rng.lognormal(0, 0.5, 24)
        parent[rng.permutation(24)[:num_zero]] = 0.0
        pair = Pair(repeat=0, parent=Samples(tpot_p50_s=parent), child=Samples(tpot_p50_s=child))
        found = ratio_of("tpot_p50_s", [pair], 0.03)
        assert found.answer == "worse"
        assert found.ratio.hi is None
        assert found.ratio.lo is None or found.ratio.lo > 50


def test_no_pairs_is_not_measured():
    assert ratio_of("goodput_rps", [], 0.03).answer == "not measured"


@pytest.mark.parametrize(
    ("lo", "hi", "more_is_better", "answer"),
    [
        (1.05, 1.2, True, "better"),
        (1.05, 1.2, False, "worse"),
        (0.8, 0.9, True, "worse"),
        (0.98, 1.02, True, "same"),
        (1.001, 1.02, True, "same"),
        (0.9, 1.1, True, "inconclusive"),
        (None, None, True, "inconclusive"),
        (1.05, None, True, "better"),
        (None, 0.9, True, "worse"),
        (1.05, None, False, "worse"),
    ],
)
def test_answers(lo, hi, more_is_better, answer):
    ends = [end for end in (lo, hi) if end is not None] or [1.0]
    middle = sum(ends) / len(ends)
    assert answer_of(Estimate(value=middle, lo=lo, hi=hi), [middle], more_is_better, 0.03) == answer


def test_a_repeat_without_a_difference_does_not_speak_against_one():
    better, worse = Estimate(value=1.2, lo=1.1, hi=1.3), Estimate(value=0.8, lo=0.7, hi=0.9)
    assert answer_of(better, [1.4, 1.0], True, 0.03) == "better"
    assert answer_of(worse, [0.6, 1.0], True, 0.03) == "worse"
    assert answer_of(better, [1.5, 0.99], True, 0.03) == "inconclusive"


def test_rates_of_closed_loops_pair_by_run():
    found = ratio_of_runs("goodput_rps", [(10.0, 20.0), (11.0, 22.5), (9.0, 18.0)], 0.03)
    assert found.answer == "better"
    assert found.ratio.value == pytest.approx(2.0, rel=0.02)
    assert ratio_of_runs("goodput_rps", [(10.0, 20.0)], 0.03).answer == "inconclusive"
    assert ratio_of_runs("goodput_rps", [(10.0, 11.0), (11.0, 10.0)], 0.03).answer == "inconclusive"
