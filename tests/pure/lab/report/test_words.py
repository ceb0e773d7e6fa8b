from __future__ import annotations

import math

import pytest

from paceline.contracts.artefact import Estimate
from paceline.lab.report.words import (
    by_unit,
    exact,
    in_parts,
    interval_of,
    named,
    number,
    plain,
    seconds,
    share,
    value_of,
)


def said(text: str) -> str:
    return text.replace("\u00a0", " ")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (12.345, "12.3"),
        (1234.4, "1,234"),
        (0.9996, "1.00"),
        (0.01234, "0.0123"),
        (-0.5, "−0.500"),
        (0, "0"),
        (99.96, "100"),
        (123456.7, "123,457"),
        (None, "–"),
        (math.nan, "–"),
        (math.inf, "∞"),
        (-math.inf, "−∞"),
        (3e12, "3.00e+12"),
    ],
)
def test_numbers_keep_three_digits(value, text):
    assert number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0123, "12.3 ms"), (0.9994, "999 ms"), (0.9999, "1.00 s"), (3.2, "3.20 s"), (600, "10.0 min"), (None, "–")],
)
def test_times_choose_their_unit(value, text):
    assert said(seconds(value)) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.5, "50 %"),
        (0.9997, "99.97 %"),
        (0.0003, "0.03 %"),
        (1.0, "100 %"),
        (0.0, "0 %"),
        (-0.012, "−1.2 %"),
        (None, "–"),
    ],
)
def test_shares_never_round_to_all_or_nothing(value, text):
    assert said(share(value)) == text


def test_limits_lose_the_zeros_a_measurement_keeps():
    assert said(seconds(0.4)) == "400 ms"
    assert said(seconds(0.04)) == "40.0 ms"
    assert said(exact(0.04)) == "40 ms"
    assert said(exact(1.5)) == "1.5 s"
    assert said(exact(8.0, "req/s")) == "8 req/s"
    assert said(exact(100.0, "req/s")) == "100 req/s"


def test_estimates_have_an_interval_or_a_reason():
    assert said(interval_of(Estimate(value=0.2, lo=0.15, hi=0.25, unit="s"))) == "[150, 250] ms"
    assert said(interval_of(Estimate(value=0.9, lo=0.86, hi=1.1, unit="s"))) == "[0.860, 1.10] s"
    assert said(interval_of(Estimate(value=0.95, lo=0.92, hi=0.98, unit="share"))) == "[92, 98] %"
    assert said(interval_of(Estimate(value=9, lo=8.5, hi=9.5, unit="req/s"))) == "[8.50, 9.50]"
    assert said(interval_of(Estimate(value=0.2, lo=0.1, unit="s"))) == "[100, ∞] ms"
    assert interval_of(Estimate(reason="58 samples; p95 needs 59")) == "58 samples; p95 needs 59"
    assert interval_of(Estimate()) == "not measured"
    assert interval_of(Estimate(value=1.0, reason="one request")) == "one request"
    assert value_of(Estimate()) == "–"
    assert said(value_of(Estimate(value=2.5, unit="x"))) == "2.50 ×"
    assert said(by_unit(2.5, "J")) == "2.50 J"
    assert in_parts(value_of(Estimate(value=0.5, unit="s"))) == ("500", "ms")


def test_stored_names_give_their_unit_to_the_value():
    assert (named("memory_bytes", 8 << 30)[0], said(named("memory_bytes", 8 << 30)[1])) == ("memory", "8.00 GiB")
    assert said(named("ready_s", 3.2)[1]) == "3.20 s"
    assert said(named("lag_p99_ms", 1500.0)[1]) == "1.50 s"
    assert named("dirty", False) == ("dirty", "no")
    assert plain({"a": 1, "b": [True, None]}) == "a 1, b yes, –"
    assert plain("") == "–"
