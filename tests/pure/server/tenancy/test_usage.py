"""The usage file: whole lines only, whatever the disk does; records say what the metric definitions say."""

import errno
import json
import logging
import math
import os

import pytest

from paceline.contracts.request import FinishReason, Usage
from paceline.contracts.slo import Outcome, Slo, Timeline
from paceline.errors import ConfigError
from paceline.server.tenancy import usage as module
from paceline.server.tenancy.usage import UsageLedger, UsageRecord, read_usage


def record(number: int = 0, **fields) -> UsageRecord:
    base = {"tenant": "t", "service_class": "default", "model": "m", "outcome": Outcome.OK}
    return UsageRecord(time=1.5, request_id=f"cmpl-{number}", **(base | fields))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "usage.jsonl"


def ids(path) -> list[str]:
    return [r.request_id for r in read_usage(path)]


def test_a_record_is_a_line_of_plain_json_before_record_returns(path):
    ledger = UsageLedger(path)
    assert ledger.record(record(7, prompt_tokens=3, ttft_ms=12.5, good=True))
    line = json.loads(path.read_text())
    assert (line["request_id"], line["prompt_tokens"], line["ttft_ms"]) == ("cmpl-7", 3, 12.5)
    assert (line["tpot_ms"], line["outcome"]) == (None, "ok")
    assert list(read_usage(path)) == [record(7, prompt_tokens=3, ttft_ms=12.5, good=True)]
    ledger.close()
    ledger.close()
    assert path.stat().st_mode & 0o007 == 0  # not for everybody


def test_without_a_path_it_only_counts():
    ledger = UsageLedger()
    assert not ledger.record(record())
    assert (ledger.num_records, ledger.num_written, ledger.num_kept) == (1, 0, 0)
    ledger.close()


@pytest.mark.parametrize("cut", [1, 5, 60])
def test_a_torn_last_line_is_cut_off_when_the_file_is_opened(path, cut):
    with_two = UsageLedger(path)
    with_two.record(record(1))
    with_two.record(record(2))
    with_two.close()
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    ledger = UsageLedger(path)
    ledger.record(record(3))
    ledger.close()
    assert ids(path) == (["cmpl-1", "cmpl-2", "cmpl-3"] if cut == 1 else ["cmpl-1", "cmpl-3"])
    assert all(json.loads(line) for line in path.read_text().splitlines())


def test_a_torn_line_longer_than_one_look(path):
    path.write_bytes(b'{"a": 1}\n' + b"x" * 200_000)
    UsageLedger(path).close()
    assert path.read_bytes() == b'{"a": 1}\n'


def test_a_file_that_cannot_be_opened_is_a_config_error(tmp_path):
    with pytest.raises(ConfigError, match="cannot be opened"):
        UsageLedger(tmp_path / "no" / "usage.jsonl")


def test_two_servers_do_not_share_a_file(path):
    ledger = UsageLedger(path)
    with pytest.raises(ConfigError, match="another server"):
        UsageLedger(path)
    ledger.close()
    UsageLedger(path).close()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_real_full_device_fails_no_record(caplog):
    ledger = UsageLedger("/dev/full")
    with caplog.at_level(logging.WARNING, "paceline.usage"):
        assert [ledger.record(record(i)) for i in range(3)] == [False] * 3
    assert len(caplog.records) == 1  # once, not once per request
    assert (ledger.num_kept, ledger.num_lost) == (3, 0)
    assert ledger.num_errors >= 3
    ledger.close()
    assert ledger.num_lost == 3


def test_records_wait_for_the_disk_and_are_written_in_order(path, monkeypatch, caplog):
    ledger = UsageLedger(path)
    ledger.record(record(1))
    write = os.write
    trouble = [OSError(errno.ENOSPC, "full"), 5, OSError(errno.EROFS, "read only")]

    def failing(file, data):
        if not trouble:
            return write(file, data)
        how = trouble.pop(0)
        if isinstance(how, OSError):
            raise how
        return write(file, data[:how])  # a short write

    monkeypatch.setattr(module.os, "write", failing)
    with caplog.at_level(logging.WARNING, "paceline.usage"):
        assert [ledger.record(record(i)) for i in (2, 3, 4, 5)] == [False, False, False, True]
    assert ids(path) == [f"cmpl-{i}" for i in range(1, 6)]
    assert len(path.read_text().splitlines()) == 5  # the short write left nothing behind
    assert [r.levelname for r in caplog.records] == ["ERROR", "WARNING"]  # it fails, it works again
    assert (ledger.num_errors, ledger.num_lost, ledger.num_written) == (3, 0, 5)
    ledger.close()


