from __future__ import annotations

from typing import Any

import pytest
from tests.pure.cost.steps import taught

from paceline.cost import EngineSnapshot, decode_shape, joined, predict_ttft, prefill_shape

COST = taught(1)


def snapshot(**changes: Any) -> EngineSnapshot:
    idle = {"num_decoding": 0, "decode_context_tokens": 0, "prefill_tokens_ahead": 0, "max_num_seqs": 8}
    return EngineSnapshot(**{**idle, "max_num_batched_tokens": 256, **changes})


def test_an_idle_engine_takes_one_step_for_a_short_prompt() -> None:
    found = predict_ttft(COST, snapshot(), 100)
    assert found.value == pytest.approx(COST.step_ms(prefill_shape(100)))
    assert found.lo < found.value < found.hi
    assert "1 steps" in found.why


def test_rows_that_decode_and_prompts_ahead_delay_it() -> None:
    alone = predict_ttft(COST, snapshot(), 300).value
    beside = predict_ttft(COST, snapshot(num_decoding=6, decode_context_tokens=1800), 300).value
    behind = predict_ttft(COST, snapshot(num_ahead=2, prefill_tokens_ahead=600), 300).value
    assert alone < beside < behind
    assert behind == pytest.approx(3 * alone, rel=0.4)
    assert predict_ttft(COST, snapshot(ms_left_in_step=40.0), 300).value == pytest.approx(alone + 40.0)


def test_cached_tokens_are_not_computed() -> None:
    cold = predict_ttft(COST, snapshot(), 240).value
    warm = predict_ttft(COST, snapshot(), 240, 224).value
    assert warm < 0.4 * cold


def test_a_prompt_in_chunks_takes_a_step_for_each() -> None:
    found = predict_ttft(COST, snapshot(prefill_chunk_tokens=32), 240)
    assert found.value == pytest.approx(8 * COST.step_ms(prefill_shape(30, 105)))
    assert "8 steps" in found.why


def test_without_a_free_row_it_waits_for_one() -> None:
    busy = {"num_decoding": 8, "decode_context_tokens": 800}
    now = predict_ttft(COST, snapshot(**busy), 64)
    later = predict_ttft(COST, snapshot(**busy, mean_tokens_left=40.0), 64)
    step = COST.step_ms(decode_shape(8, 100))
    assert later.value == pytest.approx(now.value + step * 40.0 / 8)
    assert later.lo == now.lo
    assert "waits for 1 rows" in later.why


def test_a_full_step_still_gives_prompts_their_least_share() -> None:
    full = snapshot(num_decoding=8, decode_context_tokens=80, max_num_batched_tokens=8, min_prefill_tokens=16)
    found = predict_ttft(COST, full, 64)
    assert found.value == pytest.approx(4 * COST.step_ms(joined(decode_shape(8, 10), prefill_shape(16, 24))))
