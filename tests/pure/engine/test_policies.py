"""The pure choices: victims, shares of a step, whether waiting pays."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from tests.pure.engine.driver import PerToken

from paceline.contracts.ports import StepShape
from paceline.engine import policies
from paceline.engine.request_state import RequestState
from paceline.engine.settings import SchedulerSettings

SHAPE = StepShape(num_tokens=1, num_rows=1, num_sampled=1, context_tokens=0)


def state(request_id: int, priority: int, arrival: float, debt: float = 0.0) -> RequestState:
    fields: dict[str, Any] = {"request_id": request_id, "priority": priority, "arrival": arrival, "debt": debt}
    return cast(RequestState, SimpleNamespace(**fields))


def victim(*states: RequestState, at_least: int = 0) -> int | None:
    found = policies.pick_victim(states, lambda s: cast(Any, s).debt, at_least=at_least)
    return None if found is None else found.request_id


def test_the_victim_is_of_the_lowest_class_then_most_in_debt_then_youngest() -> None:
    old, young = state(1, 0, 1.0), state(2, 0, 2.0)
    assert victim(old, young) == 2
    assert victim(state(3, 0, 0.5, debt=9.0), old, young) == 3
    assert victim(state(4, 1, 0.1), state(3, 0, 0.5, debt=9.0), young) == 4
    assert victim(state(5, 0, 2.0), young) == 5  # same age: the later id


def test_a_higher_class_than_the_needers_is_never_taken() -> None:
    assert victim(state(1, 0, 1.0), state(2, 1, 1.0), at_least=2) is None
    assert victim(state(1, 0, 1.0), state(2, 1, 1.0), at_least=1) == 2


def test_prefill_gets_what_decode_leaves_but_never_less_than_its_minimum() -> None:
    settings = SchedulerSettings(max_num_batched_tokens=100, min_prefill_tokens=10)

    def budget(num_decode: int, max_tokens: int = 200) -> int:
        return policies.prefill_budget(settings, num_decode_tokens=num_decode, max_tokens=max_tokens)

    assert budget(0) == 100
    assert budget(60) == 40
    assert budget(95) == 10
    assert budget(150) == 10
    assert budget(195, max_tokens=200) == 5


def test_a_chunk_is_the_least_of_what_is_left_to_do_the_budget_and_the_cap() -> None:
    capped, free = SchedulerSettings(prefill_chunk_tokens=16), SchedulerSettings()
    assert policies.chunk_tokens(capped, 100, 50) == 16
    assert policies.chunk_tokens(free, 100, 50) == 50
    assert policies.chunk_tokens(free, 20, 50) == 20


def test_headroom_is_watermark_and_a_block_per_group_and_nothing_in_an_empty_engine() -> None:
    settings = SchedulerSettings(watermark=0.1)
    assert policies.headroom_blocks(settings, num_blocks=50, num_groups=2, num_running=3) == 7
    assert policies.headroom_blocks(settings, num_blocks=50, num_groups=2, num_running=0) == 0


def test_waiting_for_a_prefix_pays_when_it_saves_more_than_a_step() -> None:
    def pays(num_pending: int, fixed_ms: float) -> bool:
        cost = PerToken(fixed_ms)
        return policies.waiting_pays(cost, num_known=100, num_cached=10, num_pending=num_pending, decode_shape=SHAPE)

    assert pays(50, fixed_ms=20.0)
    assert not pays(16, fixed_ms=20.0)


def test_admission_is_held_until_the_oldest_has_waited_or_the_batch_is_full() -> None:
    settings = SchedulerSettings(max_num_seqs=4, max_num_batched_tokens=100, max_wait_ms=50.0)

    def until(running: int, waiting: int, tokens: int = 10) -> float | None:
        return policies.hold_until(
            settings, oldest=2.0, num_running=running, num_waiting=waiting, waiting_tokens=tokens
        )

    assert until(0, 1) == 2.05
    assert until(2, 1) == 2.05
    assert until(2, 2) is None
    assert until(0, 1, tokens=100) is None
    off = SchedulerSettings(max_wait_ms=0.0)
    assert policies.hold_until(off, oldest=2.0, num_running=0, num_waiting=1, waiting_tokens=1) is None
