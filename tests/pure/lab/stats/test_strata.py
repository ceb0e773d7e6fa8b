"""Ratios over parts that differ by design."""

from __future__ import annotations

import math

import numpy as np
import pytest

from paceline.lab.stats.paired import mean_ratio
from paceline.lab.stats.strata import stratified_ratio


def shares(rng: np.random.Generator, *parts: tuple[float, float], n: int = 100):
    """(A, B) of each part: the same request is good in both when its luck is."""
    found = []
    for in_a, in_b in parts:
        luck = rng.random(n)
        found.append(((luck < in_a).astype(float), (luck < in_b).astype(float)))
    return found


def test_steps_between_parts_are_no_dependence():
    parts = shares(np.random.default_rng(0), (1.0, 1.0), (0.2, 0.9))
    found = stratified_ratio(parts)
    assert found.value == pytest.approx(1.9 / 1.2, rel=0.1)
    assert found.lo > 1.2
    assert found.p < 0.01
    whole = mean_ratio(*(np.concatenate(side) for side in zip(*parts, strict=True)))
    assert whole.value == pytest.approx(found.value)
    assert whole.lo < found.lo


def test_the_interval_holds_the_truth():
    """Two parts of 0.95 and 0.5 against 0.97 and 0.7, drawn anew each time; and tokens, which are no shares."""
    inside = {"shares": 0, "tokens": 0}
    for seed in range(300):
        rng = np.random.default_rng(seed)
        parts = shares(rng, (0.95, 0.97), (0.5, 0.7))
        found = stratified_ratio(parts)
        inside["shares"] += found.lo <= (0.97 + 0.7) / (0.95 + 0.5) <= found.hi
        sizes = [rng.integers(8, 32, 100) for _ in parts]
        found = stratified_ratio([(a * s, b * s) for (a, b), s in zip(parts, sizes, strict=True)])
        inside["tokens"] += found.lo <= (0.97 + 0.7) / (0.95 + 0.5) <= found.hi
    assert min(inside.values()) >= 280  # of 300; 285 on average for 95 %


def test_nothing_seen_is_not_nothing_there():
    ones = np.ones(50)
    found = stratified_ratio([(ones, ones), (ones, ones)])
    assert found.value == 1.0
    assert found.lo < 1.0 < found.hi


def test_a_part_that_one_arm_carries_nothing_of():
    rng = np.random.default_rng(0)
    found = stratified_ratio(shares(rng, (1.0, 1.0), (0.0, 0.8)))
    assert found.lo > 1.5
    assert math.isnan(stratified_ratio(shares(rng, (0.0, 0.5), (0.0, 0.8))).value)
    none = stratified_ratio(shares(rng, (1.0, 0.0), (0.5, 0.0)))
    assert (none.value, none.lo) == (0.0, 0.0)
    assert none.hi < 0.1
