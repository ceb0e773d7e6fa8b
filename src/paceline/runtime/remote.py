"""An executor in another process, which sees nothing but encoded plans.

The parent starts a child from an argv and talks to it over a socket pair whose descriptor number is the argv's last
word. Messages are one tag byte and one msgpack value; nothing is pickled. The child builds any executor and calls
`serve_executor`. Plans are answered in order.

    parent                      child
      |  <-- c ExecutorCaps       |     once, when it is ready
      |  p StepPlan -->           |     submit: the forward pass starts at once
      |  s SampleInputs | nil --> |     sample
      |  <-- r StepResult         |
      |  <-- e text               |     what went wrong; the child ends
"""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Sequence
from multiprocessing.connection import Connection

from paceline.contracts.ports import Executor, ExecutorCaps, StepShape, plan_shape
from paceline.contracts.step import SampleInputs, StepPlan, StepResult, decode, encode
from paceline.errors import EngineDeadError, EngineError

_CLOSE_S = 10.0


class RemoteExecutor:
    """contracts.ports.Executor whose work is done by a child process.

    `argv` is completed with the number of the descriptor to serve on. Raises EngineDeadError when the child is not
    ready within `start_timeout_s` or is gone, EngineError with its words when it failed.
    """

    def __init__(self, argv: Sequence[str], *, start_timeout_s: float = 120.0) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            number = theirs.fileno()
            self._process = subprocess.Popen([*argv, str(number)], pass_fds=(number,))
        self._pipe = Connection(ours.detach())
        try:
            if not self._pipe.poll(start_timeout_s):
                raise EngineDeadError(
                    "the executor process did not become ready",
                    seen=f"nothing within {start_timeout_s:g} s",
                    fix="raise start_timeout_s, or run its command by hand to see what it waits for",
                )
            self.caps = decode(self._receive(b"c"), ExecutorCaps)
        except EngineError:
            self._process.kill()
            self.close()
            raise

    def submit(self, plan: StepPlan) -> int:
        self._send(b"p", encode(plan))
        return plan.step

    def sample(self, handle: int, inputs: SampleInputs | None) -> None:
        self._send(b"s", encode(inputs))

    def poll(self, handle: int, *, block: bool = True) -> StepResult | None:
        if not block and not self._pipe.poll(0):
            return None
        result = decode(self._receive(b"r"), StepResult)
        assert result.step == handle, "results are polled in the order of submission"
        return result

    def shape(self, plan: StepPlan) -> StepShape:
        return plan_shape(plan)

    def close(self) -> None:
        """End the child: it stops at the end of its step when its socket closes."""
        self._pipe.close()
        try:
            self._process.wait(_CLOSE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _send(self, tag: bytes, data: bytes) -> None:
        try:
            self._pipe.send_bytes(tag + data)
        except OSError:
            # the child may have left word of what went wrong before it went
            self._receive(b"r")
            raise self._dead() from None

    def _receive(self, tag: bytes) -> bytes:
        try:
            message = self._pipe.recv_bytes()
        except (EOFError, OSError):
            raise self._dead() from None
        if message[:1] == b"e":
            raise EngineError(f"the executor process failed: {decode(message[1:], str)}", fix="see its log; restart")
        assert message[:1] == tag, "messages come in protocol order"
        return message[1:]

    def _dead(self) -> EngineDeadError:
        try:
            code: int | None = self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            code = None
        return EngineDeadError("the executor process is gone", seen=f"exit code {code}", fix="restart the engine")


def serve_executor(executor: Executor, descriptor: int) -> None:
    """Answer plans on `descriptor` until the other side closes it. A failure is told to the parent, then raised."""
    with Connection(descriptor) as pipe:
        pipe.send_bytes(b"c" + encode(executor.caps))
        try:
            while True:
                handle = executor.submit(decode(_expect(pipe, b"p"), StepPlan))
                inputs: SampleInputs | None = decode(_expect(pipe, b"s"), SampleInputs | None)  # type: ignore[arg-type]
                executor.sample(handle, inputs)
                pipe.send_bytes(b"r" + encode(executor.poll(handle)))
        except (EOFError, BrokenPipeError, ConnectionResetError):
            pass
        except Exception as error:
            pipe.send_bytes(b"e" + encode(f"{type(error).__name__}: {error}"))
            raise
        finally:
            executor.close()


def _expect(pipe: Connection, tag: bytes) -> bytes:
    message = pipe.recv_bytes()
    assert message[:1] == tag, "messages come in protocol order"
    return message[1:]
