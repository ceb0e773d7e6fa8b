"""Real server processes for tests.

    with running_server() as server:                 # the toy engine; waits until it is ready
        httpx.get(server.base_url + "/health")
        server.control("slow 0.05")                  # see server_engines
    with running_server({"kind": "simulated"}, max_connections=5000) as server: ...

`running_server(ready=False)` gives it as soon as its port is open. Leaving the block ends it; nothing is left behind.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

ROOT = Path(__file__).resolve().parents[2]
MODEL = "toy"
PATIENCE_S = 60.0  # against hangs only


def eventually(ask: Callable[[], Any], timeout_s: float = PATIENCE_S, pause_s: float = 0.02) -> Any:
    """The first true answer."""
    end = time.monotonic() + timeout_s
    while not (answer := ask()):
        assert time.monotonic() < end, f"not within {timeout_s:g} s"
        time.sleep(pause_s)
    return answer


@dataclass
class RunningServer:
    """A server process and what a test asks of it. `base_url` has no /v1."""

    process: subprocess.Popen[bytes]
    base_url: str
    log_path: Path
    control_path: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def api_url(self) -> str:
        """For `OpenAI(base_url=...)`."""
        return f"{self.base_url}/v1"

    @property
    def child_pid(self) -> int:
        """Of the engine's process. Raises LookupError while there is none."""
        for child in psutil.Process(self.pid).children():
            if child.status() != psutil.STATUS_ZOMBIE:
                return child.pid
        raise LookupError("the server has no engine process now")

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def control(self, order: str) -> None:
        """What the engine does at its next steps; "" is nothing special."""
        temporary = self.control_path.with_suffix(".new")
        temporary.write_text(order)
        temporary.replace(self.control_path)

    def ready(self) -> dict[str, Any]:
        """The answer of /ready."""
        found: dict[str, Any] = httpx.get(f"{self.base_url}/ready", timeout=PATIENCE_S).json()
        return found

    def is_ready(self) -> bool:
        """False, too, when nobody answers."""
        try:
            return bool(self.ready()["ready"])
        except httpx.TransportError:
            return False

    def wait_ready(self, timeout_s: float = PATIENCE_S) -> None:
        def look() -> bool:
            assert self.process.poll() is None, f"the server has ended:\n{self.log()}"
            return bool(self.ready()["ready"])

        eventually(look, timeout_s)

    def complete(self, prompt: Any = "hello", **fields: Any) -> httpx.Response:
        """One text completion, not streamed."""
        body = {"model": MODEL, "prompt": prompt, "max_tokens": 8, **fields}
        return httpx.post(f"{self.api_url}/completions", json=body, timeout=PATIENCE_S)

    def stop(self, number: int = signal.SIGTERM, timeout_s: float = PATIENCE_S) -> int:
        """Signal it and wait; its exit status."""
        self.process.send_signal(number)
        return self.process.wait(timeout_s)


@contextmanager
def running_server(
    engine: Mapping[str, Any] | None = None, *, ready: bool = True, order: str = "", **server: Any
) -> Iterator[RunningServer]:
    """A server over a test engine. `engine`: fields of `EngineOptions`; `order`: what the control file says from the
    start; keywords: options of the server."""
    with tempfile.TemporaryDirectory(prefix="paceline-test-") as folder:
        control = Path(folder) / "control"
        control.write_text(order)
        options = {"control": str(control), **(engine or {})}
        settings = {"port": 0, **server}
        argv = [sys.executable, "-m", "tests.fakes.server_main", json.dumps(options), json.dumps(settings)]
        with started(argv, Path(folder) / "log", control) as running:
            if ready:
                running.wait_ready()
            yield running


@contextmanager
def started(argv: Sequence[str], log_path: Path, control_path: Path | None = None) -> Iterator[RunningServer]:
    """Any program that logs `listening on URL`, as soon as it does; killed in the end if it still runs."""
    with log_path.open("wb") as log:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=ROOT, env=_environment())
    running = RunningServer(process, "", log_path, control_path or log_path.with_suffix(".control"))
    try:

        def url() -> str | None:
            found = re.search(r"listening on (\S+)", running.log())
            assert found or process.poll() is None, f"the server has ended:\n{running.log()}"
            return found[1] if found else None

        running.base_url = eventually(url)
        yield running
    finally:
        _end(process)


def _environment() -> dict[str, str]:
    # the code beside these tests, whatever is installed
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT))),
        "PYTHONUNBUFFERED": "1",
        "COLUMNS": "200",
    }


def _end(process: subprocess.Popen[bytes]) -> None:
    """Twice asked, then killed with its engine."""
    children = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
    for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            process.send_signal(number)
            try:
                process.wait(5.0)
            except subprocess.TimeoutExpired:
                continue
    _, alive = psutil.wait_procs(children, timeout=10.0)
    for child in alive:
        child.kill()
