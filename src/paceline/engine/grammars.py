"""Grammars at the engine: compiled once in a thread of their own, kept by their bytes, and one `RowGrammars` for masks.

Compiling may take a while, so it never happens in the thread that steps. A caller either asks now and then (`prepare`)
or waits (`compiled`). What was compiled, and what was found to be wrong, is remembered for the next request with the
same bytes; every request works on a clone.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress
from typing import TypeAlias

from paceline.contracts.ports import Grammar, GrammarFactory
from paceline.engine.row_grammars import RowGrammars
from paceline.errors import EngineError, RequestError

READY_WITHIN_S = 0.003  # most grammars are compiled in that time: worth a wait rather than another question
NICENESS = 10  # of the thread that compiles: steps come first
Verdict: TypeAlias = Grammar | RequestError


class GrammarCache:
    """Compiled grammars, the ones of late: at most `max_count`, made of at most `max_bytes` of bytes. One takes a
    megabyte as a rule, and some tens at its limits. Without a factory every grammar is refused."""

    def __init__(self, factory: GrammarFactory | None, *, max_count: int = 64, max_bytes: int = 4 << 20) -> None:
        self._factory = factory
        self._max_count = max_count
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._known: dict[bytes, tuple[Future[Verdict], int]] = {}  # digest -> (verdict, bytes of it), oldest first
        self._lock = threading.Lock()
        self._compiler = ThreadPoolExecutor(1, thread_name_prefix="paceline-grammar", initializer=_step_back)
        self._closed = False

    def prepare(self, grammar: bytes) -> bool:
        """True: it is compiled. False: not yet. Raises RequestError when it is wrong. Only who asks first waits a
        little: many may ask for the same one, and other calls stand behind theirs."""
        future, is_new = self._future(grammar)
        if is_new:
            with suppress(TimeoutError):
                future.exception(timeout=READY_WITHIN_S)
        if not future.done():
            return False
        _grammar_of(future)
        return True

    def compiled(self, grammar: bytes) -> Grammar:
        """A clone to work on; waits until there is one. Raises RequestError when the grammar is wrong."""
        return _grammar_of(self._future(grammar)[0]).clone()

    def anew(self, grammar: bytes) -> Grammar:
        """Compiled once more, by the caller, and shared with nobody: the one that is known has met a limit that its
        clones meet together. It is forgotten, so the next request has a new one too. Raises RequestError."""
        digest = _digest(grammar)
        with self._lock:
            entry = self._known.get(digest)
            if entry is not None and entry[0].done():
                del self._known[digest]
                self._num_bytes -= entry[1]
        found = self._compile(grammar)
        if isinstance(found, RequestError):
            raise found
        return found

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._compiler.shutdown(wait=False, cancel_futures=True)

    def __len__(self) -> int:
        return len(self._known)

    def _future(self, grammar: bytes) -> tuple[Future[Verdict], bool]:
        """What is known or being found out, and whether that began just now."""
        if self._factory is None:
            raise RequestError("this engine has no grammars", param="grammar", fix="leave it out")
        digest = _digest(grammar)
        with self._lock:
            if self._closed:
                raise EngineError("the engine is closed")
            entry = self._known.pop(digest, None)
            is_new = entry is None
            if entry is None:
                entry = self._compiler.submit(self._compile, grammar), len(grammar)
                self._num_bytes += len(grammar)
            self._known[digest] = entry
            self._trim()
            return entry[0], is_new

    def _compile(self, grammar: bytes) -> Verdict:
        assert self._factory is not None
        try:
            return self._factory.compile(grammar)
        except RequestError as error:
            return error
        except BaseException as error:  # a library's, panics among them: it costs this grammar and nothing else
            return RequestError("the grammar cannot be compiled", param="grammar", seen=type(error).__name__)

    def _trim(self) -> None:
        """Forget the oldest, but not what is being compiled: others wait for it."""
        for digest, (future, size) in list(self._known.items())[:-1]:
            if len(self._known) <= self._max_count and self._num_bytes <= self._max_bytes:
                return
            if future.done():
                del self._known[digest]
                self._num_bytes -= size


class Grammars:
    """What an engine with structured output has: the cache, and the grammars of the rows that run."""

    def __init__(self, factory: GrammarFactory | None, *, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        self.cache = GrammarCache(factory)
        self.rows = RowGrammars(vocab_size=vocab_size, eos_token_ids=eos_token_ids)

    def close(self) -> None:
        self.cache.close()
        self.rows.close()


def _digest(grammar: bytes) -> bytes:
    return hashlib.blake2b(grammar, digest_size=16).digest()


def _grammar_of(future: Future[Verdict]) -> Grammar:
    """Waits. Raises a RequestError of the caller's own: one that is raised again and again grows."""
    try:
        found = future.result()
    except CancelledError:
        raise EngineError("the engine is closed") from None
    if isinstance(found, RequestError):
        raise RequestError(found.message, param=found.param, seen=found.seen, expected=found.expected, fix=found.fix)
    return found


def _step_back() -> None:
    with suppress(OSError, AttributeError):  # Linux takes a thread's id here; elsewhere nothing is lost
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
