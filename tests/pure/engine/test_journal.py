from __future__ import annotations

import io

import pytest
from tests.fakes.builders import make_request, make_scheduler, scripted_engine

from paceline.engine.journal import Aborted, Applied, Planned, StepJournal, Submitted, read_events, replay
from paceline.errors import EngineError


def recorded(depth: int = 1, **options: object) -> tuple[bytes, object]:
    journal = StepJournal()
    built = scripted_engine(depth=depth, num_blocks=14, max_rows=3, journal=journal, **options)  # type: ignore[arg-type]
    for i in range(5):
        built.core.submit(make_request(i, [1, 2, 3, 4, 5, i], 9, temperature=1.0, seed=None))
    built.step()
    built.core.abort(3)
    built.core.submit(make_request(7, [1, 2, 3, 4, 9], 4, priority=-1))
    built.step()
    built.core.reset_prefix_cache()
    built.finish()
    return journal.to_bytes(), built


@pytest.mark.parametrize("depth", [1, 2])
def test_a_replay_makes_the_same_plans(depth: int) -> None:
    data, built = recorded(depth)
    result = replay(data, lambda: make_scheduler(built.executor.caps, built.settings, token_bytes=None))  # type: ignore[attr-defined]
    planned = [e for e in read_events(data) if isinstance(e, Planned) and e.digest]
    assert len(planned) > 5
    assert list(result.digests) == [e.digest for e in planned]
    assert result.num_events == sum(1 for _ in read_events(data))


def test_a_replay_with_other_settings_says_at_which_step_it_differs() -> None:
    import msgspec

    data, built = recorded()
    other = msgspec.structs.replace(built.settings, max_num_batched_tokens=5)  # type: ignore[attr-defined]
    with pytest.raises(EngineError, match="left the recording at step 0"):
        replay(data, lambda: make_scheduler(built.executor.caps, other))  # type: ignore[attr-defined]


def test_events_come_back_as_they_went_in_and_in_order() -> None:
    data, _ = recorded()
    events = list(read_events(data))
    submitted = [e.request.request_id for e in events if isinstance(e, Submitted)]
    assert submitted == [0, 1, 2, 3, 4, 7]
    assert all(e.request.sampling.seed is not None for e in events if isinstance(e, Submitted))
    assert [e.request_id for e in events if isinstance(e, Aborted)] == [3]
    applied = [e.result.step for e in events if isinstance(e, Applied)]
    assert applied == sorted(applied)
    times = [e.now for e in events]
    assert times == sorted(times)


def test_a_bounded_journal_drops_its_oldest_events_and_refuses_to_replay() -> None:
    journal = StepJournal(max_bytes=200)
    for i in range(100):
        journal.record(Aborted(now=float(i), request_id=i))
    assert journal.num_bytes <= 200
    kept = list(read_events(journal.to_bytes()))
    assert isinstance(kept[-1], Aborted)
    assert kept[-1].request_id == 99
    assert len(kept) + journal.num_dropped == journal.num_events == 100
    with pytest.raises(EngineError, match="beginning was dropped"):
        replay(journal.to_bytes(), lambda: None)  # type: ignore[arg-type,return-value]


def test_a_file_cut_short_is_read_up_to_the_cut() -> None:
    sink = io.BytesIO()
    journal = StepJournal(sink)
    for i in range(3):
        journal.record(Aborted(now=0.0, request_id=i))
    whole = sink.getvalue()
    assert len(list(read_events(whole))) == 3
    assert len(list(read_events(whole[:-1]))) == 2


def test_something_else_is_not_a_journal() -> None:
    with pytest.raises(EngineError, match="not a step journal"):
        list(read_events(b"GGUF\x03\x00"))
