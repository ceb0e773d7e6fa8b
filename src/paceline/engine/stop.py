"""When generation ends, decided in one place and on accepted tokens one by one: stop ids, stop strings, lengths.

Stop strings are found in the bytes of the tokens, by an automaton over all strings of the request (Aho and Corasick,
"Efficient string matching", CACM 1975). Its state is the longest suffix of the text that may still become a stop, so
it also says which tokens must wait. Nothing is computed per vocabulary; a token costs a few steps of the automaton.

With bytes `[begin, end)` for a token and the stop string beginning at S, when a stop is found:

    end <= S, or begin < S    the token is kept; of the last one, end - S bytes are cut from the text
    otherwise                 the token lies within the stop: dropped from ids, logprobs and usage

A token is handed out only when no later match can begin at or before its first byte, so nothing is ever taken back.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from typing import TypeAlias

from paceline.contracts.request import FinishReason, TokenLogprob


class StopAutomaton:
    """Finds the first completed pattern in a byte stream. Immutable; shared by whoever has the same patterns."""

    __slots__ = ("depth", "fail", "first", "goto", "match", "patterns")

    def __init__(self, patterns: Sequence[bytes]) -> None:
        assert patterns
        assert all(patterns)
        self.patterns = tuple(patterns)
        self.goto: list[dict[int, int]] = [{}]  # node -> byte -> node
        self.depth = [0]  # bytes from the root: the length of the suffix a node stands for
        self.match = [-1]  # node -> index of the longest pattern that ends here
        for index, pattern in enumerate(self.patterns):
            node = 0
            for byte in pattern:
                child = self.goto[node].get(byte)
                if child is None:
                    child = len(self.goto)
                    self.goto[node][byte] = child
                    self.goto.append({})
                    self.depth.append(self.depth[node] + 1)
                    self.match.append(-1)
                node = child
            if self.match[node] < 0:
                self.match[node] = index
        self.fail = [0] * len(self.goto)
        nodes = deque(self.goto[0].values())
        while nodes:
            node = nodes.popleft()
            for byte, child in self.goto[node].items():
                back = self.fail[node]
                while back and byte not in self.goto[back]:
                    back = self.fail[back]
                self.fail[child] = self.goto[back].get(byte, 0)
                if self.match[child] < 0:
                    self.match[child] = self.match[self.fail[child]]
                nodes.append(child)
        self.first = re.compile(b"[" + b"".join(re.escape(bytes([b])) for b in sorted(self.goto[0])) + b"]")

    def run(self, node: int, data: bytes, begin: int = 0) -> tuple[int, int, int]:
        """Read `data[begin:]` from `node`, to the first match. Returns (node, bytes read, pattern index or -1)."""
        goto, fail, match = self.goto, self.fail, self.match
        at = begin
        size = len(data)
        while at < size:
            if node == 0:
                found = self.first.search(data, at)  # text that touches no pattern is skipped in C
                if found is None:
                    return 0, size - begin, -1
                at = found.start()
            byte = data[at]
            at += 1
            step = goto[node].get(byte)
            while step is None and node:
                node = fail[node]
                step = goto[node].get(byte)
            node = step or 0
            if match[node] >= 0:
                return node, at - begin, match[node]
        return node, size - begin, -1


class StopAutomata:
    """The automata of late, by their patterns: choices of a call and calls of an application have the same ones.

    At most `max_count`, and `max_bytes` of patterns (an automaton takes a few hundred bytes for each); the one just
    asked for is kept in any case.
    """

    def __init__(self, max_count: int = 64, max_bytes: int = 1 << 16) -> None:
        self._max_count = max_count
        self._max_bytes = max_bytes
        self._automata: dict[tuple[bytes, ...], StopAutomaton] = {}  # least recently asked for first
        self._num_bytes = 0

    def __len__(self) -> int:
        return len(self._automata)

    def of(self, patterns: tuple[bytes, ...]) -> StopAutomaton:
        """The automaton of these patterns, in this order (none empty)."""
        automaton = self._automata.pop(patterns, None)
        if automaton is None:
            automaton = StopAutomaton(patterns)
            self._num_bytes += _size(patterns)
        self._automata[patterns] = automaton
        while len(self._automata) > 1 and (len(self._automata) > self._max_count or self._num_bytes > self._max_bytes):
            oldest = next(iter(self._automata))
            del self._automata[oldest]
            self._num_bytes -= _size(oldest)
        return automaton


def _size(patterns: tuple[bytes, ...]) -> int:
    return sum(map(len, patterns))


class StopMatcher:
    """One request's stop strings over its output, and the tokens that wait because of them."""

    __slots__ = (
        "_automaton",
        "_bytes",
        "_handed_end",
        "_held",
        "_include",
        "_node",
        "_total",
        "cut_bytes",
        "found",
        "num_dropped",
    )

    def __init__(self, automaton: StopAutomaton, token_bytes: Sequence[bytes], *, include_stop: bool = False) -> None:
        self._automaton = automaton
        self._bytes = token_bytes
        self._include = include_stop
        self._node = 0
        self._total = 0  # bytes of text so far
        self._held: deque[_Held] = deque()
        self._handed_end = 0  # end byte of the last token handed out
        self.found: bytes | None = None  # the stop string that ended it
        self.cut_bytes = 0  # how much of the kept tokens' text belongs to the stop, or lies after it
        self.num_dropped = 0  # tokens that lay within the stop

    def push(self, token: int, logprob: TokenLogprob | None, *, may_stop: bool) -> bool:
        """Take one accepted token; True if a stop string ends in it. With `may_stop` false a match is forgotten."""
        data = self._bytes[token]
        begin = self._total
        self._total += len(data)
        self._held.append((token, logprob, begin, self._total))
        read = 0
        while read < len(data):
            self._node, count, index = self._automaton.run(self._node, data, read)
            read += count
            if index >= 0:
                self._node = 0
                if may_stop:
                    self._end_at(self._automaton.patterns[index], begin + read)
                    return True
        return False

    def push_stop_id(self, token: int, logprob: TokenLogprob | None) -> None:
        """Take a token that stops by its id: it is kept, its text (unless stops are included) is not."""
        size = len(self._bytes[token])
        self._held.append((token, logprob, self._total, self._total + size))
        self._total += size
        self._node = 0
        self.cut_bytes = 0 if self._include else size

    def _end_at(self, pattern: bytes, end: int) -> None:
        self.found = pattern
        keep_to = end if self._include else end - len(pattern)
        while self._held and not _begins_before(self._held[-1], keep_to):
            self._held.pop()
            self.num_dropped += 1
        last_end = self._held[-1][3] if self._held else self._handed_end
        self.cut_bytes = max(0, last_end - keep_to)

    def take(self, *, everything: bool = False) -> tuple[list[int], list[TokenLogprob], int]:
        """Tokens that are final now (all that is left with `everything`), their logprobs, and `hold_bytes`: how many
        trailing bytes of all tokens handed out may still become part of a stop."""
        unsure = 0 if everything or self._include else self._automaton.depth[self._node]
        sure_to = self._total - unsure
        ids: list[int] = []
        logprobs: list[TokenLogprob] = []
        held = self._held
        while held and (everything or _begins_before(held[0], sure_to)):
            token, logprob, _, self._handed_end = held.popleft()
            ids.append(token)
            if logprob is not None:
                logprobs.append(logprob)
        return ids, logprobs, 0 if everything else max(0, self._handed_end - sure_to)


