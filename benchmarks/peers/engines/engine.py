"""One engine in a process of its own: started when first used, stopped by a signal while others have their turn.

A stopped process takes no core and keeps its memory, so an engine that is slow to start is started once, and A B A B
costs nothing. Linux.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.peers.engines.columns import START_S, Column
from benchmarks.peers.engines.memory import Peak
from benchmarks.peers.engines.workloads import Arrival, Call

ANSWER_S = 900.0
_WORKERS = Path(__file__).with_name("workers")


class EngineFailedError(Exception):
    """It ended, or did not answer in time."""


class Engine:
    def __init__(self, column: Column, logs: Path) -> None:
        self.column = column
        self.version = ""
        self.about: dict[str, str] = {}
        self._log = logs / f"{column.slug}.log"
        self._child: subprocess.Popen[str] | None = None
        self._guard: subprocess.Popen[bytes]

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """It runs within the block, and stands still outside."""
        if self._child is None:
            self._start()
        else:
            self._signal(signal.SIGCONT)
        try:
            yield
        finally:
            if self._child is not None:
                self._signal(signal.SIGSTOP)

    def generate(self, call: Call) -> float:
        """Seconds. Raises EngineFailedError where an answer has not the length that was asked for."""
        answer = self._ask({"prompts": call.prompts, "num_out": call.num_out}, ANSWER_S)
        if answer["lengths"] != [call.num_out]:
            raise EngineFailedError(f"answers of {answer['lengths']} tokens, {call.num_out} were asked for")
        return float(answer["seconds"])

    def outputs(self, call: Call) -> list[list[int]]:
        found: list[list[int]] = self._ask({"prompts": call.prompts, "num_out": call.num_out, "keep": True}, ANSWER_S)[
            "outputs"
        ]
        return found

    def online(
        self, schedule: list[Arrival], limit_s: float, *, late_s: float, most_late: int
    ) -> list[dict[str, Any] | None]:
        """Where an engine has no server. It is stopped, and tells of fewer requests, once more than `most_late` waited
        longer than `late_s` for their first token."""
        order = {"limit_s": limit_s, "late_s": late_s, "most_late": most_late}
        answer = self._ask(order | {"schedule": [vars(arrival) for arrival in schedule]}, limit_s + ANSWER_S)
        times: list[dict[str, Any] | None] = answer["times"]
        return times

    @contextlib.contextmanager
    def memory(self) -> Iterator[Peak]:
        """Of this engine, without the loop that feeds it where that is another program."""
        assert self._child is not None, "within its turn"
        with Peak(self._child.pid) as peak:
            yield peak

    def close(self) -> None:
        """Its end, and that of whatever it started."""
        child, self._child = self._child, None
        if child is None:
            return
        assert child.stdin is not None
        assert child.stdout is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGCONT)
        with contextlib.suppress(BrokenPipeError):
            child.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(30)
        self._guard.kill()
        self._guard.communicate()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        child.stdout.close()

    def _start(self) -> None:
        worker = str(_WORKERS / self.column.worker)
        command = [str(self.column.python), worker, json.dumps(self.column.options)]
        with self._log.open("w") as log:
            self._child = subprocess.Popen(
                command,
                env=dict(self.column.environment),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        # When this program is killed, the input of the guard ends: it ends the engine, standing still or not, and what
        # that started.
        self._guard = subprocess.Popen(
            ["sh", "-c", 'read -r _; kill -9 "-$0"', str(self._child.pid)],
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        answer = self._read(START_S)
        self.version, self.about = answer["version"], answer["about"]

    def _ask(self, order: dict[str, Any], limit_s: float) -> dict[str, Any]:
        assert self._child is not None, "within its turn"
        assert self._child.stdin is not None
        try:
            self._child.stdin.write(json.dumps(order) + "\n")
            self._child.stdin.flush()
        except BrokenPipeError:
            raise self._trouble("ended") from None
        return self._read(limit_s)

    def _read(self, limit_s: float) -> dict[str, Any]:
        child = self._child
        assert child is not None
        assert child.stdout is not None
        timer = threading.Timer(limit_s, lambda: os.killpg(child.pid, signal.SIGKILL))
        timer.start()
        try:
            line = child.stdout.readline()
        finally:
            timer.cancel()
        if not line:
            raise self._trouble(f"ended, or gave no answer for {limit_s:g} s")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _trouble(self, what: str) -> EngineFailedError:
        lines = [line for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        last = lines[-1] if lines else "no word"
        self.close()
        return EngineFailedError(f"{self.column.name} {what}: {last} (see {self._log})")

    def _signal(self, number: int) -> None:
        assert self._child is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, number)
