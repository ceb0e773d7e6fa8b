from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.fakes.builders import build
from tests.fakes.tiny_models import tiny_executor
from tests.fakes.torch_engines import make_requests, torch_engine

from paceline.engine.settings import SchedulerSettings
from paceline.errors import EngineDeadError
from paceline.runtime.remote import RemoteExecutor
from paceline.sim import VirtualClock

ROOT = Path(__file__).parents[3]
CHILD = [sys.executable, "-m", "tests.fakes.torch_child"]


SETTINGS = {"max_num_seqs": 8, "max_num_batched_tokens": 12, "max_model_len": 64, "prefill_chunk_tokens": 5}


def test_an_executor_that_sees_only_encoded_plans_gives_the_same_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    requests = make_requests()
    here = torch_engine(tiny_executor("gemma3"), **SETTINGS).run(*requests)
    remote = RemoteExecutor(CHILD)
    try:
        away = build(remote, VirtualClock(), SchedulerSettings(**SETTINGS)).run(*requests)
    finally:
        remote.close()
    assert {i: f.token_ids for i, f in away.items()} == {i: f.token_ids for i, f in here.items()}
    assert remote._process.returncode == 0


def test_a_failure_in_the_child_is_told_and_ends_the_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    remote = RemoteExecutor([*CHILD, "--break"])
    try:
        engine = build(remote, VirtualClock(), SchedulerSettings(**SETTINGS))
        requests = make_requests(2)
        done = engine.run(*requests)
        assert [done[r.request_id].reason for r in requests] == ["error"] * 2
        assert "TypeError" in str(engine.core.error)
    finally:
        remote.close()


def test_a_child_that_never_answers_or_dies_is_an_error() -> None:
    with pytest.raises(EngineDeadError, match="ready"):
        RemoteExecutor([sys.executable, "-c", "import time; time.sleep(60)"], start_timeout_s=0.3)
    with pytest.raises(EngineDeadError, match="gone"):
        RemoteExecutor([sys.executable, "-c", "raise SystemExit(3)"])
