"""A real server says no at once when the first token would come too late, and says when to come back."""

from __future__ import annotations

import threading
import time

import httpx
from tests.fakes.server_process import MODEL, eventually, running_server

CLASSES = """
[classes.rush]
ttft_ms = 1500
refuse_late = true

[classes.patient]
"""
ENGINE = {"kind": "simulated", "fixed_ms": 5.0, "token_ms": 20.0, "max_model_len": 1024, "num_blocks": 1024}


def ask(url: str, num_words: int, service_class: str) -> httpx.Response:
    body = {"model": MODEL, "prompt": "a" * num_words, "max_tokens": 2, "service_class": service_class}
    return httpx.post(f"{url}/completions", json=body, timeout=60)


def test_a_late_request_gets_429_and_a_time_and_others_are_served(tmp_path):
    (tmp_path / "tenants.toml").write_text(CLASSES)
    with running_server(ENGINE, tenants=str(tmp_path / "tenants.toml")) as server:
        assert ask(server.api_url, 8, "rush").status_code == 200
        ahead = threading.Thread(target=ask, args=(server.api_url, 300, "patient"))  # 6 s of prefill
        ahead.start()
        eventually(lambda: "num_requests_running 1" in httpx.get(f"{server.base_url}/metrics").text)
        began = time.monotonic()
        refused = ask(server.api_url, 8, "rush")
        waited_s = time.monotonic() - began
        assert refused.status_code == 429
        error = refused.json()["error"]
        assert (error["type"], error["code"]) == ("rate_limit_error", "too_late")
        assert "predicted after" in error["message"]
        assert 2 <= int(refused.headers["retry-after"]) <= 8
        assert waited_s < 5  # at once, not after the wait
        ahead.join()
        assert ask(server.api_url, 8, "rush").status_code == 200
        metrics = httpx.get(f"{server.base_url}/metrics").text
        assert "paceline:requests_refused_late_total 1.0" in metrics
