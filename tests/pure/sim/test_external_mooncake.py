"""The benchmark on the Mooncake trace, on a small trace of our own of the same shape."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

import pytest

from paceline.contracts.mix import mix64

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "benchmarks" / "external"))
import mooncake


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Batches every three seconds, one block common to all, conversations that grow and come back."""
    rows, length = [], {}
    for index in range(120):
        batch, user = index // 8, mix64(index) % 16
        turn = length[user] = length.get(user, 0) + 1
        blocks = [0, *(1000 * (user + 1) + at for at in range(6 * turn))]
        rows.append(
            {
                "timestamp": 3000 * batch,
                "input_length": 512 * len(blocks) - 100,
                "output_length": 20 + mix64(index + 7) % 60,
                "hash_ids": blocks,
            }
        )
    path = tmp_path / "mooncake_conversation_trace.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    return path


def test_policies_rank_as_on_the_trace_itself(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = mooncake.load(trace, 110, 0)
    assert len(plan.requests) == 110
    rows = mooncake.table(plan, 8)
    assert len(capsys.readouterr().out.splitlines()) == 1 + len(rows)
    assert mooncake.surprises(rows, 8) == []
    by_name = {row.name: row for row in rows}
    assert by_name["longest match only"].over_mean == 8.0
    assert by_name["predicted-seconds"].hit > 1.5 * by_name["round-robin"].hit
    assert all(0.0 < row.within <= 1.0 and row.over_mean >= 1.0 for row in rows[1:])


def test_surprises_are_named() -> None:
    row = mooncake.Row("", 0.3, (1.0, 2.0, 3.0), 0.7, 1.1, 1.0)
    names = ["longest match only", "round-robin", "predicted-seconds", "predicted-seconds, told every 5 s"]
    alike = [row._replace(name=name) for name in names]
    assert len(mooncake.surprises(alike, 8)) == 2  # nothing collapses, the ledger is worth nothing
    better = [each._replace(within=0.9) if each.name == "round-robin" else each for each in alike]
    assert len(mooncake.surprises(better, 8)) == 3
