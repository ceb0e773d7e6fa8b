"""`paceline models`: what it prints and how it fails."""

from pathlib import Path

import pytest
from tests.pure.hub.gguf_maker import model_bytes
from typer.testing import CliRunner

from paceline.cli.models import app
from paceline.hub import ALIASES
from paceline.hub.aliases import alias_path


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "120")
    return tmp_path / "home"


def test_list_shows_short_names_and_what_has_been_fetched(home: Path) -> None:
    shown = CliRunner().invoke(app, ["list"])
    assert shown.exit_code == 0
    assert "smollm2-135m" in shown.output
    assert "253 MB" in shown.output
    path = alias_path(ALIASES["smollm2-135m"], home)
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        file.truncate(ALIASES["smollm2-135m"].size_bytes)
    rows = {
        line.split()[1]: line
        for line in CliRunner().invoke(app, ["list"]).output.splitlines()
        if "270m" in line or "135m" in line
    }
    assert "yes" in rows["smollm2-135m"]
    assert "no" in rows["gemma3-270m"]
    gone = CliRunner().invoke(app, ["rm", "smollm2-135m"])
    assert gone.exit_code == 0
    assert "98 MB freed" in gone.output


@pytest.mark.usefixtures("home")
def test_pull_of_a_local_file_says_where_it_lies(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(model_bytes())
    pulled = CliRunner().invoke(app, ["pull", str(path)])
    assert pulled.exit_code == 0
    assert str(path) in pulled.output.replace("\n", "")


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("command", [["pull", "smolm2"], ["rm", "gemma3-270m"], ["rm", "../x"]])
def test_errors_have_no_traceback(command: list[str]) -> None:
    failed = CliRunner().invoke(app, command)
    assert failed.exit_code == 1
    assert "error:" in failed.output
    assert "fix:" in failed.output
    assert "Traceback" not in failed.output
    assert isinstance(failed.exception, SystemExit)