_Held: TypeAlias = tuple[int, TokenLogprob | None, int, int]  # id, logprob, first byte, end byte


def _begins_before(token: _Held, at: int) -> bool:
    """The token begins before byte `at`, or adds no bytes and stands right there."""
    return token[2] < at or token[3] <= at


class StopRules:
    """All the rules of one request. `check` is asked once per accepted token, in order, until it names an end.

    Rules in order: stop ids (end of sequence among them), stop strings, a grammar that is complete, the limit on known
    tokens. The first two never end it with an output token of index below `min_tokens`; a stop string completed by such
    a token is forgotten, and matching starts anew behind it. A complete grammar ends it in any case: nothing can
    follow.
    """

    __slots__ = ("cut_bytes", "limit", "matcher", "min_tokens", "stop_ids", "stop_reason", "stop_text_bytes")

    def __init__(
        self,
        stop_ids: frozenset[int],
        min_tokens: int,
        limit: int,
        matcher: StopMatcher | None = None,
        stop_text_bytes: Sequence[bytes] | None = None,
    ) -> None:
        self.stop_ids = stop_ids
        self.min_tokens = min_tokens
        self.limit = limit  # known tokens, prompt included
        self.matcher = matcher
        self.stop_text_bytes = stop_text_bytes  # bytes by token id, when the text of a stop id is to be cut
        self.stop_reason: int | str | None = None
        self.cut_bytes = 0

    def check(
        self, token: int, logprob: TokenLogprob | None, index: int, known: int, *, complete: bool = False
    ) -> FinishReason | None:
        """Does the request end with `token`, output token `index`, after which `known` tokens are known? `complete`:
        its grammar does."""
        may_stop = index >= self.min_tokens
        matcher = self.matcher
        if (may_stop or complete) and token in self.stop_ids:
            self.stop_reason = token
            if matcher is not None:
                matcher.push_stop_id(token, logprob)
                self.cut_bytes = matcher.cut_bytes
            elif self.stop_text_bytes is not None:
                self.cut_bytes = len(self.stop_text_bytes[token])
            return FinishReason.STOP
        if matcher is not None and matcher.push(token, logprob, may_stop=may_stop):
            assert matcher.found is not None
            self.stop_reason = matcher.found.decode("utf-8", "replace")
            self.cut_bytes = matcher.cut_bytes
            return FinishReason.STOP
        if complete:
            return FinishReason.STOP
        return FinishReason.LENGTH if known >= self.limit else None
