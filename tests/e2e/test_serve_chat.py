"""`paceline chat --url`: the same conversation, with a model behind a server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.e2e.conftest import Run
from tests.fakes.server_process import RunningServer, running_server


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server(api_key=["sesame"]) as running:
        yield running


def test_an_answer_and_a_conversation(server: RunningServer, paceline: Run) -> None:
    flags = ["--url", server.base_url, "--api-key", "sesame", "--max-tokens", "12"]
    once = paceline("chat", *flags, "--message", "Say hello.")
    assert once.returncode == 0, once.stderr
    assert once.stdout.strip()
    typed = paceline("chat", *flags, stdin="One.\nTwo.\n/new\n/exit\n")
    assert typed.returncode == 0, typed.stderr
    assert typed.stdout.count("> ") == 4


def test_a_refusal_is_told_and_the_conversation_goes_on(server: RunningServer, paceline: Run) -> None:
    typed = f"{'x' * 600}\nOne.\n"  # longer than the model
    done = paceline("chat", "--url", server.api_url, "--api-key", "sesame", "--max-tokens", "4", stdin=typed)
    assert done.returncode == 0, done.stderr
    assert "error: the server answered 400" in done.stdout
    assert done.stdout.count("> ") == 3


def test_a_wrong_key_and_a_missing_server_are_told(server: RunningServer, paceline: Run) -> None:
    wrong = paceline("chat", "--url", server.base_url, "--api-key", "guess", "--message", "hi")
    assert wrong.returncode == 1
    assert "--api-key" in wrong.stderr
    gone = paceline("chat", "--url", "http://127.0.0.1:9", "--message", "hi")
    assert gone.returncode == 2
    assert "paceline serve" in gone.stderr
    for done in (wrong, gone):
        assert "Traceback" not in done.stderr
