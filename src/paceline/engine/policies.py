"""The choices of the scheduler as pure functions: whom to preempt, how much to hand out, whether waiting pays."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from paceline.contracts.ports import CostModel, StepShape
from paceline.engine.request_state import RequestState
from paceline.engine.settings import SchedulerSettings


def pick_victim(
    running: Iterable[RequestState],
    debt: Callable[[RequestState], float],
    *,
    at_least: int,
) -> RequestState | None:
    """Who gives up its residency: lowest class, then largest tenant debt, then youngest. None when nobody may.

    Only classes with a priority number of `at_least` or more are touched. Age is arrival, kept across preemptions, so
    within a class the order is total and fixed: the oldest is never taken by a younger one, and always gets on.
    """
    victim: RequestState | None = None
    worst: tuple[int, float, float, int] | None = None
    for state in running:
        if state.priority < at_least:
            continue
        rank = (state.priority, debt(state), state.arrival, state.request_id)
        if worst is None or rank > worst:
            victim, worst = state, rank
    return victim


def releasable_blocks(running: Iterable[RequestState], *, at_least: int) -> int:
    """Most blocks that preempting those classes could free: shared blocks are counted once for each holder."""
    return sum(
        state.kv.num_blocks + sum(state.kv.promised)
        for state in running
        if state.priority >= at_least and state.kv is not None
    )


def headroom_blocks(settings: SchedulerSettings, num_blocks: int, num_groups: int, num_running: int) -> int:
    """Blocks that must stay available after an admission: the watermark, and one block per KV group to decode into.

    Nothing is held back when nobody runs: what fits an empty pool is never refused by a margin.
    """
    if not num_running:
        return 0
    return int(settings.watermark * num_blocks) + num_groups


def goes_on_first(begun: RequestState, head: RequestState, debt: Callable[[RequestState], float]) -> bool:
    """Does a prefill that has begun get positions before the head of the queue? Within a class yes, unless the head is
    of another tenant that was served no more than its own."""
    if begun.priority != head.priority or begun.tenant == head.tenant:
        return begun.priority <= head.priority
    return debt(begun) < debt(head)


def prefill_budget(settings: SchedulerSettings, num_decode_tokens: int, max_tokens: int) -> int:
    """Positions left for prefill: what decode leaves of the step, but never below the minimum share.

    `max_tokens` is the most a step may compute; settings were checked to leave room for the minimum.
    """
    left = settings.max_num_batched_tokens - num_decode_tokens
    return min(max(left, settings.min_prefill_tokens), max_tokens - num_decode_tokens)


def chunk_tokens(settings: SchedulerSettings, todo: int, budget: int) -> int:
    """Positions one request gets in this step."""
    cap = settings.prefill_chunk_tokens
    return min(todo, budget) if cap is None else min(todo, budget, cap)


def waiting_pays(
    cost: CostModel, *, num_known: int, num_cached: int, num_pending: int, decode_shape: StepShape
) -> bool:
    """Is it cheaper to wait for `num_pending` tokens another request is computing than to compute them again?

    Computing now and computing later both come behind the other request's work, so that cancels. Waiting saves the
    prefill of the pending tokens and costs at most one more step: the one in which the request could have begun.
    """
    rest = num_known - num_cached
    now_ms = cost.prefill_ms(rest, num_cached)
    later_ms = cost.prefill_ms(rest - num_pending, num_cached + num_pending)
    return now_ms - later_ms > cost.step_ms(decode_shape)


def hold_until(
    settings: SchedulerSettings, *, oldest: float, num_running: int, num_waiting: int, waiting_tokens: int
) -> float | None:
    """Time until which admission waits for a fuller batch (`max_wait_ms`), or None: admit now.

    The batch is full when the waiting would fill the rows or a step's tokens.
    """
    if settings.max_wait_ms <= 0.0:
        return None
    if num_running + num_waiting >= settings.max_num_seqs or waiting_tokens >= settings.max_num_batched_tokens:
        return None
    return oldest + settings.max_wait_ms / 1e3
