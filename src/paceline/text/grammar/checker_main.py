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
from typing import Literal, get_args

import msgspec
import numpy as np

from paceline.contracts.ports import Grammar
from paceline.errors import RequestError
from paceline.text.grammar.checker import Verdict, cpu_s, receive, send
from paceline.text.grammar.compiler import NO_END, GrammarCompiler
from paceline.text.grammar.spec import GrammarSpec, encode_spec, wrong
from paceline.text.grammar.vocabulary import Vocabulary

MORE_MEMORY = 512 << 20  # bytes beyond what it has when it is ready
WALK_TOKENS = 48
MAX_MASK_S = 0.05  # of computing, for one mask
Pace = Literal["any", "shortest", "longest"]
PACES: tuple[Pace, ...] = get_args(Pace)
SIMPLER = "use smaller counts, and no counts within counts"


def main() -> int:
    cpu_limit_s = float(sys.argv[1])
    calls, replies = sys.stdin.buffer, sys.stdout.buffer
    data = receive(calls)
    if data is None:
        return 0
    vocabulary = msgspec.msgpack.decode(data, type=Vocabulary)
    compiler = GrammarCompiler(lambda: vocabulary)
    compiler.compile(encode_spec(GrammarSpec(kind="regex", value="a")))  # loads the library and the vocabulary
    lengths = lengths_of(vocabulary)
    _hold_back()
    send(replies, b"ready")
    while (grammar := receive(calls)) is not None:
        signal.setitimer(signal.ITIMER_PROF, cpu_limit_s)
        verdict = judge(compiler, grammar, lengths)
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        send(replies, msgspec.msgpack.encode(verdict))
    return 0


def lengths_of(vocabulary: Vocabulary) -> np.ndarray:
    """Bytes of each token, [vocab]; 0 for a special one, -1 for one that ends a sequence."""
    lengths = np.asarray([len(token) for token in vocabulary.tokens], dtype=np.int64)
    lengths[vocabulary.special_ids] = 0
    lengths[vocabulary.eos_token_ids] = -1
    return lengths


def judge(compiler: GrammarCompiler, data: bytes, lengths: np.ndarray) -> Verdict:
    """Compile it, and walk through it: no mask on the way may take long, no limit may be met."""
    try:
        grammar = compiler.compile(data)
        for pace in PACES:
            try:
                walk(grammar.clone(), lengths, pace)
            except RequestError:  # clones share limits: what it is refused for must be of one text
                walk(compiler.compile(data), lengths, pace)
    except RequestError as error:
        seen = None if error.seen is None else str(error.seen)
        return Verdict(error.message, seen, error.expected, error.fix)
    return Verdict()


def walk(grammar: Grammar, lengths: np.ndarray, pace: Pace) -> None:
    """Draw one token after another from those the grammar allows, and end the text only when nothing else may follow.

    What a count costs shows at the pace at which it is counted, so `pace` says which tokens are drawn: any, or the
    shortest or longest. `lengths`: see `lengths_of`. Raises RequestError when a mask takes more than
    MAX_MASK_S of computing, or a limit of the grammar is met.
    """
    words = np.zeros(-(-len(lengths) // 32), dtype=np.uint32)
    choose = random.Random(0)
    for _ in range(WALK_TOKENS):
        begin = cpu_s()
        grammar.fill_mask(words)
        took_s = cpu_s() - begin
        if grammar.error:
            fix = "" if grammar.error == NO_END else SIMPLER
            raise wrong("the grammar cannot be followed", grammar.error, "a simpler grammar", fix=fix)
        if took_s > MAX_MASK_S:
            raise wrong(
                "the grammar takes too long to say which tokens may follow",
                f"{took_s * 1e3:.0f} ms for one token",
                f"at most {MAX_MASK_S * 1e3:.0f} ms",
                fix="use fewer alternatives that may stand at one place",
            )
        allowed = np.flatnonzero(np.unpackbits(words.view(np.uint8), count=len(lengths), bitorder="little"))
        if not len(allowed):
            raise wrong("the grammar allows no text at all", None, "a grammar that some text satisfies")
        token = choose.choice(_at(pace, allowed, lengths[allowed]).tolist())
        if grammar.done or not (grammar.accept(token) or grammar.error):
            return


def _at(pace: Pace, ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Those of `ids` that may be drawn; `lengths` are theirs. Never none."""
    if pace == "any":
        chosen = lengths >= 0
    elif pace == "shortest":
        chosen = lengths == np.min(lengths, where=lengths > 0, initial=lengths.max())
    else:
        chosen = lengths == lengths.max()
    return ids[chosen] if chosen.any() else ids


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
