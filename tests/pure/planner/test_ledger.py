"""One function for memory: a plan's ledger is the engine's, entry by entry, at the boundary too."""

import msgspec
import pytest
from tests.pure.planner.kit import question

from paceline.config import resolve_knobs
from paceline.contracts.kv import plan_kv_groups
from paceline.cost.memory import GIB, MemoryRequest, plan_memory
from paceline.cost.workspace import step_workspace
from paceline.errors import CapacityError
from paceline.planner import Kept, Layout, Room
from paceline.planner.layout import Degrees
from paceline.planner.ledger import expected_context, rank_memory
from paceline.planner.plan import make_plan

ONE = Layout()


def as_an_engine_plans(ask, config, *, available):
    """What `assemble.memory` does with a resolved configuration, minus what only a loaded model can tell."""
    spec, device = ask.spec, msgspec.structs.replace(ask.card.spec, memory_bytes=ask.memory.device_bytes)
    knobs = resolve_knobs(config, spec, device, dtype_bytes=2)
    groups = plan_kv_groups(spec, config.cache.block_size, 2)
    return plan_memory(
        MemoryRequest(
            groups=groups,
            device_bytes=ask.memory.device_bytes,
            available_bytes=available,
            taken_bytes=0,
            weight_bytes=2 * spec.num_parameters,
            weights_in_place=False,
            memory_utilization=knobs.memory_utilization,
            max_model_len=knobs.max_model_len,
            max_model_len_is_set=True,
            max_num_seqs=knobs.max_num_seqs,
            chunk_tokens=knobs.prefill_chunk_tokens,
            expected_context=knobs.expected_context,
            prefix_cache_reserve=knobs.prefix_cache_reserve,
            graph_bytes=ask.memory.engine_bytes,
        ),
        step_workspace(
            spec,
            num_tokens=knobs.max_num_batched_tokens,
            num_rows=knobs.max_num_seqs,
            dtype_bytes=2,
            num_groups=len(groups),
        ),
    )


def test_plan_and_engine_sum_the_same():
    ask = question()
    planned = rank_memory(ask, ONE, chunk=512, rows=48)
    engine = as_an_engine_plans(ask, planned.config, available=80 * GIB)
    for mine, its in zip(planned.plan.ledger.entries, engine.ledger.entries, strict=True):
        assert (mine.name, mine.predicted_bytes) == (its.name, its.predicted_bytes)
    assert planned.plan.num_blocks == engine.num_blocks


def verdict(make, *args, **options):
    """Bytes of the whole ledger, or the refusal."""
    try:
        found = make(*args, **options)
        return getattr(found, "plan", found).ledger.total
    except CapacityError as error:
        return error.message, error.seen, error.expected


def test_plan_and_engine_agree_at_the_boundary():
    """Whatever the memory, both hold the model with the same sum, or refuse it for the same reason."""
    verdicts, config = {}, rank_memory(question(), ONE, chunk=512, rows=8).config
    for mib in range(16 * 1024, 26 * 1024, 256):
        ask = question(room=Room(device_bytes=24 * GIB, available_bytes=mib << 20))
        planned = verdict(rank_memory, ask, ONE, chunk=512, rows=8)
        engine = verdict(as_an_engine_plans, ask, config, available=mib << 20)
        assert planned == engine
        verdicts[mib] = isinstance(planned, int)
    assert set(verdicts.values()) == {True, False}
    assert list(verdicts.values()) == sorted(verdicts.values())


def test_the_longest_request_sets_the_length_and_not_the_model():
    ask = question()
    assert ask.max_model_len == -(-ask.traffic.longest // 16) * 16 < ask.spec.max_model_len
    assert ask.traffic.mean_context < expected_context(ask) <= ask.max_model_len


def test_rows_that_fit_do_so_beside_their_own_workspace():
    found = rank_memory(question(), ONE, chunk=512)
    assert 0.9 * found.fit.num_seqs < found.seats <= found.fit.num_seqs
    again = rank_memory(question(), ONE, chunk=512, rows=found.seats)
    assert again.plan.ledger.activations == found.plan.ledger.activations


def test_a_divided_model_leaves_more_room_for_kv():
    ask = question("llama-3.1-70b", devices=8)
    four, eight = (rank_memory(ask, Layout(degrees=Degrees(tp=tp)), chunk=512).plan.ledger for tp in (4, 8))
    assert eight.weights.predicted_bytes < 0.55 * four.weights.predicted_bytes
    assert eight.kv.predicted_bytes > four.kv.predicted_bytes
    assert eight.communication.predicted_bytes > 0
    with pytest.raises(CapacityError, match="no room for a KV cache"):
        rank_memory(ask, Layout(degrees=Degrees(tp=1)), chunk=512)


def test_expert_groups_hold_their_own_sequences():
    ask = question("mixtral-8x7b", devices=8)
    found = rank_memory(ask, Layout(degrees=Degrees(ep=8)), chunk=512)
    assert found.seats == 8 * found.fit.num_seqs


def test_a_recurrent_state_is_a_line_of_its_own():
    found = rank_memory(question("qwen3-next-80b-a3b", kept=Kept(weights="int4")), ONE, chunk=512)
    state = found.plan.ledger.state
    assert state.predicted_bytes == found.config.scheduling.max_num_seqs * found.share.spec.state_bytes > GIB
    assert "recurrent state" in {row[0] for row in found.plan.ledger.render()}


def test_a_24_gb_card_holds_far_more_sequences_of_an_8b_in_eight_bits():
    whole = make_plan(question(device="l4"))
    half = make_plan(question(device="l4", kept=Kept(weights="int8")))
    seats = [c.memory.seats if c.memory else 0 for c in (whole.search.candidates[0], half.search.candidates[0])]
    assert seats[1] > 2.5 * seats[0] > 0
