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


def test_requests_that_failed_are_infinitely_late():
    base, child = np.full(100, 1.0), np.full(100, 1.0)
    child[:60] = math.inf
    found = ratio_of("e2e_p50_s", [Pair(repeat=0, parent=samples(base), child=samples(child))], 0.03)
    assert found.child is None
    assert found.answer in ("not measured", "worse")


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
    ],
)
def test_answers(lo, hi, more_is_better, answer):
    middle = 1.0 if lo is None else (lo + hi) / 2
    assert answer_of(Estimate(value=middle, lo=lo, hi=hi), [middle], more_is_better, 0.03) == answer


def test_rates_of_closed_loops_pair_by_run():
    found = ratio_of_runs("goodput_rps", [(10.0, 20.0), (11.0, 22.5), (9.0, 18.0)], 0.03)
    assert found.answer == "better"
    assert found.ratio.value == pytest.approx(2.0, rel=0.02)
    assert ratio_of_runs("goodput_rps", [(10.0, 20.0)], 0.03).answer == "inconclusive"
    assert ratio_of_runs("goodput_rps", [(10.0, 11.0), (11.0, 10.0)], 0.03).answer == "inconclusive"
