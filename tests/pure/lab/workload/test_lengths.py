from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import ConfigError
from paceline.lab.workload.draw import uniforms
from paceline.lab.workload.lengths import Empirical, Fixed, Histogram, Length, Lognormal, Uniform

U = uniforms(50_000, "lengths")


def test_lognormal_has_its_median_and_p99() -> None:
    drawn = Lognormal(p50=1000, p99=7400).sample(U)
    assert np.percentile(drawn, 50) == pytest.approx(1000, rel=0.03)
    assert np.percentile(drawn, 99) == pytest.approx(7400, rel=0.06)


def test_uniform_takes_every_whole_number_alike() -> None:
    counts = np.bincount(Uniform(min=3, max=7).sample(U).astype(int))
    assert list(np.flatnonzero(counts)) == [3, 4, 5, 6, 7]
    assert counts[3:].min() > 9400


def test_histogram_bins_have_their_weights() -> None:
    drawn = Histogram(edges=(0, 100, 1000), weights=(3, 1)).sample(U)
    assert np.mean(drawn <= 100) == pytest.approx(0.75, abs=0.01)
    assert drawn.max() <= 1000


def test_empirical_draws_what_was_seen(tmp_path: Path) -> None:
    assert set(Empirical(values=(5, 9, 9, 40)).sample(U)) == {5.0, 9.0, 40.0}
    file = tmp_path / "lengths.csv"
    file.write_text("input,output\n10,1\n20,2\n", encoding="utf-8")
    assert set(Empirical(file=str(file), column="output").sample(U)) == {1.0, 2.0}
    file.write_text("7\n8\n", encoding="utf-8")
    assert set(Empirical(file=str(file)).sample(U)) == {7.0, 8.0}


@pytest.mark.parametrize(
    "length",
    [
        Fixed(tokens=12),
        Uniform(min=2, max=9),
        Lognormal(p50=40, p99=90, max=60),
        Histogram(edges=(1, 5, 50), weights=(1, 1)),
        Empirical(values=(2, 4)),
    ],
)
def test_means_agree_with_draws(length: Length) -> None:
    assert length.mean() == pytest.approx(length.sample(U).mean(), rel=0.02)


@given(st.floats(1, 1e4), st.floats(1, 20), st.integers(1, 50), st.integers(0, 10**4))
def test_clipping_holds(p50: float, factor: float, low: int, more: int) -> None:
    drawn = Lognormal(p50=p50, p99=p50 * factor, min=low, max=low + more).sample(U[:200])
    assert drawn.min() >= low
    assert drawn.max() <= low + more
    assert np.array_equal(drawn, np.rint(drawn))


@pytest.mark.parametrize(
    "wrong",
    [
        Fixed(tokens=0),
        Fixed(tokens=4, min=9, max=3),
        Uniform(min=3),
        Lognormal(p50=10, p99=5),
        Histogram(edges=(1, 2), weights=(1, 2)),
        Histogram(edges=(1, 2), weights=(0,)),
        Empirical(),
        Empirical(values=(1,), file="x"),
    ],
)
def test_lengths_that_cannot_be_are_refused(wrong: Length) -> None:
    with pytest.raises(ConfigError, match="input"):
        wrong.check("input")


def test_a_broken_file_of_lengths_is_named(tmp_path: Path) -> None:
    file = tmp_path / "lengths.csv"
    file.write_text("a,b\n1,x\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="line 2 is not a number"):
        Empirical(file=str(file), column="b").sample(U[:1])
    with pytest.raises(ConfigError, match="no column 'c'"):
        Empirical(file=str(file), column="c").sample(U[:1])
    with pytest.raises(ConfigError, match="cannot be read"):
        Empirical(file=str(tmp_path / "none")).sample(U[:1])
