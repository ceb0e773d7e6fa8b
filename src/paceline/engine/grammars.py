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
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

from paceline.contracts.ports import Grammar, GrammarFactory
from paceline.engine.row_grammars import RowGrammars
from paceline.errors import RequestError

READY_WITHIN_S = 0.003  # most grammars are compiled in that time: worth a wait rather than another question
NICENESS = 10  # of the thread that compiles: steps come first


class GrammarCache:
    """Compiled grammars, the ones of late: at most `max_count`, made of at most `max_bytes` of bytes. Without a factory
    every grammar is refused."""

    def __init__(self, factory: GrammarFactory | None, *, max_count: int = 256, max_bytes: int = 4 << 20) -> None:
        self._factory = factory
        self._max_count = max_count
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._known: dict[bytes, tuple[Future[Grammar], int]] = {}  # digest -> (grammar, its bytes), oldest first
        self._lock = threading.Lock()
        self._compiler = ThreadPoolExecutor(1, thread_name_prefix="paceline-grammar", initializer=_step_back)

    def prepare(self, grammar: bytes) -> bool:
        """True: it is compiled. False: not yet. Raises RequestError when it is wrong."""
        future = self._future(grammar)
        try:
            future.result(timeout=READY_WITHIN_S)
        except TimeoutError:
            return False
        return True

    def compiled(self, grammar: bytes) -> Grammar:
        """A clone to work on; waits until there is one. Raises RequestError when the grammar is wrong."""
        return self._future(grammar).result().clone()

    def close(self) -> None:
        self._compiler.shutdown(wait=False, cancel_futures=True)

    def __len__(self) -> int:
        return len(self._known)

    def _future(self, grammar: bytes) -> Future[Grammar]:
        if self._factory is None:
            raise RequestError("this engine has no grammars", param="grammar", fix="leave it out")
        digest = hashlib.blake2b(grammar, digest_size=16).digest()
        with self._lock:
            entry = self._known.pop(digest, None)
            if entry is None:
                entry = self._compiler.submit(self._factory.compile, grammar), len(grammar)
                self._num_bytes += len(grammar)
            self._known[digest] = entry
            self._trim()
            return entry[0]

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


def _step_back() -> None:
    with suppress(OSError, AttributeError):  # Linux takes a thread's id here; elsewhere nothing is lost
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
