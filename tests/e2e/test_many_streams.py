"""A thousand open streams on the simulated executor: none fails, each gets all its tokens."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import httpx
import pytest
from tests.fakes.served_toy import Served, serve_simulated

ENGINE = {"max_rows": 1000, "max_tokens": 4096, "max_waiting_requests": 2000, "num_blocks": 40_000}


def load(server: Served, *, streams: int, tokens: int) -> dict[str, Any]:
    options = {
        "host": server.host,
        "port": server.port,
        "path": "/v1/completions",
        "streams": streams,
        "body": {
            "model": server.model,
            "prompt": "stream {i}",
            "max_tokens": tokens,
            "stream": True,
            "ignore_eos": True,
        },
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.fakes.sse_load", json.dumps(options)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    ("streams", "tokens"), [(1000, 12), pytest.param(1000, 200, marks=pytest.mark.long)], ids=["short", "long"]
)
def test_a_thousand_streams_complete(streams: int, tokens: int) -> None:
    with serve_simulated(ENGINE) as server:
        found = load(server, streams=streams, tokens=tokens)
        assert found["num_errors"] == 0, found["errors"]
        assert found["tokens"] == [tokens] * streams
        server.wait_idle()
        assert httpx.get(f"{server.url}/health").status_code == 200