def test_a_fragment_that_cannot_be_cut_back_spoils_no_other_line(path, monkeypatch):
    ledger = UsageLedger(path)
    write = os.write
    short = [True]

    def once_short(file, data):
        return write(file, data[:9]) if short and short.pop() else write(file, data)

    def no_truncate(*_):
        raise OSError(errno.EIO, "no")

    monkeypatch.setattr(module.os, "write", once_short)
    monkeypatch.setattr(module.os, "ftruncate", no_truncate)
    assert not ledger.record(record(1))
    assert ledger.record(record(2))
    ledger.close()
    assert ids(path) == ["cmpl-1", "cmpl-2"]


def test_memory_is_bounded_while_the_disk_is_away(path, monkeypatch):
    monkeypatch.setattr(module, "_MAX_KEPT", 3)
    ledger = UsageLedger(path)

    def gone(*_):
        raise OSError("gone")

    monkeypatch.setattr(UsageLedger, "_append", gone)
    for i in range(5):
        ledger.record(record(i))
    assert (ledger.num_kept, ledger.num_lost) == (3, 2)
    monkeypatch.undo()
    ledger.close()
    assert ids(path) == ["cmpl-2", "cmpl-3", "cmpl-4"]


def test_a_renamed_file_is_followed(path, tmp_path):
    ledger = UsageLedger(path)
    ledger.record(record(1))
    path.rename(tmp_path / "old.jsonl")
    with ledger._lock:
        ledger._follow_rename()  # the thread does so every second
    ledger.record(record(2))
    ledger.close()
    assert ids(tmp_path / "old.jsonl") == ["cmpl-1"]
    assert ids(path) == ["cmpl-2"]


# --- what a record says


def timeline(**fields) -> Timeline:
    return Timeline(planned=10.0, arrival=10.0, **fields)


def of(line: Timeline, slo: Slo | None = None, **fields) -> UsageRecord:
    about = {"request_id": "x", "tenant": "t", "service_class": "c", "model": "m"}
    return UsageRecord.of(time=0.0, slo=Slo() if slo is None else slo, timeline=line, **about, **fields)


def test_a_record_from_a_timeline():
    line = timeline(admitted=10.1, chunks=[(10.3, 1), (10.5, 2), (10.7, 2)], end=10.7)
    usage = Usage(prompt_tokens=9, cached_tokens=8, computed_tokens=6, wasted_tokens=1, output_tokens=5, preemptions=1)
    found = of(line, Slo(ttft_s=0.4, tpot_s=0.1001), usage=usage, finish=FinishReason.STOP, choice=2)
    assert (found.queue_ms, found.prefill_ms, found.ttft_ms, found.tpot_ms, found.e2e_ms) == pytest.approx(
        (100, 200, 300, 100, 700)
    )
    assert (found.cached_tokens, found.wasted_tokens, found.choice, found.finish_reason) == (8, 1, 2, "stop")
    assert (found.good, found.counts, found.reclaim_ms) == (True, True, None)
    assert found.ttft_s == pytest.approx(0.3)
    assert not of(line, Slo(ttft_s=0.2)).good


def test_undefined_times_are_none_not_zero():
    found = of(timeline(outcome=Outcome.TIMEOUT, end=11.0))
    assert (found.queue_ms, found.ttft_ms, found.tpot_ms, found.e2e_ms) == (None,) * 4
    assert math.isnan(found.ttft_s)
    assert math.isnan(found.tpot_s)
    assert (found.good, found.counts) == (False, True)


def test_reclaim_is_from_the_close_to_the_blocks():
    line = timeline(outcome=Outcome.CLIENT_CANCEL, end=12.0, blocks_free=12.25)
    assert of(line, closed_at=12.0).reclaim_ms == 250.0
    assert of(line, closed_at=12.5).reclaim_ms == 0.0  # they were free before it left
    assert of(line).reclaim_ms is None
    assert of(timeline(outcome=Outcome.CLIENT_CANCEL, end=12.0), closed_at=11.0).reclaim_ms is None


@pytest.mark.parametrize(
    ("slo", "chunks", "counts"),
    [
        (Slo(), [], False),
        (Slo(ttft_s=3.0), [], False),  # it left after 2 s: the target could still be met
        (Slo(ttft_s=1.0), [], True),
        (Slo(ttft_s=1.0), [(10.5, 1)], False),
        (Slo(ttft_s=1.0), [(11.5, 1)], True),
        (Slo(e2e_s=1.0), [(10.5, 1)], True),
        (Slo(tpot_s=0.5), [(10.5, 1)], False),
        (Slo(tpot_s=0.5), [(10.5, 1), (11.5, 1)], True),
    ],
)
def test_a_cancel_counts_only_after_a_missed_target(slo, chunks, counts):
    line = timeline(outcome=Outcome.CLIENT_CANCEL, chunks=chunks, end=12.0)
    found = of(line, slo)
    assert (found.good, found.counts) == (False, counts)
