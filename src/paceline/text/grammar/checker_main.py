"""The process behind `GrammarChecker`: `python -m paceline.text.grammar.checker_main CPU_LIMIT_S`.

Reads the vocabulary, then grammars, from stdin; writes a verdict for each to stdout; ends when stdin does. A timer of
its own CPU time ends it by signal in the middle of whatever the library does.
"""

from __future__ import annotations

import os
import random
import resource
import signal
import sys
from contextlib import suppress

import msgspec
import numpy as np

from paceline.contracts.ports import Grammar
from paceline.errors import RequestError
from paceline.text.grammar.checker import Verdict, cpu_s, receive, send
from paceline.text.grammar.compiler import GrammarCompiler
from paceline.text.grammar.spec import GrammarSpec, encode_spec, wrong
from paceline.text.grammar.vocabulary import Vocabulary

MORE_MEMORY = 512 << 20  # bytes beyond what it has when it is ready
WALK_TOKENS = 48
MAX_MASK_S = 0.05  # of computing, for one mask


def main() -> int:
    cpu_limit_s = float(sys.argv[1])
    calls, replies = sys.stdin.buffer, sys.stdout.buffer
    data = receive(calls)
    if data is None:
        return 0
    vocabulary = msgspec.msgpack.decode(data, type=Vocabulary)
    compiler = GrammarCompiler(lambda: vocabulary)
    compiler.compile(encode_spec(GrammarSpec(kind="regex", value="a")))  # loads the library and the vocabulary
    _hold_back()
    send(replies, b"ready")
    while (grammar := receive(calls)) is not None:
        signal.setitimer(signal.ITIMER_PROF, cpu_limit_s)
        verdict = judge(compiler, grammar, len(vocabulary.tokens))
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        send(replies, msgspec.msgpack.encode(verdict))
    return 0


def judge(compiler: GrammarCompiler, grammar: bytes, vocab_size: int) -> Verdict:
    """Compile it, and walk through it at random: no mask on the way may take long."""
    try:
        walk(compiler.compile(grammar), vocab_size)
    except RequestError as error:
        seen = None if error.seen is None else str(error.seen)
        return Verdict(error.message, seen, error.expected, error.fix)
    return Verdict()


def walk(grammar: Grammar, vocab_size: int) -> None:
    """Raises RequestError when a mask takes more than MAX_MASK_S of computing, or a limit of the grammar is met."""
    words = np.zeros(-(-vocab_size // 32), dtype=np.uint32)
    choose = random.Random(0)
    for _ in range(WALK_TOKENS):
        begin = cpu_s()
        grammar.fill_mask(words)
        took_s = cpu_s() - begin
        if grammar.error:
            raise wrong("the grammar is too complex to follow", grammar.error, "a simpler grammar")
        if took_s > MAX_MASK_S:
            raise wrong(
                "the grammar takes too long to say which tokens may follow",
                f"{took_s * 1e3:.0f} ms for one token",
                f"at most {MAX_MASK_S * 1e3:.0f} ms",
                fix="use fewer alternatives that may stand at one place",
            )
        allowed = np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")).tolist()
        if not allowed:
            raise wrong("the grammar allows no text at all", None, "a grammar that some text satisfies")
        if grammar.done or not (grammar.accept(choose.choice(allowed)) or grammar.error):
            return


def _hold_back() -> None:
    """Steps of the engine come first; and a limit on memory."""
    with suppress(OSError):
        os.nice(10)
    with suppress(OSError, ValueError):
        with open("/proc/self/statm") as file:
            size = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + MORE_MEMORY, size + MORE_MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
    sys.exit(main())
