"""From looks to samples: windows, gaps, restarts, percentiles."""

import math

from tests.pure.server.telemetry.live_kit import Record, stats

from paceline.server.telemetry.live_samples import MAX_DOTS, Sampler


def test_percentiles_are_of_the_window_and_say_how_many():
    sampler = Sampler(window_s=60.0)
    sampler.on_finish(Record(9.9), 0.0)
    for index in range(1, 101):
        sampler.on_finish(Record(index / 1000, index / 10_000), 50.0)
    sampler.on_finish(Record(math.nan), 50.0)  # it ended without a token
    sample = sampler.take(100.0, None, state="ready")
    assert (sample.num_ttft, sample.ttft_p50, sample.ttft_p95) == (100, 50.0, 95.0)
    assert (sample.num_tpot, sample.tpot_p50, sample.tpot_p95) == (100, 5.0, 9.5)
    assert sample.finished is not None
    assert len(sample.finished) == MAX_DOTS
    assert sampler.take(100.5, None, state="ready").finished is None
    assert sampler.take(200.0, None, state="ready").ttft_p50 is None


def test_a_request_of_one_chunk_has_no_tpot():
    sampler = Sampler()
    sampler.on_finish(Record(0.25), 1.0)
    sample = sampler.take(1.0, None, state="ready")
    assert sample.finished == [(250.0, None)]
    assert (sample.num_ttft, sample.num_tpot, sample.tpot_p50) == (1, 0, None)


def test_the_hit_rate_is_of_the_window():
    sampler = Sampler(window_s=10.0, max_gap_s=20.0)
    rates = [
        sampler.take(t, stats(hits=hits, asked=asked, step=int(t)), state="ready").hit_rate
        for t, hits, asked in ((0.0, 0, 1000), (5.0, 50, 1100), (10.0, 50, 1200), (15.0, 150, 1300), (26.0, 150, 1300))
    ]
    assert rates == [None, 0.5, 0.25, 0.5, None]


def test_looks_far_apart_have_no_rate_between_them():
    sampler = Sampler(max_gap_s=5.0)
    sampler.take(0.0, stats(step=1, output=1, computed=1), state="ready")
    assert sampler.take(1.0, stats(step=2, output=11, computed=11), state="ready").output_tps == 10.0
    assert sampler.take(60.0, stats(step=3, output=900, computed=900), state="ready").output_tps is None


def test_an_engine_with_slow_steps_does_not_flicker():
    sampler = Sampler()
    rates = []
    for look in range(24):  # a step of 8 tokens every 1.5 s, looked at every half second
        steps = look // 3
        sample = sampler.take(look / 2, stats(step=steps, output=8 * steps, computed=8 * steps), state="ready")
        rates.append(sample.output_tps)
    assert all(rate > 0 for rate in rates[4:])


def test_a_counter_that_falls_is_another_engine_even_if_nobody_counted_the_restart():
    sampler = Sampler()
    sampler.take(0.0, stats(step=50, output=100, computed=400), state="ready")
    sample = sampler.take(0.5, stats(step=60, output=3, computed=500), state="ready")
    assert (sample.output_tps, sample.steps) == (None, None)


def test_a_step_is_split_into_output_and_the_rest():
    sampler = Sampler()
    sampler.take(0.0, stats(step=10), state="ready")
    sample = sampler.take(0.5, stats(step=14, computed=100, output=20), state="ready")
    assert (sample.steps, sample.step_output, sample.step_prompt) == (4, 5.0, 20.0)
    idle = sampler.take(3.0, stats(step=14, computed=100, output=20), state="ready")
    assert (idle.steps, idle.step_output, idle.output_tps) == (0, None, 0.0)
