"""The process behind a `ChildClient`: started, listened to, ended and reaped, with everything that belongs to it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from paceline.engine.wire import CALLS_SUFFIX, OUTPUTS_SUFFIX
from paceline.errors import EngineError

if TYPE_CHECKING:
    import zmq

_MAX_IPC_PATH = 90  # bytes; the system's limit for a socket path is 107


class ChildProcess:
    """The process, its private folder and sockets: everything that must go when the client does.

    Raises EngineError when `argv` cannot be started.
    """

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str] | None) -> None:
        import zmq

        base = tempfile.gettempdir()
        self.folder = tempfile.mkdtemp(prefix="paceline-", dir=base if len(base) < _MAX_IPC_PATH - 20 else "/tmp")
        self.context = zmq.Context()
        self.calls: zmq.Socket[bytes] = self.context.socket(zmq.PAIR)
        self.outputs: zmq.Socket[bytes] = self.context.socket(zmq.PAIR)
        self.stderr_tail: deque[str] = deque(maxlen=40)
        address = f"ipc://{self.folder}/engine"  # mkdtemp makes the folder with mode 0700
        for socket, suffix in ((self.calls, CALLS_SUFFIX), (self.outputs, OUTPUTS_SUFFIX)):
            socket.linger = 0
            socket.sndtimeo = 5000
            socket.bind(address + suffix)
        try:
            # its own session: a Ctrl-C is ours to handle. Its stdin closes when we die, which it takes as its end
            self.process = subprocess.Popen(
                [*argv, address],
                stdin=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment,
                start_new_session=True,
                text=True,
                errors="replace",
            )
        except OSError as error:
            self.remove_files()
            raise EngineError("the engine process cannot be started", seen=f"{argv}: {error}") from error
        self._reader = threading.Thread(target=self._read_stderr, name="paceline-stderr", daemon=True)
        self._reader.start()

    def _read_stderr(self) -> None:
        """Pass the child's stderr on, and keep its end for error messages."""
        stream = self.process.stderr
        assert stream is not None
        for line in stream:
            self.stderr_tail.append(line)
            sys.stderr.write(line)

    def tell(self, data: bytes) -> bool:
        """Send a call. False when the process is gone or has not taken the message in time."""
        import zmq

        if self.process.poll() is not None:
            return False
        try:
            self.calls.send(data)
        except zmq.ZMQError:
            return False
        return True

    def last_words(self) -> str:
        self._reader.join(timeout=1.0)
        return "".join(self.stderr_tail).strip()

    def end(self, grace_s: float) -> None:
        """Close stdin, wait, then insist. The process is reaped when this returns."""
        process = self.process
        if process.stdin is not None:
            process.stdin.close()
        for insist in (process.terminate, process.kill, None):
            try:
                process.wait(timeout=grace_s)
                break
            except subprocess.TimeoutExpired:
                if insist is not None:
                    insist()
        self._reader.join(timeout=1.0)
        if process.stderr is not None:
            process.stderr.close()
        self.remove_files()

    def remove_files(self) -> None:
        self.calls.close()
        self.outputs.close()
        self.context.term()
        shutil.rmtree(self.folder, ignore_errors=True)
