"""The loads that engines are compared on: the same for all, new in each round, and what is counted of them."""

import itertools

import pytest
from benchmarks.peers.engines.workloads import (
    FULL,
    QUICK,
    UNIT,
    Load,
    arrivals,
    calls,
    cut,
    figure,
    figure_of,
    seconds_of,
    speed,
)
from hypothesis import given
from hypothesis import strategies as st

TEXT = list(range(100_000))


@pytest.mark.parametrize("load", [*FULL.values(), *QUICK.values()], ids=lambda load: load.words)
def test_a_round_asks_for_what_its_load_says(load):
    asked = calls(load, 0, TEXT)
    assert asked[-1].num_out == load.num_out
    for call in asked:
        assert [len(ids) for ids in call.prompts] == [load.num_in] * load.num_prompts
        assert len({tuple(ids[: load.num_shared]) for ids in call.prompts}) == 1
        assert len({tuple(ids) for ids in call.prompts}) == load.num_prompts
    assert calls(load, 0, TEXT) == asked


def test_no_round_finds_a_prefix_of_another():
    begins = [tuple(calls(FULL["W4"], round_, TEXT)[0].prompts[0][:16]) for round_ in range(-1, 5)]
    assert len(set(begins)) == len(begins)


def test_a_single_stream_asks_for_one_token_first_of_another_prompt():
    first, whole = calls(FULL["W1"], 0, TEXT)
    assert (first.num_out, whole.num_out) == (1, 128)
    assert first.prompts != whole.prompts


def test_figures_by_hand():
    assert figure(FULL["W1"], [0.5, 1.77]) == pytest.approx(127 / 1.27)
    assert figure(FULL["W2"], [2.0]) == 1024.0
    assert figure(FULL["W3"], [16.0]) == 512.0
    assert figure(FULL["W4"], [16.0]) == 16.0
    assert (speed("W3", 512.0), speed("W4", 16.0)) == (512.0, 1 / 16)


@given(st.sampled_from(sorted(UNIT)), st.floats(1e-3, 1e3))
def test_a_figure_tells_its_seconds(name, seconds):
    assert seconds_of(FULL[name], figure_of(FULL[name], seconds)) == pytest.approx(seconds)


def test_arrivals_are_the_same_for_all_and_within_their_lengths():
    found = arrivals(2.0, 400, TEXT)
    assert found == arrivals(2.0, 400, TEXT)
    assert all(a.at_s < b.at_s for a, b in itertools.pairwise(found))
    assert 150 < found[-1].at_s < 260  # 400 at 2/s
    assert {64 <= len(a.ids) <= 1024 and 16 <= a.num_out <= 256 for a in found} == {True}
    assert arrivals(3.0, 10, TEXT)[0].ids != found[0].ids


def test_a_text_that_is_too_short_is_refused():
    import random

    with pytest.raises(ValueError, match="10 tokens, 10 are wanted"):
        cut(TEXT[:10], 10, random.Random(0))


def test_words_of_a_load():
    assert Load("W4", 32, 1088, 32, num_shared=1024).words == "32 x 1088 in, 1024 shared, 32 out"
