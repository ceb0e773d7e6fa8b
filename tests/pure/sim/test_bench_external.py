"""`make bench-external`: what runs, and what is left out and why."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "scripts"))
import bench_external


def test_a_benchmark_says_what_it_needs() -> None:
    said = bench_external.wanted('"""Words.\n\nData: tools/*_answers.jsonl\nNeeds: a running server\n"""\n')
    assert said == ("tools/*_answers.jsonl", True)
    assert bench_external.wanted('"""Words."""\n') == ("", False)


def test_data_is_found_in_the_folder_named_or_in_any_other(tmp_path: Path) -> None:
    assert bench_external.folder_with(tmp_path, "tools/*.jsonl") is None
    (tmp_path / "else").mkdir()
    (tmp_path / "else" / "a.jsonl").touch()
    assert bench_external.folder_with(tmp_path, "tools/*.jsonl") == tmp_path / "else"
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "a.jsonl").touch()
    assert bench_external.folder_with(tmp_path, "tools/*.jsonl") == tmp_path / "tools"


def test_every_benchmark_here_says_what_data_it_needs() -> None:
    files = sorted(bench_external.HERE.glob("[!_]*.py"))
    assert files
    assert [f.name for f in files if not bench_external.wanted(f.read_text(encoding="utf-8")).data] == []


def test_what_is_left_out_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    here, data = tmp_path / "external", tmp_path / "data"
    here.mkdir()
    data.mkdir()
    (data / "x.csv").touch()
    (here / "good.py").write_text('"""A.\n\nData: sub/x.csv\n"""\nimport sys\nprint("ran with", sys.argv[1])\n')
    (here / "bad.py").write_text('"""A.\n\nData: sub/x.csv\n"""\nraise SystemExit(3)\n')
    (here / "served.py").write_text('"""A.\n\nData: sub/x.csv\nNeeds: a running server\n"""\n')
    (here / "absent.py").write_text('"""A.\n\nData: sub/y.csv\n"""\n')
    monkeypatch.setattr(bench_external, "HERE", here)
    assert bench_external.main([str(data)]) == 1
    out, err = capfd.readouterr()
    assert f"ran with {data}" in out
    assert "skipped absent.py: nothing like sub/y.csv" in out
    assert "skipped served.py: it needs a running server" in out
    assert "failed: bad.py" in err
    assert bench_external.main([str(data), "--list"]) == 0
    assert bench_external.main([str(tmp_path / "nowhere")]) == 2
