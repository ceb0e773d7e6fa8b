"""The README and the serving guide are run: their `curl` and Python blocks, against a real server."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fakes.served_toy import ADMIN_KEY, Served, serve_toy

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("README.md", "README.zh.md", "docs/guides/serving.md")
_BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_ADDRESS = re.compile(r"(localhost|127\.0\.0\.1):8000")


def blocks() -> list[tuple[str, int, str, str]]:
    """(page, line, language, text) of every block that talks to a server."""
    found = []
    for page in PAGES:
        text = (ROOT / page).read_text()
        for match in _BLOCK.finditer(text):
            # a server of its own does not end, and a load takes minutes: test_bench_command.py runs shorter ones
            if _ADDRESS.search(match[2]) and not re.search(r"paceline (serve|bench)", match[2]):
                found.append((page, text.count("\n", 0, match.start()) + 1, match[1], match[2]))
    return found


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serve_toy(served_model_name=["smollm2-135m"]) as server:
        yield server


@pytest.mark.parametrize(("page", "line", "language", "text"), blocks(), ids=lambda value: str(value)[:40])
def test_a_block_of_the_documentation_runs(served: Served, page: str, line: int, language: str, text: str) -> None:
    text = _ADDRESS.sub(served.url.removeprefix("http://"), text)
    # -f makes curl fail on an error status, which a reader would see as an error in the answer
    shell = ["sh", "-euc", re.sub(r"\bcurl ", "curl -fsS ", text)]
    argv = shell if language == "sh" else [sys.executable, "-c", text]
    env = {**os.environ, "PACELINE_ADMIN_KEY": ADMIN_KEY, "OPENAI_API_KEY": "none"}
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False, env=env)
    assert done.returncode == 0, f"{page}:{line}\n{text}\n{done.stdout}\n{done.stderr}"
    assert done.stdout.strip(), f"{page}:{line} prints nothing"


def test_the_pages_show_both_ways_to_call() -> None:
    for page in PAGES:
        assert {language for name, _, language, _ in blocks() if name == page} == {"sh", "python"}, page


def test_curl_streams_events_to_the_end(served: Served) -> None:
    body = {"model": served.model, "prompt": "Hi", "max_tokens": 5, "stream": True}
    argv = ["curl", "-sSN", "-i", f"{served.url}/v1/completions", "-H", "Content-Type: application/json"]
    done = subprocess.run([*argv, "-d", json.dumps(body)], capture_output=True, text=True, timeout=60, check=True)
    head, _, events = done.stdout.replace("\r\n", "\n").partition("\n\n")
    assert "content-type: text/event-stream" in head.lower()
    *chunks, done_mark = [e.removeprefix("data: ") for e in events.strip().split("\n\n")]
    assert done_mark == "[DONE]"
    parsed = [json.loads(chunk) for chunk in chunks]
    assert sum(chunk["paceline"]["num_tokens"] for chunk in parsed) == 5
    assert parsed[-1]["choices"][0]["finish_reason"] == "length"


def test_curl_shows_an_error_as_json(served: Served) -> None:
    argv = ["curl", "-sS", f"{served.url}/v1/completions", "-H", "Content-Type: application/json", "-d", "{not json"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(done.stdout)["error"]["type"] == "invalid_request_error"
