import math

import pytest

from paceline.contracts.slo import Outcome, Slo, Timeline, goodput, min_samples, percentile


def timeline(*chunks: tuple[float, int], planned: float = 0.0, outcome: Outcome = Outcome.OK) -> Timeline:
    return Timeline(planned=planned, arrival=planned, chunks=list(chunks), outcome=outcome)


def test_ttft_counts_from_the_planned_time_not_from_the_arrival() -> None:
    late = Timeline(planned=1.0, arrival=3.0, admitted=4.0, chunks=[(5.0, 1)])
    assert late.ttft_s == 4.0
    assert late.queue_s == 1.0


def test_tpot_excludes_every_token_of_the_first_chunk() -> None:
    assert timeline((1.0, 3), (2.0, 1), (3.0, 1)).tpot_s == 1.0


def test_mean_itl_equals_tpot_when_chunks_bring_several_tokens() -> None:
    bundled = timeline((1.0, 2), (2.0, 4), (2.5, 1), (4.0, 3))
    gaps = bundled.itl_s()
    assert len(gaps) == 8
    assert sum(gaps) / len(gaps) == pytest.approx(bundled.tpot_s)


def test_undefined_numbers_are_nan_never_zero() -> None:
    nothing = timeline()
    assert all(math.isnan(x) for x in (nothing.ttft_s, nothing.tpot_s, nothing.e2e_s))
    assert math.isnan(timeline((1.0, 5)).tpot_s)


@pytest.mark.parametrize(
    ("line", "good"),
    [
        (timeline((0.5, 1), (0.6, 1)), True),
        (timeline((1.5, 1), (1.6, 1)), False),  # TTFT missed
        (timeline((0.5, 1), (0.9, 1)), False),  # TPOT missed
        (timeline((0.5, 2)), True),  # TPOT undefined: one chunk, vacuously met
        (timeline(), False),  # no token at all
        (timeline((0.5, 1), (0.6, 1), outcome=Outcome.REJECTED), False),
        (timeline((0.5, 1), (0.6, 1), outcome=Outcome.TIMEOUT), False),
    ],
)
def test_good_means_ended_well_within_every_target(line: Timeline, good: bool) -> None:
    assert line.is_good(Slo(ttft_s=1.0, tpot_s=0.2, e2e_s=10.0)) is good


def test_invalid_output_is_never_good() -> None:
    assert not timeline((0.5, 1)).is_good(Slo(), valid=False)


def test_goodput_counts_misses_in_the_window_only_as_not_good() -> None:
    lines = [timeline((0.5, 1)), timeline((2.0, 1)), timeline(outcome=Outcome.HTTP_ERROR)]
    assert goodput(lines, Slo(ttft_s=1.0), window_s=2.0) == 0.5


@pytest.mark.parametrize("q", [0.01, 0.5, 0.9, 0.95, 0.99, 1.0])
@pytest.mark.parametrize("n", [1, 2, 20, 100, 299])
def test_percentile_is_at_most_l_exactly_when_that_share_is(q: float, n: int) -> None:
    samples = [float((7 * i) % n) for i in range(n)]
    value = percentile(samples, q)
    assert sum(s <= value for s in samples) >= q * n - 1e-6
    assert sum(s < value for s in samples) < q * n


def test_a_request_without_first_token_counts_as_infinitely_late() -> None:
    assert percentile([0.1] * 98 + [math.nan] * 2, 0.99) == math.inf
    assert math.isnan(percentile([], 0.5))


def test_thin_percentiles_have_a_least_sample_count() -> None:
    assert [min_samples(0.95), min_samples(0.99), min_samples(0.999)] == [59, 299, 2995]
    assert [min_samples(q, 0.99) for q in (0.95, 0.99, 0.999)] == [90, 459, 4603]
