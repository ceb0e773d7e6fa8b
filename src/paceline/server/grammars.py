"""Grammars of clients on their way to the engine: tried in a process of their own, remembered, compiled there.

Nothing here waits in the event loop or in a thread that others need: a grammar that is slow delays other grammars that
nobody knows yet, at most by the checker's limit each, and no stream at all.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol

from paceline.errors import QueueFullError, RequestError

if TYPE_CHECKING:
    from paceline.server.api.protocol.structured import StructuredOutput
    from paceline.server.state import ServerState
    from paceline.text import TextTokenizer

MAX_WAITING = 64  # grammars that wait to be tried
MAX_KNOWN = 4096  # verdicts that are remembered
_AT_LINE = re.compile(r"at (?P<line>\d+)\(\d+\): (?:failed to compile JSON schema: )?(?P<what>.*)", re.DOTALL)
COMPILE_LIMIT_S = 30.0  # of waiting for the engine; what was tried takes far less


class Checker(Protocol):
    """Says, in a thread that may wait, whether a grammar can be used: raises RequestError if not, EngineError when it
    cannot find out."""

    def check(self, grammar: bytes) -> None: ...

    def close(self) -> None: ...


class GrammarDesk:
    """One per server. Used from the event loop alone."""

    def __init__(self, checker: Checker) -> None:
        self._checker = checker
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="paceline-grammars")
        self._verdicts: dict[bytes, RequestError | None] = {}  # by digest, oldest first
        self._trials: dict[bytes, asyncio.Future[RequestError | None]] = {}

    @classmethod
    def of(cls, tokenizer: TextTokenizer) -> GrammarDesk:
        """The checker's process starts with the first grammar."""
        from paceline.text.grammar import GrammarChecker

        return cls(
            GrammarChecker.of(tokenizer, vocab_size=tokenizer.vocab_size, eos_token_ids=list(tokenizer.eos_token_ids))
        )

    async def check(self, grammar: bytes) -> None:
        """Returns if it can be used. Raises RequestError; QueueFullError when too many wait; EngineError when that
        cannot be found out now, which is not remembered."""
        digest = hashlib.blake2b(grammar, digest_size=16).digest()
        if digest in self._verdicts:
            verdict = self._verdicts[digest] = self._verdicts.pop(digest)
        else:
            verdict = await asyncio.shield(self._trial(digest, grammar))
        if verdict is not None:
            raise _again(verdict)

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._checker.close()

    def _trial(self, digest: bytes, grammar: bytes) -> asyncio.Future[RequestError | None]:
        """Shared by all who ask for the same grammar meanwhile."""
        trial = self._trials.get(digest)
        if trial is None:
            if len(self._trials) >= MAX_WAITING:
                raise QueueFullError(
                    "too many new grammars wait to be compiled",
                    seen=f"{len(self._trials)} waiting",
                    expected=f"below {MAX_WAITING}",
                    fix="retry later",
                )
            loop = asyncio.get_running_loop()
            trial = self._trials[digest] = loop.run_in_executor(self._thread, self._judge, grammar)
            trial.add_done_callback(lambda done: self._settle(digest, done))
        return trial

    def _judge(self, grammar: bytes) -> RequestError | None:
        """In the thread."""
        try:
            self._checker.check(grammar)
        except RequestError as error:
            return error
        return None

    def _settle(self, digest: bytes, trial: asyncio.Future[RequestError | None]) -> None:
        del self._trials[digest]
        if trial.cancelled() or trial.exception() is not None:
            return
        self._verdicts[digest] = trial.result()
        while len(self._verdicts) > MAX_KNOWN:
            del self._verdicts[next(iter(self._verdicts))]


async def prepare_grammar(state: ServerState, wanted: StructuredOutput) -> None:
    """Returns when the engine can take requests with it. Raises RequestError that names the client's own field."""
    try:
        if state.grammars is not None:
            await state.grammars.check(wanted.data)
        await state.engine.prepare_grammar(wanted.data, within_s=COMPILE_LIMIT_S)
    except RequestError as error:
        raise _placed(error, wanted) from None


def _placed(error: RequestError, wanted: StructuredOutput) -> RequestError:
    """The error with the field of the client's that it is about."""
    found = _AT_LINE.match(str(error.seen)) if wanted.places else None
    if found is None:
        return _again(error, wanted.param)
    line = int(found["line"]) - 1
    param = wanted.places[line] if line < len(wanted.places) else ""
    return RequestError(
        "this JSON schema cannot be used" if param else error.message,
        param=param or wanted.param,
        seen=found["what"],
        expected=error.expected,
        fix=error.fix,
    )


def _again(error: RequestError, param: str | None = None) -> RequestError:
    """The same error, for another caller: one exception object is not raised twice."""
    return type(error)(
        error.message, param=param or error.param, seen=error.seen, expected=error.expected, fix=error.fix
    )
