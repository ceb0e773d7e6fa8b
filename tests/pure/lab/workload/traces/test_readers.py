from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.pure.lab.workload.traces import samples
from tests.pure.lab.workload.traces.samples import saved, servegen

from paceline.errors import ConfigError
from paceline.lab.workload.traces import FORMATS, files, open_trace
from paceline.lab.workload.traces.reading import detect


def test_azure_2023_and_2024(tmp_path: Path) -> None:
    rows = open_trace(saved(tmp_path, "a.csv", samples.AZURE_2023)).rows(0, 100)
    assert np.allclose(rows.at_s, [0, 0.252, 2.0, 2.0], atol=1e-6)
    assert rows.num_input is not None
    assert rows.num_output is not None
    assert list(rows.num_input) == [4808, 3180, 110, 7433]
    assert list(rows.num_output) == [10, 8, 27, 14]
    rows = open_trace(saved(tmp_path, "b.csv.gz", samples.AZURE_2024)).rows(0, 100)
    assert np.allclose(rows.at_s, [0, 1.5], atol=1e-6)


def test_burstgpt_with_and_without_sessions(tmp_path: Path) -> None:
    rows = open_trace(saved(tmp_path, "a.csv", samples.BURSTGPT)).rows(0, 200)
    assert list(rows.at_s) == [0, 40, 113]
    assert rows.num_output is not None
    assert list(rows.num_output) == [18, 230, 1], "a failed request keeps its arrival"
    rows = open_trace(saved(tmp_path, "b.csv", samples.BURSTGPT_SESSIONS)).rows(0, 200)
    assert list(rows.at_s) == [0, 2.5]


def test_mooncake_and_bailian_keep_their_blocks(tmp_path: Path) -> None:
    rows = open_trace(saved(tmp_path, "m.jsonl.gz", samples.MOONCAKE)).rows(0, 100)
    assert list(rows.at_s) == [0, 0, 3, 9]
    assert (rows.blocks, rows.block_tokens) == ([(0, 1, 2), (0, 3), (0, 1, 4), (5,)], 512)
    rows = open_trace(saved(tmp_path, "b.jsonl", samples.BAILIAN)).rows(0, 100)
    assert np.allclose(rows.at_s, [0, 14.5])
    assert (rows.blocks, rows.block_tokens) == ([(1, 2, 3), (1, 2, 4, 5)], 16)


def test_servegen_draws_what_its_clients_say(tmp_path: Path) -> None:
    trace = open_trace(servegen(tmp_path))
    assert trace.end_s == 2400
    rows = trace.rows(0, 2400, "seed")
    assert np.array_equal(rows.at_s, trace.rows(0, 2400, "seed").at_s)
    assert not np.array_equal(rows.at_s[:5], trace.rows(0, 2400, "other").at_s[:5])
    assert rows.num_input is not None
    by_window = [np.sum((rows.at_s >= a) & (rows.at_s < a + 600)) for a in (0, 600, 1200, 1800)]
    assert by_window[0] == 0
    assert by_window[1] == pytest.approx(2400, rel=0.3)  # cv 2.5: five standard deviations are about a quarter
    assert by_window[2] == pytest.approx(1200, rel=0.15)
    assert by_window[3] == pytest.approx(600, rel=0.2)
    early, late = rows.num_input[rows.at_s < 1200], rows.num_input[rows.at_s >= 1200]
    assert set(early) == {45.0, 46.0}
    assert np.mean(early == 46) == pytest.approx(0.75, abs=0.05)
    assert set(late) == {900.0}


def test_a_part_of_servegen_is_that_part(tmp_path: Path) -> None:
    trace = open_trace(servegen(tmp_path))
    whole, part = trace.rows(0, 2400, 1), trace.rows(1300, 400, 1)
    inside = (whole.at_s >= 1300) & (whole.at_s < 1700)
    assert np.allclose(part.at_s, whole.at_s[inside] - 1300)


def test_servegen_without_lengths_or_as_a_folder(tmp_path: Path) -> None:
    assert open_trace(servegen(tmp_path, lengths=False)).rows(600, 60, 1).num_input is None
    folder = tmp_path / "pool"
    folder.mkdir()
    saved(folder, "chunk-0-trace.csv", samples.SERVEGEN_RATES)
    saved(folder, "chunk-0-dataset.json", samples.SERVEGEN_LENGTHS)
    assert len(open_trace(folder).rows(600, 300, 1)) > 300


def test_formats_are_recognised(tmp_path: Path) -> None:
    texts = {"azure": samples.AZURE_2024, "burstgpt": samples.BURSTGPT_SESSIONS}
    texts |= {"mooncake": samples.MOONCAKE, "bailian": samples.BAILIAN}
    for name, text in texts.items():
        assert detect(saved(tmp_path, f"{name}.txt", text)) == name
    assert detect(servegen(tmp_path)) == "servegen"
    assert set(FORMATS) == {*texts, "servegen"}
    with pytest.raises(ConfigError, match="not recognised"):
        detect(saved(tmp_path, "x", "a,b\n1,2\n"))


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("azure", "TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,2\n", "line 2 is not of"),
        ("azure", "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-01-01 00:00:00,1\n", "line 2 is cut short"),
        ("azure", "TIMESTAMP,ContextTokens\n", "no column 'GeneratedTokens'"),
        ("azure", "TIMESTAMP,ContextTokens,GeneratedTokens\n", "no requests"),
        ("azure", "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "1" * 200_000 + ",1,2\n", "is no CSV"),
        ("mooncake", '{"timestamp": 0, "input_length": 1}\n', "line 1 is not of"),
        ("bailian", "{", "line 1 is not of"),
    ],
)
def test_broken_traces_are_named_by_line(tmp_path: Path, name: str, text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        open_trace(saved(tmp_path, "x", text), name)


def test_files_that_are_no_trace(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        open_trace(tmp_path / "none.csv")
    with pytest.raises(ConfigError, match="cannot be read"):
        open_trace(saved(tmp_path, "x.tar.gz", "not packed like that"))
    (tmp_path / "broken.jsonl.gz").write_bytes(b"\x1f\x8b\x08rubbish")
    with pytest.raises(ConfigError, match="cannot be read"):
        open_trace(tmp_path / "broken.jsonl.gz")
    (tmp_path / "worse.jsonl.gz").write_bytes(b"\x1f\x8b\x08" + b"\0" * 7 + b"\xff" * 50)
    with pytest.raises(ConfigError, match="cannot be read"):
        open_trace(tmp_path / "worse.jsonl.gz")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="no ServeGen client"):
        open_trace(tmp_path / "empty")
    bad = tmp_path / "bad"
    bad.mkdir()
    saved(bad, "chunk-0-trace.csv", "")
    with pytest.raises(ConfigError, match="no ServeGen client"):
        open_trace(bad)
    saved(bad, "chunk-0-trace.csv", "0,x,0,,0,0\n")
    with pytest.raises(ConfigError, match=r"chunk-0-trace\.csv is not of"):
        open_trace(bad)


def test_what_unpacks_to_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_BYTES", 100)
    with pytest.raises(ConfigError, match="too big"):
        open_trace(saved(tmp_path, "m.jsonl.gz", samples.MOONCAKE))
    with pytest.raises(ConfigError, match="too big"):
        open_trace(servegen(tmp_path))


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    path = saved(tmp_path, "m.jsonl", samples.MOONCAKE)
    assert len(open_trace(path).rows(0, 100)) == 4
    saved(tmp_path, "m.jsonl", samples.MOONCAKE + samples.MOONCAKE)
    assert len(open_trace(path).rows(0, 100)) == 8
