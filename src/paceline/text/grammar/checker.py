"""Tries grammars in a small process of its own, and ends it when one takes too long.

Limits of the library bound most grammars, not all: an intersection of regular expressions was seen to compile for 10 s
and to take 270 MB under the strictest of them. Inside the engine nothing could stop that. The process gives itself a
limit of CPU time and of memory for each grammar; when it dies of them, or of a crash in the library, the grammar is
refused and the next one gets a fresh process. Only a process that has judged nothing before is believed in this: what a
grammar is refused for must be its own.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING

import msgspec

from paceline.errors import EngineError, RequestError
from paceline.text.grammar.spec import wrong
from paceline.text.grammar.vocabulary import Vocabulary, vocabulary_of

if TYPE_CHECKING:
    from paceline.text.tokenizer import TextTokenizer

CPU_LIMIT_S = 2.0  # for one grammar: compiling it, and a walk through it
WAIT_LIMIT_S = 20.0  # of the clock, for a machine that is busy
_LENGTH_BYTES = 4


class Verdict(msgspec.Struct, frozen=True):
    """What the process says of a grammar; an empty message: it is fine."""

    message: str = ""
    seen: str | None = None
    expected: str = ""
    fix: str = ""


class GrammarChecker:
    """Starts its process at the first grammar (some tenths of a second). One grammar at a time; threads wait."""

    def __init__(self, vocabulary: Callable[[], Vocabulary], *, cpu_limit_s: float = CPU_LIMIT_S) -> None:
        self._vocabulary = vocabulary
        self._first_message = b""  # the vocabulary, encoded when first needed
        self._cpu_limit_s = cpu_limit_s
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._closed = False

    @classmethod
    def of(cls, tokenizer: TextTokenizer, *, vocab_size: int, eos_token_ids: list[int]) -> GrammarChecker:
        """For a model with `vocab_size` ids."""
        return cls(lambda: vocabulary_of(tokenizer, vocab_size, eos_token_ids))

    @property
    def pid(self) -> int | None:
        """Of its process, where one runs."""
        return None if self._process is None else self._process.pid

    def check(self, grammar: bytes) -> None:
        """Return if it compiles and its masks are quick. Raises RequestError (param `grammar`) if not, EngineError when
        that cannot be found out."""
        with self._lock:
            verdict = self._ask(grammar)
        if verdict is None:
            raise wrong(
                "the grammar takes too much time or memory to compile",
                f"more than {self._cpu_limit_s:g} s of computing, or a crash",
                "a smaller grammar",
                fix="use fewer alternatives, smaller counts, and no intersections of regular expressions",
            )
        if verdict.message:
            raise RequestError(
                verdict.message, param="grammar", seen=verdict.seen, expected=verdict.expected, fix=verdict.fix
            )

    def close(self) -> None:
        """End the process; a check under way then fails. Idempotent."""
        self._closed = True
        process = self._process
        if process is not None:
            process.kill()  # a check under way sees its pipe closed, and lets go of the lock
        with self._lock:
            self._reap()

    # --- the process

    def _ask(self, grammar: bytes) -> Verdict | None:
        """None: a fresh process died of it."""
        for _ in range(2):
            process, is_fresh = self._running()
            data = self._exchange(process, grammar)
            if data is not None:
                return msgspec.msgpack.decode(data, type=Verdict)
            self._reap()
            if self._closed:
                raise EngineError("the checker of grammars is closed")
            if process.returncode == -signal.SIGKILL:  # none of its own limits: the clock's, or the system's
                raise EngineError(
                    "the grammar could not be tried in time", expected=f"{WAIT_LIMIT_S:g} s at most", fix="try again"
                )
            if is_fresh:
                break
        return None

    def _running(self) -> tuple[subprocess.Popen[bytes], bool]:
        """The process, and whether it was started just now."""
        if self._process is not None and self._process.poll() is not None:
            self._reap()
        if self._process is not None:
            return self._process, False
        self._first_message = self._first_message or msgspec.msgpack.encode(self._vocabulary())
        command = [sys.executable, "-m", "paceline.text.grammar.checker_main", str(self._cpu_limit_s)]
        failed = EngineError("the process that tries grammars does not start", fix="see that memory is left; try again")
        try:
            process = self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            raise failed from error
        # `close` sees the process that stands there, or this sees that it was called
        if self._closed or self._exchange(process, self._first_message) is None:
            self._reap()
            raise failed
        return process, True

    def _exchange(self, process: subprocess.Popen[bytes], data: bytes) -> bytes | None:
        """Send, and wait for the reply; None when the process ends, or is ended here because it is too late."""
        assert process.stdin is not None
        assert process.stdout is not None
        with _ended_late(process):
            try:
                send(process.stdin, data)
                return receive(process.stdout)
            except OSError:
                return None

    def _reap(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()


@contextmanager
def _ended_late(process: subprocess.Popen[bytes]) -> Iterator[None]:
    timer = threading.Timer(WAIT_LIMIT_S, process.kill)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def send(pipe: IO[bytes], data: bytes) -> None:
    pipe.write(len(data).to_bytes(_LENGTH_BYTES, "little") + data)
    pipe.flush()


def receive(pipe: IO[bytes]) -> bytes | None:
    """The next message; None at the end."""
    head = pipe.read(_LENGTH_BYTES)
    if len(head) < _LENGTH_BYTES:
        return None
    size = int.from_bytes(head, "little")
    data = pipe.read(size)
    return data if len(data) == size else None


def cpu_s() -> float:
    """Computing of this process so far, all its threads."""
    return time.process_time()
