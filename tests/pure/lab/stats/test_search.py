"""The search for the highest rate that holds: simulated servers whose answer is known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from paceline.errors import ConfigError
from paceline.lab.stats import Bracket, RateSearch


def run(search: RateSearch, share_at: object, n: int, rng: np.random.Generator | None) -> Bracket:
    """`share_at(rate)` is the true share; without `rng` exactly that share is measured."""
    while (rate := search.next()) is not None:
        share = share_at(rate)  # type: ignore[operator]
        search.add(rate, rng.binomial(n, share) if rng is not None else share * n, n)
    return search.result()


def logistic(centre: float, width: float) -> object:
    return lambda rate: 1 / (1 + math.exp(min(500.0, (rate - centre) / width)))


def test_without_noise_the_bracket_closes_on_the_truth() -> None:
    truth = 10 - 0.5 * math.log(9)  # where the share is 0.9
    for start in (0.5, 2.0, 9.0, 40.0):
        found = run(RateSearch(share=0.9, start=start), logistic(10, 0.5), 10_000, None)
        assert found.answer == "bracketed"
        assert found.highest_pass is not None
        assert found.lowest_fail is not None
        assert found.highest_pass <= truth <= found.lowest_fail
        assert found.lowest_fail / found.highest_pass <= 1.0501
        assert found.rate.value == pytest.approx(truth, rel=0.05)


def test_with_noise_the_interval_holds_the_truth() -> None:
    rng = np.random.default_rng(1)
    truth = 10 - 0.8 * math.log(9)
    inside, values, measured = 0, [], []
    for _ in range(40):
        search = RateSearch(share=0.9, start=2.0)
        found = run(search, logistic(10, 0.8), 100, rng)
        assert found.rate.lo is not None
        assert found.rate.hi is not None
        inside += found.rate.lo <= truth <= found.rate.hi
        values.append(found.rate.value)
        measured.append(search.num_measured)
    assert inside / 40 >= 0.85
    assert np.mean(values) == pytest.approx(truth, rel=0.03)
    assert max(measured) <= 20


def test_a_cliff_is_told() -> None:
    def falls(rate: float) -> float:
        return 0.99 if rate <= 10 else 0.2

    assert run(RateSearch(share=0.9, start=4), falls, 200, np.random.default_rng(2)).cliff
    assert not run(RateSearch(share=0.9, start=4), logistic(10, 3.0), 200, np.random.default_rng(2)).cliff


def test_never_fails_and_never_holds() -> None:
    top = run(RateSearch(share=0.9, start=2, highest=16), lambda _: 1.0, 100, None)
    assert (top.answer, top.highest_pass, top.lowest_fail) == ("at least", 16, None)
    low = run(RateSearch(share=0.9, start=2, lowest=0.5), lambda _: 0.1, 100, None)
    assert (low.answer, low.highest_pass, low.lowest_fail) == ("none", None, 0.5)


def test_doubtful_ends_are_measured_again() -> None:
    search = RateSearch(share=0.9, start=10, growth=1.04, precision=0.05, max_repeats=3)
    search.add(10, 92, 100)
    search.add(10.4, 88, 100)
    assert search.next() == 10
    search.add(10, 92, 100)
    search.add(10, 92, 100)
    assert search.next() == 10.4
    sure = RateSearch(share=0.9, start=10, precision=0.05)
    sure.add(10, 100, 100)
    sure.add(10.4, 20, 100)
    assert sure.next() is None


def test_a_lucky_point_above_an_unlucky_one_is_smoothed() -> None:
    search = RateSearch(share=0.9, start=10)
    search.add(8, 100, 100)
    search.add(10, 89, 100)
    search.add(12, 93, 100)
    search.add(14, 50, 100)
    found = search.result()
    assert found.highest_pass == 12  # 10 and 12 together hold 91 %
    assert [round(p.fitted, 2) for p in found.points] == [1.0, 0.91, 0.91, 0.5]


def test_budget_ends_the_search() -> None:
    search = RateSearch(share=0.9, start=1, max_points=3)
    found = run(search, logistic(1000, 10), 50, None)
    assert search.num_measured == 3
    assert found.answer == "at least"
    assert RateSearch(share=0.9, start=1).result().answer == "open"


@pytest.mark.parametrize("wrong", [{"share": 1.0}, {"start": 0.0}, {"growth": 1.0}, {"precision": 0.0}])
def test_wrong_searches_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        RateSearch(**{"share": 0.9, "start": 1.0, **wrong})  # type: ignore[arg-type]


def test_empty_measurements_are_refused() -> None:
    with pytest.raises(ConfigError):
        RateSearch(share=0.9, start=1.0).add(1.0, 0, 0)
