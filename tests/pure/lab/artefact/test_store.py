"""The folder of a run: byte-equal recompute, crashes, damage."""

from __future__ import annotations

import gzip
from pathlib import Path

import msgspec
import pytest
from tests.pure.lab.metrics.logs import info, steady_log

from paceline.contracts.artefact import Answer, RequestRecord, Verdict
from paceline.contracts.workload import PlannedRequest, SloClass
from paceline.errors import LabError
from paceline.lab.artefact import (
    canonical,
    is_intact,
    read_plan,
    read_run,
    recompute,
    write_run,
    write_verdict,
)
from paceline.lab.artefact.lines import LineReader, LineWriter

CHAT = SloClass(ttft_s=0.1, tpot_s=1 / 30)


def test_recompute_gives_the_same_bytes(tmp_path: Path) -> None:
    stored = write_run(tmp_path / "run", info(CHAT, energy={"joules": 1 / 3}), steady_log(120))
    assert recompute(tmp_path / "run") == (tmp_path / "run" / "metrics.json").read_bytes()
    assert is_intact(tmp_path / "run")
    again = read_run(tmp_path / "run")
    assert again == stored
    assert again.metrics.whole.goodput_rps.value == pytest.approx(10.0)


def test_two_writers_of_one_run_write_the_same_bytes(tmp_path: Path) -> None:
    log = steady_log(50)
    write_run(tmp_path / "a", info(CHAT), log)
    write_run(tmp_path / "b", info(CHAT), list(reversed(log)))
    for name in ("run.json", "requests.jsonl.gz", "metrics.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_a_changed_record_shows(tmp_path: Path) -> None:
    run = tmp_path / "run"
    log = steady_log(30)
    write_run(run, info(CHAT), log)
    log[3].chunks = log[3].chunks[:1]
    with LineWriter(tmp_path / "new") as lines:
        lines.extend(log)
    (tmp_path / "new").replace(run / "requests.jsonl.gz")
    assert not is_intact(run)


def test_everything_beside_the_records(tmp_path: Path) -> None:
    plan = [PlannedRequest(id=0, stream="s", at_s=0.0)]
    scraped = [{"t_s": 0.5, "kv_used": 0.25}]
    verdict = Verdict(answer=Answer.PASS, sentence="well")
    write_run(tmp_path, info(CHAT), steady_log(3), plan=plan, server_metrics=scraped, verdict=verdict)
    found = read_run(tmp_path)
    assert (found.server_metrics, found.verdict) == (scraped, verdict)
    assert read_plan(tmp_path) == plan
    write_verdict(tmp_path, Verdict(answer=Answer.FAIL, sentence="slow"))
    later = read_run(tmp_path)
    assert later.verdict is not None
    assert later.verdict.answer is Answer.FAIL


def test_an_interrupted_run_is_a_valid_one(tmp_path: Path) -> None:
    """The process died while it wrote: no metrics.json, half a line at the end."""
    write_run(tmp_path / "run", info(CHAT, end=100_000), steady_log(40))
    (tmp_path / "run" / "metrics.json").unlink()
    with (tmp_path / "run" / "requests.jsonl.gz").open("ab") as file:
        file.write(gzip.compress(b'{"id": 40, "stre')[:-12])
    found = read_run(tmp_path / "run")
    assert len(found.records) == 40
    assert found.info.status == "partial"
    assert found.metrics.whole.num_requests == 40
    assert found.metrics.window.seconds == 3.99  # until the last end
    assert "partial" in {c.code for c in found.metrics.cautions}


def test_a_log_can_be_cut_anywhere(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    with LineWriter(whole) as lines:
        for batch in range(5):
            lines.extend(steady_log(10)[batch * 2 : batch * 2 + 2])
            lines.flush()
    raw = whole.read_bytes()
    counts = []
    for end in range(0, len(raw) + 1, 7):
        part = tmp_path / "part"
        part.write_bytes(raw[:end])
        reader = LineReader(part, RequestRecord)
        counts.append(len(list(reader)))
        assert counts[-1] == 10 or reader.cut or counts[-1] % 2 == 0
    assert counts == sorted(counts)
    assert counts[0] == 0
    assert len(list(LineReader(whole, RequestRecord))) == 10


def test_appending_after_a_clean_end(tmp_path: Path) -> None:
    for batch in (steady_log(4)[:2], steady_log(4)[2:]):
        with LineWriter(tmp_path / "log") as lines:
            lines.extend(batch)
    assert [r.id for r in LineReader(tmp_path / "log", RequestRecord)] == [0, 1, 2, 3]


def test_what_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(LabError, match=r"no run\.json"):
        read_run(tmp_path)
    write_run(tmp_path, info(CHAT), steady_log(3))
    (tmp_path / "metrics.json").write_bytes(b'{"window": 3}')
    with pytest.raises(LabError, match="cannot be read"):
        read_run(tmp_path)


def test_a_newer_form_is_refused(tmp_path: Path) -> None:
    write_run(tmp_path, info(CHAT), steady_log(3))
    text = (tmp_path / "run.json").read_bytes().replace(b'"version": 1', b'"version": 2')
    (tmp_path / "run.json").write_bytes(text)
    with pytest.raises(LabError, match="newer paceline"):
        read_run(tmp_path)


def test_damaged_lines_name_their_place(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(gzip.compress(b'{"id": 1, "stream": "s"}\n{"id": "x"}\n'))
    with pytest.raises(LabError, match="line 2"):
        list(LineReader(path, RequestRecord))
    path.write_bytes(b"plain text")
    with pytest.raises(LabError, match="no gzip"):
        list(LineReader(path, RequestRecord))


def test_a_small_file_must_not_fill_the_memory(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(gzip.compress(b'{"id": 1, "stream": "s"}\n' * 200_000))
    with pytest.raises(LabError, match="unpacks to more"):
        list(LineReader(path, RequestRecord, max_total_bytes=1_000_000))


def test_canonical_bytes() -> None:
    text = canonical({"b": [1.0, -0.0, 1 / 3], "a": float("nan"), "c": float("inf")})
    assert msgspec.json.decode(text) == {"a": None, "b": [1.0, 0.0, 0.333333333], "c": None}
    assert text.index(b'"a"') < text.index(b'"b"') < text.index(b'"c"')
    assert canonical({"x": 0.1 + 0.2}) == canonical({"x": 0.3})
    assert canonical({"x": 123456789012345}) == b'{\n "x": 123456789012345\n}\n'
