"""What other tools would print, by hand: the same log, four answers."""

from __future__ import annotations

import pytest
from tests.pure.lab.metrics.logs import chunk, info, record

from paceline.contracts.slo import Outcome
from paceline.contracts.workload import SloClass
from paceline.lab.metrics import compat, compute


def test_one_bundled_answer_in_every_dialect() -> None:
    """Sent 20 ms after its plan; 5 tokens at 120 ms, 3 more at 210 ms; closed at 250 ms."""
    log = [record(0, [chunk(120, 5), chunk(210, 3)], send=20, close=250)]
    found = compat(info(), log)
    assert compute(info(), log).whole.latency["tpot"].mean == pytest.approx(0.030)  # ours
    assert found["vllm bench"]["mean_tpot_ms"] == pytest.approx(90 / 7)
    assert found["vllm bench"]["mean_itl_ms"] == pytest.approx(90)
    assert found["vllm bench"]["mean_ttft_ms"] == pytest.approx(100)
    assert found["guidellm"]["mean_inter_token_latency_ms"] == pytest.approx(90 / 7)
    assert found["guidellm"]["mean_time_per_output_token_ms"] == pytest.approx(190 / 8)
    assert found["aiperf"]["mean_inter_token_latency_ms"] == pytest.approx(90 / 7)
    assert found["aiperf"]["mean_inter_chunk_latency_ms"] == pytest.approx(90)
    assert found["chunk counters"]["mean_inter_token_latency_ms"] == pytest.approx(190 / 2)
    assert found["chunk counters"]["mean_end_to_end_latency_ms"] == pytest.approx(230)


def test_one_token_meets_any_tpot_elsewhere_and_failures_vanish() -> None:
    log = [
        record(0, [chunk(50)]),
        record(1, [chunk(50), chunk(80)]),
        record(2, [], outcome=Outcome.TIMEOUT, close=1000),
    ]
    theirs = compat(info(SloClass(tpot_s=0.02)), log)["vllm bench"]
    assert theirs["completed"] == 2
    assert theirs["request_goodput"] == pytest.approx(1.0)  # one of two, over the second until the last close
    assert compute(info(SloClass(tpot_s=0.02)), log).whole.attainment.value == pytest.approx(1 / 3)


def test_empty_runs() -> None:
    found = compat(info(), [])
    assert found["guidellm"]["p99_request_latency_ms"] == 0.0
    assert found["vllm bench"]["p99_ttft_ms"] is None
