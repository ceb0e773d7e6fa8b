"""`paceline soak`: which limits hold."""

import pytest
import typer
from typer.testing import CliRunner

from paceline.cli import soak
from paceline.contracts.artefact import TargetInfo
from paceline.lab.gates import SoakResult


@pytest.mark.parametrize(
    ("table", "given", "expected"),
    [("", (), 60.0), ("", ("--watchdog", "5"), 5.0), ("max_no_token_s = 120.0", (), 120.0),
     ("max_no_token_s = 120.0", ("--watchdog", "5"), 5.0)],
)  # fmt: skip
def test_the_watchdog_waits_as_long_as_the_gate_allows_unless_told(monkeypatch, tmp_path, table, given, expected):
    asked = []

    def run_soak(url, options, **_more):
        asked.append(options.watchdog_s)
        return SoakResult(target=TargetInfo(url=url, model="m"), asked_s=options.seconds)

    monkeypatch.setattr("paceline.lab.gates.soak.run_soak", run_soak)
    (tmp_path / "soak").mkdir()
    (tmp_path / "gates.toml").write_text(f"[stability]\n{table}\n")
    app = typer.Typer()
    app.command()(soak.soak)
    arguments = ["--url", "http://none", "--minutes", "1", "--out", str(tmp_path / "soak"), *given]
    arguments += ["--gates", str(tmp_path / "gates.toml")] if table else []
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 2, done.output  # nothing was measured
    assert asked == [expected]
