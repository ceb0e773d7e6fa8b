"""A server process from start to end: phases, limits, draining, and what it says when it cannot start."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from tests.fakes.server_process import MODEL, PATIENCE_S, ROOT, RunningServer, eventually, running_server

LONG = {"max_tokens": 400, "ignore_eos": True}


@pytest.fixture(scope="module")
def server() -> Any:
    with running_server(max_body_bytes=1 << 20, allowed_origins=["https://good.example"]) as running:
        yield running


@pytest.fixture(scope="module")
def impatient() -> Any:
    """A server of its own: on a busy machine a client that means well may take half a second."""
    with running_server(header_timeout_s=0.5, body_timeout_s=0.5) as running:
        yield running


def events(response: httpx.Response) -> list[dict[str, Any]]:
    """The events of a stream, read to its end; [DONE] is {}."""
    lines = [line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: ")]
    return [{} if line == "[DONE]" else json.loads(line) for line in lines]


def streaming(server: RunningServer, **fields: Any) -> Any:
    body = {"model": MODEL, "prompt": "once", "stream": True, **fields}
    return httpx.stream("POST", f"{server.api_url}/completions", json=body, timeout=PATIENCE_S)


def connect(server: RunningServer) -> socket.socket:
    host, port = server.base_url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=PATIENCE_S)


def read_all(connection: socket.socket) -> bytes:
    data = b""
    while part := connection.recv(65536):
        data += part
    return data


# --- the start


def test_the_port_is_open_while_the_model_loads() -> None:
    with running_server({"start_s": 0.1}, ready=False, order="hold") as server:
        eventually(lambda: server.ready()["reason"] == "loading: weights")
        found = httpx.get(f"{server.base_url}/ready")
        assert found.status_code == 503
        assert found.json()["phase"] == "weights"
        assert httpx.get(f"{server.base_url}/health").status_code == 200
        assert httpx.get(f"{server.base_url}/version").json()["version"]
        early = server.complete()
        assert early.status_code == 503
        assert int(early.headers["retry-after"]) >= 1
        assert "loading: weights" in early.json()["error"]["message"]
        server.control("")
        server.wait_ready()
        assert server.complete().status_code == 200
        assert server.ready()["phases_s"] == {"weights": 0.1}
        words = server.log()
        assert "ready in" in words
        assert f"curl {server.base_url}/v1/chat/completions" in words


def test_a_signal_while_the_model_loads_ends_it_at_once() -> None:
    with running_server({"start_s": 600.0}, ready=False) as server:
        child = psutil.Process(eventually(lambda: psutil.Process(server.pid).children())[0].pid)
        assert server.stop() == 0
        child.wait(PATIENCE_S)


def test_the_server_process_loads_no_torch() -> None:
    code = (
        "import sys, paceline.assemble.server, paceline.cli.serve, paceline.server.app\n"
        "sys.exit(' '.join({'torch', 'transformers'} & set(sys.modules)) or None)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr


def paceline_serve(*arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "paceline.cli.main", "serve", *arguments]
    return subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE_S, check=False, cwd=ROOT)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--host", "192.0.2.1"], "the server cannot listen there"),
        (["--host", "no.such.host.invalid"], "not an address of this machine"),
        (["--port", "0", "--tenants", "/no/such/file.toml"], "/no/such/file.toml"),
        (["--port", "0", "--ssl-certfile", "/no/such/cert.pem"], "certificate"),
        (["--port", "0", "--usage-log", "/no/such/folder/usage.jsonl"], "/no/such/folder"),
        (["--prot", "80"], "--port"),
        (["--port", "99999"], "at most 65535"),
        (["--config", "/no/such.toml"], "does not exist"),
    ],
)
def test_bad_options_are_told_before_anything_is_loaded(arguments: list[str], words: str) -> None:
    done = paceline_serve(*arguments)
    assert done.returncode == 2, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_a_port_in_use_is_told_before_anything_is_loaded(server: RunningServer) -> None:
    done = paceline_serve("--port", server.base_url.rsplit(":", 1)[1])
    assert done.returncode == 2
    assert "Address already in use" in done.stderr
    assert "--port" in done.stderr


def test_an_engine_that_cannot_start_ends_the_server_with_its_error() -> None:
    with running_server({"fail_start": "the file of the model is torn", "start_s": 0.3}, ready=False) as server:
        assert server.process.wait(PATIENCE_S) == 1
        assert "the file of the model is torn" in server.log()
        assert "Traceback" not in server.log().split("error: the file")[-1]


# --- limits


def test_every_answer_carries_a_request_id(server: RunningServer) -> None:
    given = httpx.get(f"{server.base_url}/health", headers={"X-Request-Id": "mine-7"})
    assert given.headers["x-request-id"] == "mine-7"
    odd = httpx.get(f"{server.base_url}/health", headers={"X-Request-Id": "not a word"})
    assert odd.headers["x-request-id"] != "not a word"
    assert httpx.get(f"{server.base_url}/no/such/path").headers["x-request-id"]


def test_prompts_do_not_reach_the_log(server: RunningServer) -> None:
    secret = "a-prompt-nobody-may-read"
    assert server.complete(secret).status_code == 200
    assert server.complete(secret, max_tokens="many").status_code == 400
    eventually(lambda: server.log().count("POST /v1/completions") >= 2)
    assert secret not in server.log()


def test_a_body_of_100_megabytes_is_refused(server: RunningServer) -> None:
    before = psutil.Process(server.pid).memory_info().rss
    body = b'{"model": "toy", "prompt": "' + b"x" * (100 << 20) + b'"}'
    found = httpx.post(f"{server.api_url}/completions", content=body, timeout=PATIENCE_S)
    assert found.status_code == 413
    assert found.json()["error"]["code"] == "body_too_large"
    assert psutil.Process(server.pid).memory_info().rss < before + (30 << 20)
    assert server.complete().status_code == 200


def test_a_chunked_body_is_counted_as_it_comes(server: RunningServer) -> None:
    found = httpx.post(f"{server.api_url}/completions", content=(b"x" * 65536 for _ in range(64)), timeout=PATIENCE_S)
    assert found.status_code == 413
    chunks = (part.encode() for part in ('{"model": "toy", ', '"prompt": "hello", ', '"max_tokens": 3}'))
    headers = {"Content-Type": "application/json"}
    good = httpx.post(f"{server.api_url}/completions", content=chunks, headers=headers, timeout=PATIENCE_S)
    assert good.status_code == 200


def test_a_slow_head_is_refused(impatient: RunningServer) -> None:
    with connect(impatient) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n")
        assert read_all(connection).startswith(b"HTTP/1.1 408 ")
    with connect(impatient) as silent:
        assert read_all(silent).startswith(b"HTTP/1.1 408 ")


def test_a_slow_body_is_refused(impatient: RunningServer) -> None:
    with connect(impatient) as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        assert read_all(connection).startswith(b"HTTP/1.1 408 ")


def test_an_endless_head_is_refused(server: RunningServer) -> None:
    with connect(server) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nX-Long: " + b"a" * (65 << 10))
        assert read_all(connection).startswith(b"HTTP/1.1 431 ")


def test_what_is_not_http_is_refused(server: RunningServer) -> None:
    with connect(server) as connection:
        connection.sendall(b"\x16\x03\x01 hello\r\n\r\n")
        answer = read_all(connection)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert json.loads(answer.split(b"\r\n\r\n", 1)[1])["error"]["code"] == "bad_http"


def test_one_connection_too_many_is_refused() -> None:
    with running_server(max_connections=3) as server:
        held = [connect(server) for _ in range(3)]
        try:
            for connection in held:
                connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
                assert connection.recv(4096).startswith(b"HTTP/1.1 200 ")
            with connect(server) as another:
                answer = read_all(another)
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert b"retry-after: 1" in answer.lower()
        finally:
            for connection in held:
                connection.close()
        eventually(lambda: httpx.get(f"{server.base_url}/health").status_code == 200)


def test_pages_of_other_origins_are_let_in_by_name(server: RunningServer) -> None:
    for origin, allowed in (("https://good.example", "https://good.example"), ("https://bad.example", None)):
        found = httpx.get(f"{server.api_url}/models", headers={"Origin": origin})
        assert found.headers.get("access-control-allow-origin") == allowed


# --- the end


def test_sigterm_lets_running_requests_end() -> None:
    with running_server({"step_ms": 5.0}) as server, streaming(server, **LONG) as response:
        assert response.status_code == 200
        lines = response.iter_lines()
        next(lines)
        server.process.send_signal(signal.SIGTERM)
        eventually(lambda: server.ready()["reason"] == "the server is stopping")
        assert server.complete().status_code == 503
        assert httpx.get(f"{server.base_url}/health").status_code == 200
        rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert server.process.wait(PATIENCE_S) == 0


def test_what_does_not_end_in_time_is_cut_off_with_an_error() -> None:
    with running_server(drain_timeout_s=0.3) as server:
        server.control("slow 0.05")
        with streaming(server, **LONG) as response:
            lines = response.iter_lines()
            next(lines)
            server.process.send_signal(signal.SIGTERM)
            rest = [line for line in lines if line]
        assert "error" in json.loads(rest[-1].removeprefix("data: "))
        assert "stopping" in rest[-1]
        assert server.process.wait(PATIENCE_S) == 0


def test_a_second_signal_does_not_wait() -> None:
    with running_server(drain_timeout_s=600.0) as server:
        server.control("slow 0.05")
        with streaming(server, **LONG) as response:
            lines = response.iter_lines()  # held: it closes the stream when it goes
            next(lines)
            server.control("hang")
            child = psutil.Process(server.child_pid)
            server.process.send_signal(signal.SIGINT)
            eventually(lambda: server.ready()["reason"] == "the server is stopping")
            server.process.send_signal(signal.SIGINT)
            assert server.process.wait(PATIENCE_S) == 0
            child.wait(PATIENCE_S)


def test_kill_9_of_the_server_leaves_no_engine() -> None:
    with running_server() as server:
        child = psutil.Process(server.child_pid)
        os.kill(server.pid, signal.SIGKILL)
        child.wait(PATIENCE_S)


def test_the_log_of_a_whole_life_is_clean(tmp_path: Path) -> None:
    with running_server(usage_log=str(tmp_path / "usage.jsonl")) as server:
        threads = [threading.Thread(target=server.complete) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert server.stop() == 0
        words = server.log()
    assert len((tmp_path / "usage.jsonl").read_text().splitlines()) == 8
    for bad in ("Traceback", "ERROR", "Exception", "WARNING"):
        assert bad not in words, words
