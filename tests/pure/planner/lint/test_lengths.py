"""PL102: KV planned for lengths that do not come, where memory limits the rows."""

from tests.fakes.lab.sample_records import SampleServer
from tests.pure.planner.lint.worlds import KV_PER_TOKEN, config, found, served, with_engine, workload

from paceline.contracts.lint import Severity
from paceline.contracts.workload import SloClass

ROOM = 16 * 2048 * KV_PER_TOKEN  # 16 sequences of 2048 tokens
SLO = SloClass(ttft_s=1.0)


def test_a_context_far_above_the_workload_s_is_found_and_the_fix_clears_it():
    facts = config(workload(input=200, output=40), engine={"kv_room_bytes": ROOM, "max_num_seqs": 16})
    (finding,) = found(facts, "PL102")
    assert finding.severity is Severity.WARNING
    assert finding.fix.options == {"expected_context": 240}
    assert finding.fix.gain.startswith("16 -> 136 sequences")
    fixed = with_engine(facts, expected_context=240, max_num_seqs=136)
    assert found(fixed, "PL102") == []


def test_rows_that_time_limits_lose_nothing():
    facts = config(workload(input=200, output=40), engine={"kv_room_bytes": 4 * ROOM, "max_num_seqs": 16})
    assert found(facts, "PL102") == []


def test_a_workload_that_needs_the_length_is_left_alone():
    facts = config(workload(input=1500, output=300), engine={"kv_room_bytes": ROOM})
    assert found(facts, "PL102") == []


def test_without_a_workload_the_whole_length_for_everybody_is_worth_knowing():
    facts = config(engine={"kv_room_bytes": ROOM, "expected_context": 4096, "max_num_seqs": 8})
    (finding,) = found(facts, "PL102")
    assert finding.severity is Severity.INFO
    assert found(config(engine={"kv_room_bytes": ROOM}), "PL102") == []


def options(rows: int, context: int) -> dict[str, object]:
    return {
        "scheduling.max_num_seqs": rows, "cache.expected_context": context, "cache.block_size": 16,
        "cache.prefix_cache_reserve": 0.5,
    }  # fmt: skip


def test_a_run_in_which_requests_waited_for_rows_that_memory_could_have_held():
    says = {"num_blocks": 4 * 2048 // 16, "num_kv_groups": 1}  # 8,192 tokens, where 4 * 2048 * 1.5 were wanted
    server = SampleServer(rows=4, prefix_cache=False, kv_tokens=8192)
    facts = served(server, SLO, rate_rps=12.0, config=options(4, 2048), server_says=says)
    (finding,) = found(facts, "PL102")
    assert finding.fix.options == {"expected_context": 64}  # 32 in, 24 out and a token of the template, in whole blocks
    evidence = {e.name: e.value for e in finding.evidence}
    assert evidence["KV cache"] == 8192
    assert evidence["looks with every row taken and requests waiting"] > 10
    # with the fix the same memory is planned for 85 sequences, and nobody waits
    wide = SampleServer(rows=85, prefix_cache=False, kv_tokens=8192)
    assert found(served(wide, SLO, rate_rps=12.0, config=options(85, 64), server_says=says), "PL102") == []


def test_a_run_whose_cache_got_all_it_asked_for_was_limited_by_time():
    says = {"num_blocks": 4 * 2048 * 3 // 2 // 16, "num_kv_groups": 1}
    server = SampleServer(rows=4, prefix_cache=False)
    assert found(served(server, SLO, rate_rps=12.0, config=options(4, 2048), server_says=says), "PL102") == []
