"""The mock in a process of its own: it shares no interpreter with the client it times."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self
from urllib.request import Request, urlopen

import msgspec

from paceline.errors import LabError
from paceline.lab.mock.log import LogEntry, wait_for_ends
from paceline.lab.mock.script import Script
from paceline.lab.mock.server import START_S, MockServer, _checked

_decode_log = msgspec.json.Decoder(dict[str, list[LogEntry]]).decode


class MockProcess:
    """As `MockServer`, in a child process, which ends with its parent: it watches its standard input."""

    def __init__(
        self, script: Script | Mapping[str, Any] | None = None, *, host: str = "127.0.0.1", port: int = 0
    ) -> None:
        self._script = _checked(script)
        self._where = ("--host", host, "--port", str(port))
        self._child: subprocess.Popen[bytes] | None = None
        self.url = ""

    @property
    def pid(self) -> int:
        """Of the child."""
        return self._running.pid

    def start(self) -> str:
        """Serve. The base URL, without /v1. LabError if the child does not come up."""
        command = [sys.executable, "-m", "paceline.lab.mock", "--script-from-stdin", *self._where]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self._child = child
        assert child.stdin is not None
        assert child.stdout is not None
        timer = threading.Timer(START_S, child.kill)
        timer.start()
        try:
            child.stdin.write(msgspec.json.encode(self._script) + b"\n")
            child.stdin.flush()
            line = child.stdout.readline().decode().strip()
        except BrokenPipeError:
            line = ""
        finally:
            timer.cancel()
        if not line.startswith("http"):
            assert child.stderr is not None
            child.kill()
            words = child.stderr.read().decode(errors="replace").strip().splitlines()
            self.stop()
            raise LabError("the mock process did not start", seen=words[-1] if words else f"exit {child.returncode}")
        self.url = line
        return line

    def stop(self) -> None:
        """End the child. Idempotent."""
        child, self._child = self._child, None
        if child is None:
            return
        with contextlib.suppress(BrokenPipeError):
            child.communicate(timeout=START_S)  # closes its standard input
        if child.poll() is None:
            child.kill()
            child.wait()

    def log(self) -> list[LogEntry]:
        """What it saw so far, in order of arrival."""
        return _decode_log(self._call("GET", "/mock/log"))["requests"]

    def wait_for(self, num_requests: int, *, timeout_s: float = 10.0) -> list[LogEntry]:
        """The log, once so many requests have ended. LabError if they do not."""
        return wait_for_ends(self.log, num_requests, timeout_s=timeout_s, pause_s=0.01)

    def use(self, script: Script | Mapping[str, Any]) -> None:
        """Another script from now on; counts, caches and the log begin anew."""
        self._call("POST", "/mock/script", msgspec.json.encode(_checked(script)))

    def _call(self, method: str, path: str, body: bytes | None = None) -> bytes:
        self._running.poll()
        with urlopen(Request(self.url + path, body, method=method), timeout=START_S) as answer:
            data: bytes = answer.read()
        return data

    @property
    def _running(self) -> subprocess.Popen[bytes]:
        if self._child is None:
            raise LabError("the mock is not running", fix="call start()")
        return self._child

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


__all__ = ["MockProcess", "MockServer"]
