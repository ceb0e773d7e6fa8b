"""The server of the demo: `paceline serve` in a process of its own, its log in a file."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.config import EngineConfig, option_table
from paceline.errors import EngineError
from paceline.lab.experiment.process import paceline_argv

_STOP_S = 60.0
_PAUSE_S = 0.1


@dataclass
class DemoServer:
    process: subprocess.Popen[bytes]
    log: Path
    url: str = ""

    def get(self, path: str) -> Any:
        """The JSON of a GET. Raises EngineError for anything but 200."""
        import httpx

        try:
            answer = httpx.get(self.url + path, timeout=30.0)
        except httpx.HTTPError as error:
            raise self.trouble(f"{path} cannot be asked: {error}") from None
        if answer.status_code != 200:
            raise self.trouble(f"{path} answered {answer.status_code}")
        return answer.json()

    def stop(self) -> int:
        """SIGTERM, and the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(_STOP_S)

    def trouble(self, what: str) -> EngineError:
        tail = self.log.read_text(errors="replace").splitlines()[-5:]
        return EngineError(f"the demo's server: {what}", seen=" / ".join(tail), fix=f"see {self.log}")


@contextmanager
def demo_server(options: Mapping[str, Any], log: Path) -> Iterator[DemoServer]:
    """A ready server on a free port of this machine. It is ended in any case, SIGTERM to this process included."""
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    argv = paceline_argv(options, ("--no-access-log",))
    with log.open("wb") as sink:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink)
    server = DemoServer(process, log)
    try:
        _wait_ready(server)
        yield server
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def shared_options(config: EngineConfig) -> dict[str, Any]:
    """Option -> value, those that differ from the defaults."""
    found = {}
    for option in option_table().values():
        holder: Any = getattr(config, option.section) if option.section else config
        value = getattr(holder, option.name)
        if value != option.default:
            found[option.name] = value
    return found


def _wait_ready(server: DemoServer) -> None:
    import httpx

    reason = ""
    while True:
        if server.process.poll() is not None:
            raise server.trouble(f"it ended while starting, with status {server.process.returncode}")
        if not server.url:
            found = re.search(r"listening on (\S+)", server.log.read_text(errors="replace"))
            server.url = found[1] if found else ""
        else:
            try:
                answer = httpx.get(f"{server.url}/ready", timeout=10.0).json()
            except httpx.HTTPError:
                answer = {"ready": False, "reason": reason}
            if answer["ready"]:
                return
            if answer["reason"] != reason:
                reason = answer["reason"]
                print(f"  {reason}", flush=True)
        time.sleep(_PAUSE_S)
