"""Law 5 in simulation: a run on torch, again in virtual time with the durations it had, makes the same plans."""

from __future__ import annotations

import msgspec
import pytest
from tests.fakes.builders import make_scheduler
from tests.fakes.torch_engines import history_executor, make_requests, torch_engine

from paceline.contracts.step import StepResult
from paceline.engine import WallClock
from paceline.engine.journal import Applied, Planned, StepJournal, read_events
from paceline.errors import EngineError
from paceline.sim.recorded import simulate_recording


def recorded() -> tuple[list, object]:
    """A run with prefix hits, chunks, preemptions and an abort, timed by the wall clock."""
    journal = StepJournal()
    engine = torch_engine(history_executor(num_blocks=20, max_rows=4, max_tokens=24), journal=journal, watermark=0.0)
    engine.core.clock = WallClock()
    requests = make_requests(10)
    for request in requests[:6]:
        engine.core.submit(request)
    for _ in range(5):
        engine.step()
    engine.core.abort(2)
    for request in requests[6:]:
        engine.core.submit(request)
        engine.step()
    engine.finish()
    assert engine.scheduler.stats(0.0).num_preemptions > 0
    return list(read_events(journal.to_bytes())), engine


def test_a_torch_run_simulated_with_its_durations_makes_the_same_plans() -> None:
    events, engine = recorded()
    digests = [event.digest for event in events if isinstance(event, Planned) and event.digest]
    caps, settings = engine.plans.caps, engine.settings  # type: ignore[attr-defined]
    assert len(digests) > 20
    assert simulate_recording(events, make_scheduler(caps, settings), caps) == digests


def test_other_durations_do_not_change_plans_but_other_tokens_do() -> None:
    """What decides is what came and what was drawn; a slower device alone changes nothing here."""
    events, engine = recorded()
    digests = [event.digest for event in events if isinstance(event, Planned) and event.digest]
    caps, settings = engine.plans.caps, engine.settings  # type: ignore[attr-defined]

    def changed(**fields: object) -> list:
        first = next(event for event in events if isinstance(event, Applied) and len(event.result.row))
        result: StepResult = msgspec.structs.replace(first.result, **fields)
        return [Applied(now=event.now, result=result) if event is first else event for event in events]

    assert simulate_recording(changed(device_ms=5000.0), make_scheduler(caps, settings), caps) == digests
    first = next(event for event in events if isinstance(event, Applied) and len(event.result.row))
    with pytest.raises(EngineError):  # 7 ends its request, and the next results have a row too many
        simulate_recording(changed(tokens=first.result.tokens * 0 + 7), make_scheduler(caps, settings), caps)


def test_a_recording_that_was_cut_says_where() -> None:
    events, engine = recorded()
    caps, settings = engine.plans.caps, engine.settings  # type: ignore[attr-defined]
    last = max(event.result.step for event in events if isinstance(event, Applied))
    cut = [event for event in events if not (isinstance(event, Applied) and event.result.step == last)]
    with pytest.raises(EngineError, match="recording ends before this step"):
        simulate_recording(cut, make_scheduler(caps, settings), caps)
