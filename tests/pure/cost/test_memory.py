"""The ledger adds up, KV never takes all the rest, and what cannot fit is lowered or refused with numbers."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.pure.config.specs import GEMMA_270M, LLAMA_8B, SMOLLM2

from paceline.contracts.kv import KVLayout, plan_kv_groups
from paceline.cost.memory import (
    GIB,
    MIB,
    MemoryRequest,
    format_bytes,
    kv_blocks_that_fit,
    kv_blocks_useful,
    margin_bytes,
    plan_memory,
    weight_bytes,
)
from paceline.errors import CapacityError


def request(spec=SMOLLM2, **changed):
    values = {
        "groups": plan_kv_groups(spec, 16, 4),
        "device_bytes": 24 * GIB,
        "available_bytes": 20 * GIB,
        "taken_bytes": 0,
        "weight_bytes": weight_bytes(spec, 4),
        "weights_in_place": False,
        "memory_utilization": 0.6,
        "max_model_len": spec.max_model_len,
        "max_model_len_is_set": False,
        "max_num_seqs": 16,
        "chunk_tokens": 48,
        "expected_context": 2048,
        "prefix_cache_reserve": 0.5,
    }
    return MemoryRequest(**{**values, **changed})


def linear(length):
    return 10 * MIB + length * 1024, f"ten MiB and a KiB for each of {length}"


def test_entries_and_what_is_left_add_up_to_the_device():
    plan = plan_memory(request(), linear)
    ledger = plan.ledger
    assert sum(e.predicted_bytes for e in ledger.entries) + ledger.left == ledger.device_bytes
    assert ledger.total <= ledger.budget_bytes
    assert ledger.predicted_peak == ledger.total - ledger.margin.predicted_bytes


def test_kv_is_capped_by_what_sequences_and_prefixes_can_use():
    plan = plan_memory(request(), linear)
    assert plan.num_blocks == 16 * (2048 // 16) * 1.5
    assert plan.ledger.kv.predicted_bytes < 0.15 * 24 * GIB
    assert plan.ledger.kv.predicted_bytes == KVLayout(groups=request().groups, num_blocks=plan.num_blocks).total_bytes
    assert "16 sequences x 2048 tokens" in plan.ledger.kv.how


def test_scarce_memory_goes_to_kv_but_never_the_margin():
    plan = plan_memory(request(available_bytes=2 * GIB), linear)
    ledger = plan.ledger
    assert ledger.margin.predicted_bytes == margin_bytes(ledger.budget_bytes) >= 64 * MIB
    block = request().groups[0].bytes_per_block
    assert 0 <= ledger.budget_bytes - ledger.total < block
    assert any("would use" in note for note in plan.notes)


def test_a_length_from_the_models_configuration_is_lowered_and_said():
    plan = plan_memory(request(available_bytes=int(1.4 * GIB)), linear)
    assert plan.max_model_len < SMOLLM2.max_model_len
    assert any(f"from 8192 to {plan.max_model_len}" in note for note in plan.notes)
    layout = KVLayout(groups=request().groups, num_blocks=plan.num_blocks)
    assert layout.max_blocks(plan.max_model_len, 48) <= plan.num_blocks
    # and it is the longest that fits: one block more does not
    longer = request(available_bytes=int(1.4 * GIB), max_model_len=plan.max_model_len + 16, max_model_len_is_set=True)
    with pytest.raises(CapacityError):
        plan_memory(longer, linear)


def test_a_length_that_was_set_is_refused_with_numbers_and_a_way_out():
    with pytest.raises(CapacityError) as caught:
        plan_memory(request(available_bytes=int(1.4 * GIB), max_model_len_is_set=True), linear)
    lowered = plan_memory(request(available_bytes=int(1.4 * GIB)), linear).max_model_len
    assert f"set max_model_len to {lowered} or less" in caught.value.fix
    assert "8192" in str(caught.value.seen)


def test_weights_larger_than_the_budget_are_refused():
    with pytest.raises(CapacityError, match="no room for a KV cache") as caught:
        plan_memory(request(LLAMA_8B), linear)
    assert format_bytes(weight_bytes(LLAMA_8B, 4)) in caught.value.expected


def test_kv_size_that_was_set_is_taken_exactly_or_refused():
    plan = plan_memory(request(kv_cache_memory=GIB), linear)
    block = request().groups[0].bytes_per_block
    assert GIB - block < plan.ledger.kv.predicted_bytes <= GIB
    with pytest.raises(CapacityError, match="kv_cache_memory does not fit") as caught:
        plan_memory(request(kv_cache_memory=13 * GIB), linear)
    assert "13 GiB" in str(caught.value)


def test_a_small_kv_size_that_was_set_lowers_the_models_length():
    plan = plan_memory(request(kv_cache_memory=64 * MIB), linear)
    assert plan.max_model_len < 8192
    assert plan.notes


def test_weights_in_place_and_weights_to_come_give_the_same_plan():
    weights = weight_bytes(SMOLLM2, 4)
    before = plan_memory(request(available_bytes=3 * GIB), linear)
    after = plan_memory(request(available_bytes=3 * GIB - weights, taken_bytes=weights, weights_in_place=True), linear)
    assert before.num_blocks == after.num_blocks
    assert before.ledger.weights.measured_bytes is None
    assert after.ledger.weights.measured_bytes == weights


def test_every_other_part_takes_its_bytes_from_kv():
    base = plan_memory(request(available_bytes=2 * GIB), linear)
    block = request().groups[0].bytes_per_block
    for part in ("draft_model_bytes", "adapter_bytes", "encoder_bytes", "communication_bytes", "graph_bytes"):
        plan = plan_memory(request(available_bytes=2 * GIB, **{part: 100 * block}), linear)
        assert plan.num_blocks == base.num_blocks - 100


def test_sliding_layers_make_a_sequence_cheaper():
    groups = plan_kv_groups(GEMMA_270M, 16, 4)
    layout = KVLayout(groups=groups, num_blocks=1)
    window = sum(g.max_blocks(32768, 48) for g in groups if g.window)
    assert window == 5 * (-(-(512 + 48) // 16) + 1)
    assert layout.max_blocks(32768, 48) == window + 2048
    useful = kv_blocks_useful(groups, max_num_seqs=4, context_tokens=32768, chunk_tokens=48, reserve=0)
    assert useful == 4 * layout.max_blocks(32768, 48)


def test_the_null_block_is_paid_for():
    groups = request().groups
    block = groups[0].bytes_per_block
    assert kv_blocks_that_fit(10 * block, groups) == 9
    assert kv_blocks_that_fit(block, groups) == 0
    assert kv_blocks_that_fit(-1, groups) == 0


@given(
    available=st.integers(0, 64 * GIB),
    taken=st.integers(0, 8 * GIB),
    utilization=st.floats(0.05, 1.0),
    seqs=st.integers(1, 512),
    chunk=st.integers(1, 4096),
    context=st.integers(1, 32768),
    reserve=st.floats(0, 4),
    is_set=st.booleans(),
    gemma=st.booleans(),
)
def test_any_machine_gets_a_sound_plan_or_a_clear_refusal(
    available, taken, utilization, seqs, chunk, context, reserve, is_set, gemma
):
    asked = request(
        GEMMA_270M if gemma else SMOLLM2,
        available_bytes=available,
        taken_bytes=taken,
        device_bytes=available + taken,
        memory_utilization=utilization,
        max_num_seqs=seqs,
        chunk_tokens=chunk,
        expected_context=context,
        prefix_cache_reserve=reserve,
        max_model_len_is_set=is_set,
    )
    try:
        plan = plan_memory(asked, linear)
    except CapacityError:  # what it says is tested above
        return
    layout = KVLayout(groups=asked.groups, num_blocks=plan.num_blocks)
    assert layout.max_blocks(plan.max_model_len, chunk) <= plan.num_blocks
    assert plan.ledger.total <= plan.ledger.budget_bytes <= available + taken
    assert plan.ledger.margin.predicted_bytes >= 64 * MIB
    assert plan.max_model_len == asked.max_model_len or not is_set


def test_measured_bytes_stand_beside_the_prediction():
    ledger = plan_memory(request(), linear).ledger.with_measured(weights=540 * MIB, activations=20 * MIB)
    assert ledger.weights.measured_bytes == 540 * MIB
    rows = {row[0]: row for row in ledger.render()}
    assert rows["weights"][2] == "540 MiB"
    assert rows["kv"][2] == ""
    assert "adapters" not in rows
    assert {"margin", "total", "left to others"} <= set(rows)
    with pytest.raises(AttributeError):
        ledger.with_measured(nothing=1)


def test_the_ledger_is_a_value():
    ledger = plan_memory(request(), linear).ledger
    assert msgspec.json.decode(msgspec.json.encode(ledger), type=type(ledger)) == ledger


@pytest.mark.parametrize(
    ("num_bytes", "text"), [(0, "0 B"), (1536, "1.5 KiB"), (64 * MIB, "64 MiB"), (3 * GIB, "3 GiB")]
)
def test_bytes_in_words(num_bytes, text):
    assert format_bytes(num_bytes) == text
