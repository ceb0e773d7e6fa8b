"""An executor in another process that sees nothing but encoded plans: pipes carry length-prefixed msgpack.

Run as a module it is that other process: `python -m tests.fakes.remote_executor`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import BinaryIO

import msgspec
from tests.fakes.scripted_executor import ScriptedExecutor
from tests.fakes.toy_model import ToyModel

from paceline.contracts.ports import ExecutorCaps, StepShape, plan_shape
from paceline.contracts.step import SampleInputs, StepPlan, StepResult, decode, encode


class Hello(msgspec.Struct):
    caps: ExecutorCaps
    vocab_size: int
    windows: tuple[int | None, ...]


def send(stream: BinaryIO, data: bytes) -> None:
    stream.write(len(data).to_bytes(4, "little") + data)
    stream.flush()


def receive(stream: BinaryIO) -> bytes:
    head = stream.read(4)
    return stream.read(int.from_bytes(head, "little")) if head else b""


class RemoteExecutor:
    """`contracts.ports.Executor`. A call is a message: one letter, one encoded value. Only polls are answered."""

    def __init__(self, model: ToyModel, caps: ExecutorCaps) -> None:
        self.caps = caps
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.fakes.remote_executor"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._out, self._in = self._process.stdin, self._process.stdout
        send(self._out, encode(Hello(caps, model.vocab_size, model.windows)))

    def submit(self, plan: StepPlan) -> int:
        send(self._out, b"p" + encode(plan))
        return plan.step

    def sample(self, handle: int, inputs: SampleInputs | None) -> None:
        send(self._out, b"s" + encode(handle))
        send(self._out, encode(inputs))

    def poll(self, handle: int, *, block: bool = True) -> StepResult | None:
        send(self._out, b"?" + encode(handle))
        result = decode(receive(self._in), StepResult)
        assert result.step == handle
        return result

    def shape(self, plan: StepPlan) -> StepShape:
        return plan_shape(plan)

    def close(self) -> None:
        self._out.close()
        self._process.wait(timeout=10)
        self._in.close()


def main() -> None:
    stdin, stdout = sys.stdin.buffer, sys.stdout.buffer
    hello = decode(receive(stdin), Hello)
    executor = ScriptedExecutor(ToyModel(hello.vocab_size, hello.windows), hello.caps)
    while data := receive(stdin):
        kind, body = data[:1], data[1:]
        if kind == b"p":
            executor.submit(decode(body, StepPlan))
        elif kind == b"s":
            inputs: SampleInputs | None = decode(receive(stdin), SampleInputs | None)  # type: ignore[arg-type]
            executor.sample(decode(body, int), inputs)
        else:
            send(stdout, encode(executor.poll(decode(body, int))))


if __name__ == "__main__":
    main()
