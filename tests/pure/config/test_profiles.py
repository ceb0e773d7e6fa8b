"""Profiles: knobs follow model and device, explicit values win, contradictions are refused, all have reasons."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.pure.config.specs import GEMMA_270M, GPU, LAPTOP, LLAMA_8B, SERVER, SMOLLM2

from paceline.config import load_config, resolve_knobs
from paceline.config.profiles import GOALS
from paceline.config.roofline import Roofline
from paceline.errors import ConfigError

PROFILES = ("interactive", "batch", "long-context")


def knobs(spec=SMOLLM2, device=LAPTOP, dtype_bytes=4, **flags):
    return resolve_knobs(load_config(None, flags), spec, device, dtype_bytes=dtype_bytes)


def values(result):
    return {d.name: d.value for d in result.derived}


@pytest.mark.parametrize("profile", PROFILES)
def test_a_profile_yields_different_values_for_two_devices(profile):
    small, large = knobs(profile=profile), knobs(device=SERVER, profile=profile)
    assert large.prefill_chunk_tokens > small.prefill_chunk_tokens
    assert large.max_num_batched_tokens > small.max_num_batched_tokens
    assert large.max_num_seqs >= small.max_num_seqs
    assert values(small) != values(large)


def test_profiles_differ_in_the_direction_of_their_purpose():
    interactive, batch, long = (knobs(GEMMA_270M, profile=p) for p in PROFILES)
    assert batch.prefill_chunk_tokens > interactive.prefill_chunk_tokens
    assert batch.max_num_seqs > interactive.max_num_seqs
    assert batch.prefill_priority == "prefill_first"
    assert interactive.prefill_priority == long.prefill_priority == "decode_first"
    assert batch.max_wait_ms > interactive.max_wait_ms == 0
    assert long.expected_context == GEMMA_270M.max_model_len > interactive.expected_context


def test_chunk_is_the_stated_formula():
    # 100 ms * 150 GFLOPS / (2 * weights), in whole blocks of 16
    expected = int(0.1 * 150e9 / (2 * SMOLLM2.num_parameters)) // 16 * 16
    result = knobs()
    assert result.prefill_chunk_tokens == expected
    assert "150 GFLOPS" in result.reason("prefill_chunk_tokens")


def test_untied_input_embeddings_are_not_counted_as_arithmetic():
    roof = Roofline(LLAMA_8B, GPU, 2, 2)
    assert roof.matmul_weights == LLAMA_8B.num_parameters - LLAMA_8B.vocab_size * LLAMA_8B.hidden_size


def test_rows_keep_a_decode_step_within_the_target():
    result = knobs()
    roof = Roofline(SMOLLM2, LAPTOP, 4, 4)
    assert roof.decode_ms(result.max_num_seqs, result.expected_context // 2) <= 50.0


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("device", [LAPTOP, SERVER, GPU], ids=lambda d: d.name)
@pytest.mark.parametrize("spec", [SMOLLM2, GEMMA_270M, LLAMA_8B], ids=lambda s: s.name)
def test_derived_values_are_consistent(spec, device, profile):
    result = knobs(spec, device, 2, profile=profile)
    assert result.max_num_batched_tokens >= result.max_num_seqs + result.prefill_chunk_tokens
    assert 1 <= result.min_prefill_tokens <= result.prefill_chunk_tokens
    assert result.prefill_chunk_tokens % 16 == 0
    assert result.expected_context <= result.max_model_len
    assert 0 <= result.watermark <= 0.1


def test_every_knob_has_one_reason_and_reasons_hold_numbers():
    result = knobs()
    names = [f.name for f in msgspec.structs.fields(result) if f.name != "derived"]
    assert sorted(values(result)) == sorted(names)
    assert all(getattr(result, d.name) == d.value and d.reason for d in result.derived)
    for name in ("max_num_seqs", "prefill_chunk_tokens", "watermark", "max_num_batched_tokens"):
        assert any(c.isdigit() for c in result.reason(name)), name


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_num_seqs", 3),
        ("max_num_batched_tokens", 77),
        ("prefill_chunk_tokens", 20),
        ("min_prefill_tokens", 5),
        ("prefill_priority", "prefill_first"),
        ("scheduling_mode", "fixed"),
        ("max_wait_ms", 7.5),
        ("watermark", 0.25),
        ("memory_utilization", 0.33),
        ("expected_context", 100),
        ("prefix_cache_reserve", 0.1),
        ("max_model_len", 4000),
    ],
)
def test_a_value_that_was_set_wins_and_the_reason_says_so(name, value):
    result = knobs(**{name: value})
    assert getattr(result, name) == value
    found = next(d for d in result.derived if d.name == name)
    assert found.source == "set"
    assert "would take" in found.reason


def test_no_prefix_cache_keeps_no_memory_for_it():
    result = knobs(enable_prefix_caching=False)
    assert result.prefix_cache_reserve == 0
    assert "off" in result.reason("prefix_cache_reserve")


def test_a_small_step_that_was_set_shrinks_what_is_derived():
    result = knobs(max_num_batched_tokens=24)
    assert result.max_num_seqs <= 24
    assert result.max_num_seqs - 1 + result.min_prefill_tokens <= 24
    assert result.prefill_chunk_tokens == 24
    assert "was set" in result.reason("prefill_chunk_tokens")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"max_num_batched_tokens": 8, "max_num_seqs": 16}, "max_num_batched_tokens is smaller than max_num_seqs"),
        ({"max_num_batched_tokens": 64, "prefill_chunk_tokens": 128}, "prefill_chunk_tokens is larger than a step"),
        ({"max_num_batched_tokens": 64, "min_prefill_tokens": 65}, "min_prefill_tokens and the other rows"),
        ({"max_model_len": 8193}, "longer than the model was made for"),
        ({"max_model_len": 512, "expected_context": 513}, "longer than any sequence"),
    ],
)
def test_contradictions_are_refused_with_numbers(flags, words):
    with pytest.raises(ConfigError, match=words) as caught:
        knobs(**flags)
    assert any(c.isdigit() for c in str(caught.value))


@given(gflops=st.floats(0.5, 1e6), gbps=st.floats(0.5, 5e3), memory=st.integers(1 << 28, 1 << 42), two=st.booleans())
def test_any_device_gives_usable_knobs(gflops, gbps, memory, two):
    device = msgspec.structs.replace(LAPTOP, gflops=gflops, memory_gbps=gbps, memory_bytes=memory)
    for profile in PROFILES:
        result = knobs(LLAMA_8B if two else SMOLLM2, device, profile=profile)
        assert result.max_num_seqs >= 1
        assert result.prefill_chunk_tokens >= 1
        assert result.max_num_seqs - 1 + result.min_prefill_tokens <= result.max_num_batched_tokens
        assert result.max_num_batched_tokens >= result.max_num_seqs


@pytest.mark.parametrize("profile", PROFILES)
def test_rates_of_a_busy_machine_do_not_shrink_a_batch_to_nothing(profile):
    busy = msgspec.structs.replace(LAPTOP, gflops=LAPTOP.gflops / 200, memory_gbps=LAPTOP.memory_gbps / 10)
    goal = GOALS[profile]
    result = knobs(device=busy, profile=profile)
    assert result.max_num_seqs == goal.min_rows
    assert result.prefill_chunk_tokens >= goal.min_chunk
    for name in ("max_num_seqs", "prefill_chunk_tokens"):
        assert "busy" in result.reason(name)
    # what memory holds still binds, and what was set still wins
    tight = msgspec.structs.replace(busy, memory_bytes=(SMOLLM2.num_parameters * 4 + (1 << 20)) * 2)
    assert knobs(device=tight, profile=profile, memory_utilization=0.5).max_num_seqs == 1
    assert knobs(device=busy, profile=profile, max_num_seqs=1).max_num_seqs == 1


def test_the_scheduling_mode_goes_with_what_it_decides():
    auto = knobs(profile="batch", scheduling_mode="auto")
    assert (auto.scheduling_mode, auto.prefill_priority) == ("auto", "decode_first")
    assert knobs(profile="interactive").scheduling_mode == "auto"
    assert knobs(profile="interactive", batching="static").scheduling_mode == "fixed"
    assert knobs(profile="batch").scheduling_mode == "fixed"
    for other in ({"batching": "static"}, {"prefill_priority": "prefill_first"}):
        with pytest.raises(ConfigError, match="decides by itself"):
            knobs(profile="interactive", scheduling_mode="auto", **other)
