from __future__ import annotations

import errno
import os
import stat
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from tests.fakes.builders import Built, make_request, scripted_engine
from tests.fakes.scripts import DEAR_TOKENS

from paceline.contracts.request import RequestOutput
from paceline.cost.linear import LinearStepCost
from paceline.engine import begin_journal, read_journal, replay_file, served_steps
from paceline.engine.journal import Aborted, Applied, Began, Planned, StepJournal, Submitted
from paceline.engine.loop import EngineCore
from paceline.errors import ConfigError, EngineError


def recorded(path: Path, *, depth: int = 1, max_bytes: int = 1 << 20, told: list[str] | None = None) -> Built:
    """A short run with stop strings, an abort, shared prefixes and preemptions, in a file."""
    built = scripted_engine(depth=depth, num_blocks=14, max_rows=3, cost=DEAR_TOKENS, policy="fair")
    report = None if told is None else told.append
    journal = begin_journal(path, built.scheduler, DEAR_TOKENS.prices, max_bytes=max_bytes, report=report)
    built.core = EngineCore(built.scheduler, built.executor, built.clock, journal)
    for i in range(5):
        stop = ("ab", "c") if i == 1 else ("zzzzzz",)
        request = make_request(i, [1, 2, 3, 4, 5, i], 9, temperature=1.0, seed=None, stop=stop)
        built.core.submit(request)
    built.step()
    built.core.abort(3)
    built.finish()
    built.core.close()
    return built


@pytest.mark.parametrize("depth", [1, 2])
def test_a_file_alone_is_enough_to_replay_a_run(tmp_path: Path, depth: int) -> None:
    path = tmp_path / "run.journal"
    recorded(path, depth=depth)
    result = replay_file(path, LinearStepCost)
    events = list(read_journal(path))
    assert isinstance(events[0], Began)
    assert list(result.digests) == [e.digest for e in events if isinstance(e, Planned) and e.digest]
    assert len(result.digests) > 5
    assert result.num_events == len(events)
    assert {type(e) for e in events} == {Began, Submitted, Aborted, Planned, Applied}


def test_a_replay_with_other_prices_or_settings_is_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "run.journal"
    recorded(path)
    events = list(read_journal(path))
    assert isinstance(events[0], Began)
    other = msgspec.structs.replace(
        events[0], settings=msgspec.structs.replace(events[0].settings, max_num_batched_tokens=5)
    )
    changed = tmp_path / "changed.journal"
    with changed.open("wb") as sink:
        journal = StepJournal(sink)
        for event in (other, *events[1:]):
            journal.record(event)
    with pytest.raises(EngineError, match="left the recording at step 0"):
        replay_file(changed, LinearStepCost)


