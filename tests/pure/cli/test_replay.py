from __future__ import annotations

from pathlib import Path

import pytest
from tests.fakes.builders import make_request, scripted_engine
from typer.testing import CliRunner

from paceline.cli.main import app
from paceline.cost import LinearStepCost
from paceline.engine import EngineCore, begin_journal, read_journal


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    path = tmp_path / "run.journal"
    built = scripted_engine()
    core = EngineCore(
        built.scheduler, built.executor, built.clock, begin_journal(path, built.scheduler, LinearStepCost().prices)
    )
    core.submit_all([make_request(i, [1, 2, 3, i], 5, sampling={"ignore_eos": True}) for i in range(3)])
    while core.has_work:
        core.step()
    core.close()
    return path


def test_a_journal_is_replayed_and_counted(journal: Path) -> None:
    done = CliRunner().invoke(app, ["replay", str(journal)])
    assert done.exit_code == 0, done.output
    assert done.output.startswith(f"{len(list(read_journal(journal)))} events, 5 plans")


def test_a_plan_that_differs_ends_with_an_error(journal: Path) -> None:
    data = journal.read_bytes()
    at = data.rindex(b"digest") + 10  # inside the last digest
    journal.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    done = CliRunner().invoke(app, ["replay", str(journal)])
    assert done.exit_code == 1
    assert "left the recording at step 4" in done.output


def test_a_file_that_is_none_says_so(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["replay", str(tmp_path / "nothing")])
    assert done.exit_code == 1
    assert "cannot be read" in done.output
