"""`paceline serve MODEL`: the model may stand there without its flag, as users of other servers write it."""

import pytest
import typer
from typer.testing import CliRunner

from paceline.assemble import server as assembled
from paceline.cli.serve import serve


def run(monkeypatch, *flags):
    """The exit code, what was printed, and the models that a server was asked for."""
    asked = []
    monkeypatch.setattr(assembled, "run_server", lambda config, *_: asked.append(config.model.model))
    app = typer.Typer()
    app.command()(serve)
    found = CliRunner().invoke(app, list(flags))
    return found.exit_code, found.output, asked


@pytest.mark.parametrize("flags", [["some-model"], ["-m", "some-model"], ["some-model", "--model", "some-model"]])
def test_the_model_is_an_argument_or_a_flag(monkeypatch, flags):
    code, output, asked = run(monkeypatch, *flags)
    assert code == 0, output
    assert asked == ["some-model"]


def test_the_argument_wins_over_a_file(monkeypatch, tmp_path):
    path = tmp_path / "serve.toml"
    path.write_text('[model]\nmodel = "of-the-file"\n')
    assert run(monkeypatch, "some-model", "--config", str(path))[2] == ["some-model"]


def test_two_models_are_refused(monkeypatch):
    code, output, asked = run(monkeypatch, "one", "--model", "another")
    assert code != 0
    assert asked == []
    assert "one and --model another" in output