def test_a_journal_is_for_its_owners_eyes_and_an_older_one_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "run.journal"
    path.write_text("the run before")
    recorded(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert (tmp_path / "run.journal.old").read_text() == "the run before"


def test_what_was_recorded_is_there_before_the_engine_ends(tmp_path: Path) -> None:
    path = tmp_path / "run.journal"
    built = scripted_engine()
    journal = begin_journal(path, built.scheduler, LinearStepCost().prices)
    core = EngineCore(built.scheduler, built.executor, built.clock, journal)
    core.submit(make_request(0, [1, 2, 3]))
    core.step()
    assert [type(e) for e in read_journal(path)] == [Began, Submitted, Planned, Applied]
    core.close()


def test_a_full_journal_ends_and_the_engine_goes_on(tmp_path: Path) -> None:
    path, whole, told = tmp_path / "run.journal", tmp_path / "whole.journal", list[str]()
    recorded(whole)
    bound = whole.stat().st_size * 3 // 4
    built = recorded(path, max_bytes=bound, told=told)
    assert path.stat().st_size <= bound
    assert len(told) == 1
    assert f"bound of {bound} bytes" in told[0]
    assert built.scheduler.stats(0.0).num_finished == 5
    assert built.core.journal is not None
    assert built.core.journal.num_dropped > 1
    assert len(replay_file(path, LinearStepCost).digests) > 1  # the beginning is there


class _FullDisk:
    """A binary file on a disk with room for `room` bytes."""

    def __init__(self, room: int) -> None:
        self.room = room

    def write(self, data: bytes) -> int:
        self.room -= len(data)
        if self.room < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return len(data)

    def flush(self) -> None:
        pass


def test_a_full_disk_ends_the_journal_and_not_the_engine() -> None:
    told: list[str] = []
    built = scripted_engine(journal=StepJournal(_FullDisk(600), report=told.append))  # type: ignore[arg-type]
    found = built.run(make_request(0, [1, 2, 3], 12, sampling={"ignore_eos": True}))
    assert len(found[0].token_ids) == 12
    assert len(told) == 1
    assert "No space left" in told[0]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_what_a_full_disk_left_behind_does_not_disturb_the_end() -> None:
    built = scripted_engine(journal=StepJournal(open("/dev/full", "wb"), close_sink=True))  # noqa: SIM115
    built.run(make_request(0, [1, 2, 3]))
    built.core.close()


def test_without_a_report_a_warning_tells_that_it_ended(tmp_path: Path) -> None:
    built = scripted_engine()
    with pytest.warns(RuntimeWarning, match="journal ends here"):
        journal = begin_journal(tmp_path / "run.journal", built.scheduler, {}, max_bytes=30)
    assert journal is not None
    journal.close()


def test_no_path_is_no_journal() -> None:
    assert begin_journal(None, scripted_engine().scheduler, {}) is None


@pytest.mark.parametrize("where", ["missing/run.journal", "", "taken"])
def test_a_path_that_cannot_be_written_is_refused_before_anything_runs(tmp_path: Path, where: str) -> None:
    os.mkfifo(tmp_path / "taken")  # neither a file to be kept nor a free name
    with pytest.raises(ConfigError, match="cannot be written"):
        begin_journal(tmp_path / where, scripted_engine().scheduler, {})


def test_what_is_no_journal_or_has_no_beginning_says_so(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with pytest.raises(EngineError, match="cannot be read"):
        replay_file(path, LinearStepCost)
    path.write_bytes(b"GGUF\x03")
    with pytest.raises(EngineError, match="not a step journal"):
        replay_file(path, LinearStepCost)
    with path.open("wb") as sink:
        StepJournal(sink).record(Aborted(now=0.0, request_id=1))
    with pytest.raises(EngineError, match="does not begin with"):
        replay_file(path, LinearStepCost)
    path.write_bytes(path.read_bytes().replace(b"aborted", b"abortee"))
    with pytest.raises(EngineError, match="damaged"):
        list(read_journal(path))
    small = StepJournal(max_bytes=100)
    for i in range(20):
        small.record(Aborted(now=0.0, request_id=i))
    path.write_bytes(small.to_bytes())
    with pytest.raises(EngineError, match="beginning was dropped"):
        replay_file(path, LinearStepCost)


def test_events_that_decode_and_make_no_sense_are_told_as_damage(tmp_path: Path) -> None:
    path, changed = tmp_path / "run.journal", tmp_path / "changed.journal"
    recorded(path)
    events = list(read_journal(path))
    began = events[0]
    assert isinstance(began, Began)
    at, result = next((i, e.result) for i, e in enumerate(events) if isinstance(e, Applied) and len(e.result.tokens))
    applied = Applied(now=0.0, result=msgspec.structs.replace(result, tokens=result.tokens + 10**6))
    for wrong in (
        [msgspec.structs.replace(began, prices={"per_step_ms": 1.0}), *events[1:]],
        [*events[:at], events[at], events[at]],
        [*events[:at], applied],
    ):
        with changed.open("wb") as sink:
            journal = StepJournal(sink)
            for event in wrong:
                journal.record(event)
        with pytest.raises(EngineError, match=r"damaged, or of another version|left the recording"):
            replay_file(changed, LinearStepCost)


def test_a_closed_engine_closes_its_journal(tmp_path: Path) -> None:
    built = recorded(tmp_path / "run.journal")
    assert built.core.journal is not None
    size = (tmp_path / "run.journal").stat().st_size
    built.core.journal.record(Aborted(now=0.0, request_id=1))
    outputs: list[RequestOutput] = built.core.step()
    assert outputs == []
    assert (tmp_path / "run.journal").stat().st_size == size


def test_served_steps_are_those_that_others_followed_with_the_time_to_the_next_plan(tmp_path: Path) -> None:
    path = tmp_path / "run.journal"
    recorded(path)
    planned = [event for event in read_journal(path) if isinstance(event, Planned) and event.digest]
    found = list(served_steps(path, LinearStepCost))
    assert len(found) == len(planned) - 1  # behind the last one nothing was left to do
    assert [step.ms for step in found] == pytest.approx([1e3 * (b.now - a.now) for a, b in pairwise(planned)])
    assert all(step.ms >= step.device_ms > 0.0 and step.shape.num_rows > 0 for step in found)


def test_a_step_before_a_pause_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "run.journal"
    built = scripted_engine()
    journal = begin_journal(path, built.scheduler, LinearStepCost().prices)
    core = built.core = EngineCore(built.scheduler, built.executor, built.clock, journal)
    for request_id in range(2):
        core.submit(make_request(request_id, [1, 2, 3, 4 + request_id], 3))
        built.finish()
        built.clock.sleep(5.0)
    core.close()
    found = list(served_steps(path, LinearStepCost))
    assert len(found) == 4  # three steps of each request, the last one of which is followed by nobody
    assert max(step.ms for step in found) < 5000.0


def test_steps_that_overlap_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.journal"
    recorded(path, depth=2)
    with pytest.raises(EngineError, match="overlap"):
        list(served_steps(path, LinearStepCost))
