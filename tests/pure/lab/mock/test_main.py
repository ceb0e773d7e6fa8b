"""The two ways to run it from a shell."""

import signal
import subprocess
import sys

import pytest
import typer
from tests.fakes.lab.mock_client import ask
from typer.testing import CliRunner

from paceline.cli.mock import mock
from paceline.lab.mock.main import main

TIMEOUT_S = 30


def test_the_module_serves_a_script_until_it_is_told_to_end(tmp_path):
    path = tmp_path / "script.toml"
    path.write_text('models = ["m"]\nservice = { num_tokens = 4 }\n')
    command = [sys.executable, "-m", "paceline.lab.mock", "--script", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            url = child.stdout.readline().strip()
            seen = ask(url, body={"messages": [{"role": "user", "content": "a"}]})
            child.send_signal(signal.SIGINT)
            _, errors = child.communicate(timeout=TIMEOUT_S)
        finally:
            child.kill()
    assert seen.json()["usage"]["completion_tokens"] == 4
    assert (child.returncode, errors) == (0, "")


@pytest.mark.parametrize("text", ["servce = {}", "=", ""])
def test_a_wrong_script_is_said_in_one_line(tmp_path, capsys, text):
    path = tmp_path / "script.toml"
    if text:
        path.write_text(text)
    assert main(["--script", str(path)]) == 1
    assert capsys.readouterr().err.startswith("error: the script ")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--script", "x.toml", "--ttft-ms", "5"], "--script decides everything"),
        (["--flavour", "other"], "the script is not right"),
        (["--script", "nowhere.toml"], "cannot be read"),
    ],
)
def test_flags_that_cannot_be_are_refused(flags, words):
    app = typer.Typer()
    app.command()(mock)
    found = CliRunner().invoke(app, flags)
    assert found.exit_code == 2
    assert words in found.output
