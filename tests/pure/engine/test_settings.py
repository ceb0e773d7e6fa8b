"""Every setting is checked when it is made, and against the executor before any request comes."""

from __future__ import annotations

from typing import Any

import pytest
from tests.pure.engine.driver import Driver

from paceline.engine.settings import SchedulerSettings
from paceline.errors import ConfigError


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_num_seqs": 0},
        {"max_num_batched_tokens": 0},
        {"prefill_chunk_tokens": 0},
        {"min_prefill_tokens": 0},
        {"max_num_batched_tokens": 8, "min_prefill_tokens": 9},
        {"max_model_len": 1},
        {"max_wait_ms": -1.0},
        {"max_wait_ms": float("inf")},
        {"watermark": 1.0},
        {"max_waiting_requests": 0},
        {"max_waiting_tokens": 0},
        {"num_draft_tokens": -1},
        {"policy": "lifo"},
        {"batching": "dynamic"},
        {"preemption": "offload"},
        {"prefill_priority": "both"},
    ],
)
def test_a_value_out_of_range_is_refused_with_its_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(reversed(wrong))):
        SchedulerSettings(**wrong)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"max_num_seqs": 9}, "max_num_seqs"),
        ({"max_num_batched_tokens": 65}, "max_num_batched_tokens"),
        ({"min_prefill_tokens": 58}, "minimum share"),
        ({"num_draft_tokens": 1}, "draft"),
    ],
)
def test_settings_that_the_executor_cannot_run_are_refused_at_start(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Driver(max_rows=8, max_tokens=64, **{"max_num_seqs": 8, "max_num_batched_tokens": 64, **wrong})


def test_speculation_needs_a_state_that_can_be_rewound() -> None:
    import msgspec

    caps = msgspec.structs.replace(Driver(spec_kinds=("host",)).caps, rewindable=False)
    settings = SchedulerSettings(max_num_seqs=8, max_num_batched_tokens=64, num_draft_tokens=2)
    with pytest.raises(ConfigError, match="rewound"):
        settings.check_caps(caps)


def test_the_largest_chunk_is_bounded_by_the_cap_or_the_budget() -> None:
    assert SchedulerSettings(max_num_batched_tokens=100).max_chunk_tokens == 100
    assert SchedulerSettings(max_num_batched_tokens=100, prefill_chunk_tokens=30).max_chunk_tokens == 30
    assert SchedulerSettings(max_num_batched_tokens=100, prefill_chunk_tokens=30).max_uncommitted_tokens(2) == 60
    assert (
        SchedulerSettings(max_num_batched_tokens=100, prefill_chunk_tokens=2, num_draft_tokens=4).max_chunk_tokens == 5
    )
