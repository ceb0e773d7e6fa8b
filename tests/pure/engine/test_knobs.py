"""Every knob, turned in virtual time: TTFT or TPOT moves the way its page says. No wall clock is involved."""

from __future__ import annotations

from typing import Any

import numpy as np
from tests.fakes.builders import make_request, simulated_engine
from tests.fakes.traffic import Served, serve

from paceline.contracts.request import Request
from paceline.cost.linear import LinearStepCost

Arrivals = list[tuple[float, Request]]
# 5 ms a step, 50 µs a token: a prefill of 1,000 tokens costs as much as ten decode steps
COST = LinearStepCost(fixed_ms=5.0, per_token_ms=0.05, per_row_ms=0.05, per_context_token_ms=0.0)


def request(request_id: int, prompt: int, output: int, **fields: Any) -> Request:
    """Ids that no other request shares."""
    ids = np.arange(prompt) + 1000 * request_id + 1
    return make_request(request_id, ids % 30_000, output, sampling={"ignore_eos": True}, **fields)


def run(arrivals: Arrivals, **settings: Any) -> Served:
    return serve(simulated_engine(cost=COST, **settings), arrivals)


def burst(count: int, prompt: int = 32, output: int = 40, at: float = 0.0, first: int = 0, **fields: Any) -> Arrivals:
    return [(at, request(first + i, prompt, output, **fields)) for i in range(count)]


def test_more_running_sequences_start_sooner_and_speak_slower() -> None:
    few, many = (run(burst(32), max_num_seqs=n) for n in (4, 32))
    assert many.ttft(q=0.95) < few.ttft(q=0.95) / 3
    assert many.tpot() > 1.1 * few.tpot()
    assert many.end < few.end


def test_more_batched_tokens_prefill_sooner_and_widen_the_gaps_of_others() -> None:
    arrivals = [*burst(4, output=60), (0.05, request(10, 3000, 5))]
    small, large = (run(arrivals, max_num_batched_tokens=n) for n in (128, 2048))
    assert large.ttft([10]) < small.ttft([10]) / 1.5
    assert large.worst_gap(range(4)) > 5 * small.worst_gap(range(4))


def test_a_smaller_chunk_narrows_the_gaps_and_delays_the_long_prompt() -> None:
    arrivals = [*burst(4, output=60), (0.05, request(10, 3000, 5))]
    whole, chunked = run(arrivals, prefill_chunk_tokens=None), run(arrivals, prefill_chunk_tokens=128)
    assert chunked.worst_gap(range(4)) < whole.worst_gap(range(4)) / 5
    assert chunked.ttft([10]) > whole.ttft([10])


def test_a_chunk_cap_lets_a_short_prompt_pass_a_long_one() -> None:
    arrivals = [(0.0, request(0, 4000, 5)), (0.0, request(1, 50, 5))]
    whole = run(arrivals, prefill_chunk_tokens=None, max_num_batched_tokens=1024)
    chunked = run(arrivals, prefill_chunk_tokens=512, max_num_batched_tokens=1024)
    assert chunked.ttft([1]) < whole.ttft([1]) / 2


def test_prefill_first_starts_sooner_decode_first_speaks_faster() -> None:
    # 32 rows decode under a budget of 40: what is left for prefill depends on who is asked first
    arrivals = [*burst(32, prompt=8, output=120), (0.4, request(99, 400, 5))]
    decode, prefill = (
        run(arrivals, max_num_batched_tokens=40, prefill_priority=p) for p in ("decode_first", "prefill_first")
    )
    assert prefill.ttft([99]) < decode.ttft([99]) / 1.5
    assert prefill.tpot(range(32)) > decode.tpot(range(32))


def test_a_larger_minimum_share_of_prefill_starts_sooner_and_slows_the_running() -> None:
    arrivals = [*burst(32, prompt=8, output=200), (0.4, request(99, 400, 5))]
    least, more = (run(arrivals, max_num_batched_tokens=33, min_prefill_tokens=n) for n in (1, 32))
    assert more.ttft([99]) < least.ttft([99]) / 3
    assert more.worst_gap(range(32)) > least.worst_gap(range(32))


def test_waiting_for_a_fuller_batch_delays_the_first_token_and_saves_steps() -> None:
    arrivals = [(0.001 + 0.002 * i, request(i, 200, 2)) for i in range(8)]
    at_once, patient = (run(arrivals, max_wait_ms=ms) for ms in (0.0, 20.0))
    assert patient.ttft([0]) > at_once.ttft([0]) + 0.010
    steps = [sum(1 for _ in {t.admitted for t in s.timelines.values()}) for s in (at_once, patient)]
    assert steps[1] < steps[0]  # fewer, fuller prefills


def test_a_full_batch_does_not_wait() -> None:
    served = run(burst(4), max_wait_ms=1000.0, max_num_seqs=4)
    assert served.ttft(q=1.0) < 0.1


