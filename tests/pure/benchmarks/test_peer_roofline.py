"""The limit of each load, by hand and by what must hold of any machine."""

import pytest
from benchmarks.peers.engines.roofline import Rates, Sizes, causal, limit, step, steps, total
from benchmarks.peers.engines.workloads import FULL, Load, speed
from hypothesis import given
from hypothesis import strategies as st

TINY = Sizes(weight_bytes=1000, num_linear=900, num_head=100, num_layers=2, num_heads=4, num_kv_heads=1, head_dim=8)
RATE = st.floats(1e6, 1e15)
RATES = st.builds(Rates, bytes_per_s=RATE, int8_ops=RATE, bf16_ops=RATE)


def test_sizes_by_hand():
    assert TINY.kv_bytes_per_token == 2 * 2 * 1 * 8 * 2
    assert TINY.ops_per_pair == 4 * 2 * 4 * 8


def test_pairs_of_a_prompt():
    assert causal(4) == 1 + 2 + 3 + 4
    assert causal(2, before=10) == 11 + 12


def test_a_step_by_hand():
    work = step(TINY, num_tokens=3, num_sampled=2, num_pairs=7, num_kv_tokens=5)
    assert work.linear_ops == 2 * (900 * 3 + 100 * 2)
    assert work.attention_ops == 256 * 7
    assert work.num_bytes == 1000 + 64 * 5
    reads = Rates(bytes_per_s=10.0, int8_ops=1e9, bf16_ops=1e9)
    computes = Rates(bytes_per_s=1e9, int8_ops=10.0, bf16_ops=256.0)
    assert work.seconds(reads) == 132.0
    assert work.seconds(computes) == 580.0 + 7.0


def test_one_stream_that_waits_for_memory():
    load, rates = Load("W1", 1, 4, 3), Rates(bytes_per_s=1e3, int8_ops=1e12, bf16_ops=1e12)
    # two steps, with five and six tokens in the cache
    assert limit(load, TINY, rates) == pytest.approx(2 / ((1000 + 64 * 5 + 1000 + 64 * 6) / 1e3))


def test_a_prompt_that_waits_for_arithmetic():
    load, rates = Load("W2", 1, 16, 1), Rates(bytes_per_s=1e15, int8_ops=1e3, bf16_ops=1e3)
    ops = 2 * (900 * 16 + 100) + 256 * causal(16)
    assert limit(load, TINY, rates) == pytest.approx(16 / (ops / 1e3))


def test_what_rows_share_is_computed_and_read_once():
    shared = Load("W4", 8, 32, 2, num_shared=24)
    prompt, decode = steps(shared, TINY)
    assert prompt.linear_ops == 2 * (900 * (24 + 8 * 8) + 100 * 8)
    assert prompt.attention_ops == 256 * (causal(24) + 8 * causal(8, 24))
    assert decode.num_bytes == 1000 + 64 * (24 + 8 * 9)
    assert decode.attention_ops == 256 * 8 * 33


@given(st.sampled_from(list(FULL.values())), RATES, st.sampled_from(["bytes_per_s", "int8_ops", "bf16_ops"]))
def test_a_faster_machine_has_no_lower_limit(load, rates, name):
    faster = Rates(**vars(rates) | {name: 2 * getattr(rates, name)})
    better = speed(load.name, limit(load, TINY, faster)) / speed(load.name, limit(load, TINY, rates))
    assert 1 - 1e-9 <= better <= 2 + 1e-9


def test_totals_are_sums_of_steps():
    works = list(steps(FULL["W3"], TINY))
    assert len(works) == 128
    assert total(FULL["W3"], TINY).num_bytes == sum(work.num_bytes for work in works)
