"""Tries grammars in a small process of its own, and ends it when one takes too long.

Limits of the library bound most grammars, not all: an intersection of regular expressions was seen to compile for 10 s
and to take 270 MB under the strictest of them. Inside the engine nothing could stop that. The process gives itself a
limit of CPU time and of memory for each grammar; when it dies of them, or of a crash in the library, the grammar is
refused and the next one gets a fresh process.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import IO, TYPE_CHECKING

import msgspec

from paceline.errors import RequestError
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
        """Return if it compiles and its masks are quick. Raises RequestError (param `grammar`)."""
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
        """None: the process died of it."""
        try:
            process = self._running()
            assert process.stdin is not None
            assert process.stdout is not None
            send(process.stdin, grammar)
            data = self._receive(process)
        except OSError:
            data = None
        if data is None:
            self._reap()
            return None
        return msgspec.msgpack.decode(data, type=Verdict)

    def _running(self) -> subprocess.Popen[bytes]:
        if self._closed:
            raise OSError("the checker is closed")
        if self._process is None:
            command = [sys.executable, "-m", "paceline.text.grammar.checker_main", str(self._cpu_limit_s)]
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            assert self._process.stdin is not None
            send(self._process.stdin, msgspec.msgpack.encode(self._vocabulary()))
            if self._receive(self._process) is None:
                self._reap()
                raise OSError("the checker does not start")
        return self._process

    def _receive(self, process: subprocess.Popen[bytes]) -> bytes | None:
        """A reply; None when the process ends, or is ended here because it is too late."""
        assert process.stdout is not None
        timer = threading.Timer(WAIT_LIMIT_S, process.kill)
        timer.daemon = True
        timer.start()
        try:
            return receive(process.stdout)
        finally:
            timer.cancel()

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