def test_a_higher_watermark_trades_first_tokens_for_fewer_preemptions() -> None:
    arrivals = burst(16, prompt=64, output=120)
    runs = []
    for watermark in (0.0, 0.4):
        built = simulated_engine(cost=COST, num_blocks=64, watermark=watermark)
        runs.append((serve(built, arrivals), built.core.stats()))
    (low, low_stats), (high, high_stats) = runs
    assert low_stats.num_preemptions > high_stats.num_preemptions
    assert low_stats.wasted_tokens > high_stats.wasted_tokens
    assert high.ttft(q=0.95) > low.ttft(q=0.95)
    assert high.tpot(q=0.95) < low.tpot(q=0.95)


def test_preemption_by_recompute_is_paid_in_token_times() -> None:
    arrivals = burst(12, prompt=64, output=120)
    roomy, tight = (run(arrivals, num_blocks=n, watermark=0.0) for n in (1000, 64))
    assert tight.tpot(q=0.95) > 1.2 * roomy.tpot(q=0.95)


def test_a_static_batch_makes_the_late_wait_for_the_slowest() -> None:
    arrivals = [*burst(3, output=10), (0.0, request(3, 32, 200)), (0.05, request(9, 32, 10))]
    continuous, static = (run(arrivals, batching=b) for b in ("continuous", "static"))
    assert static.ttft([9]) > 10 * continuous.ttft([9])


def test_a_high_class_starts_at_once_even_when_all_rows_are_taken() -> None:
    arrivals = [*burst(4, output=200, priority=1), (0.1, request(9, 32, 10, priority=0))]
    fcfs, classes = (run(arrivals, policy=p, max_num_seqs=4) for p in ("fcfs", "priority"))
    assert classes.ttft([9]) < 0.03
    assert fcfs.ttft([9]) > 20 * classes.ttft([9])


def test_a_fair_queue_shields_a_quiet_tenant_from_a_flood() -> None:
    flood = burst(40, prompt=200, output=50, tenant="flood")
    arrivals = [*flood, (0.01, request(99, 100, 10, tenant="quiet"))]
    fcfs, fair = (run(arrivals, policy=p, max_num_seqs=4) for p in ("fcfs", "fair"))
    assert fair.ttft([99]) < fcfs.ttft([99]) / 3


def test_waiting_for_a_prefix_in_flight_computes_it_once() -> None:
    prefix = np.arange(1600) % 30_000
    arrivals = [
        (0.0, make_request(i, np.append(prefix, 29_000 + i), 5, sampling={"ignore_eos": True})) for i in range(8)
    ]
    alone, shared = (run(arrivals, wait_for_prefix=w, max_num_batched_tokens=2048) for w in (False, True))
    assert shared.ttft(q=0.95) < alone.ttft(q=0.95) / 1.5


def test_prefix_caching_shortens_the_first_token_of_a_repeated_prompt() -> None:
    prompt = np.arange(1600) % 30_000
    arrivals = [(float(i), make_request(i, prompt, 5, sampling={"ignore_eos": True})) for i in range(2)]
    off, on = (run(arrivals, prefix_caching=p) for p in (False, True))
    assert on.ttft([1]) < off.ttft([1]) / 5
    assert on.ttft([0]) == off.ttft([0])


def test_a_bound_on_the_queue_refuses_some_and_serves_the_rest_sooner() -> None:
    open_queue, bounded = (run(burst(64), max_num_seqs=4, max_waiting_requests=n) for n in (None, 8))
    assert len(bounded.refused) == 56
    assert bounded.ttft(q=0.95) < open_queue.ttft(q=0.95) / 4
    tokens = run(burst(64), max_num_seqs=4, max_waiting_tokens=8 * 32)
    assert len(tokens.refused) == 56


def test_two_plans_in_flight_hide_nothing_in_virtual_time_but_give_the_same_tokens() -> None:
    outputs = []
    for depth in (1, 2):
        served = run(burst(4, output=12), depth=depth)
        tokens: dict[int, list[int]] = {}
        for output in served.outputs:
            tokens.setdefault(output.request_id, []).extend(output.token_ids)
        outputs.append(tokens)
    assert outputs[0] == outputs[1]


def test_drafts_speed_up_tokens_when_they_are_right() -> None:
    from tests.fakes.traffic import serve as serve_traffic

    class Repeats:
        """Knows the future: the oracle of the simulated executor, asked ahead."""

        def __init__(self, draw: Any) -> None:
            self._draw = draw

        def propose(self, token_ids: np.ndarray, max_drafts: int) -> list[int]:
            done = len(token_ids) - 32
            return [self._draw(done + i) for i in range(max_drafts)]

    from tests.fakes.builders import EOS
    from tests.fakes.plans import make_admit

    from paceline.sim import seeded_oracle

    oracle = seeded_oracle(32_000, eos_token_id=EOS)
    admit = make_admit(0, [1], request_id=0)
    arrivals = burst(1, prompt=32, output=60)
    runs = []
    for num_drafts in (0, 3):
        built = simulated_engine(
            cost=COST, num_draft_tokens=num_drafts, host_drafts=True, drafter=Repeats(lambda p: oracle(admit, p))
        )
        runs.append(serve_traffic(built, arrivals))
    assert runs[1].tpot() < runs[0].tpot() / 3
