"""Pieces of text with measured token counts, put together to an exact length.

The idea: a byte-pair tokenizer cuts at spaces first, so pieces that begin with a space keep their counts when they are
joined: count(a + b) = count(a) + count(b) - (special tokens counted twice). That is measured, not assumed (`additive`).
"""

from __future__ import annotations

import json
import random
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from paceline.errors import LabError
from paceline.lab.workload.content.counter import TokenCounter
from paceline.lab.workload.content.tools import SCHEMAS, TOOLS
from paceline.lab.workload.content.words import ROLES, TASKS, sentences, words

_GROUP = 32  # words measured in one call: if the sum is 32, each is one token
_FIRST = 96
_NUM_LEADS = 48
_DEPTH = 64  # how far ahead filling looks for a sum that comes out exactly
LEAD = 4  # words at the start of each text that make it unique


@dataclass(frozen=True)
class Piece:
    text: str  # begins with a space
    num_tokens: int


@dataclass(frozen=True)
class Pieces:
    """Everything that texts are made of."""

    sentences: tuple[Piece, ...]
    words: tuple[Piece, ...]
    leads: tuple[Piece, ...]  # words that take as many tokens without their space: texts begin with one
    tasks: tuple[Piece, ...]
    roles: tuple[Piece, ...]
    asks: dict[str, Piece]  # by name of the tool or schema
    tools: tuple[Piece, ...]  # descriptions of tools, as text
    offset: int  # special tokens that the server adds to every text
    additive: bool  # counts of joined pieces add up
    _by_count: dict[int, list[Piece]] = field(init=False, default_factory=dict)
    _sorted: list[Piece] = field(init=False, default_factory=list)
    _counts: list[int] = field(init=False, default_factory=list)
    _steps: list[Sequence[Piece]] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        for piece in self.sentences:
            self._by_count.setdefault(piece.num_tokens, []).append(piece)
        self._sorted.extend(sorted(self.sentences, key=lambda p: p.num_tokens))
        self._counts.extend(p.num_tokens for p in self._sorted)
        # _steps[r]: words that may come next when r tokens are left, so that the rest still comes out exactly
        reachable = [True] + [False] * _DEPTH
        self._steps.append([])
        for left in range(1, _DEPTH + 1):
            fitting = [w for w in self.words if w.num_tokens <= left and reachable[left - w.num_tokens]]
            reachable[left] = bool(fitting)
            self._steps.append(fitting)

    def prose(self, rng: random.Random, num: int, start: Sequence[Piece] = ()) -> tuple[str, int]:
        """Sentences, after unique words and `start`, `num` tokens in all: (text beginning with a space, its tokens)."""
        parts, left = self._lead(rng, num)
        for piece in start:
            if piece.num_tokens <= left:
                parts.append(piece.text)
                left -= piece.num_tokens
        draw, sentences, smallest = rng.random, self.sentences, self._counts[0]
        while left >= smallest:
            piece = sentences[int(draw() * len(sentences))]
            if left <= self._counts[-1]:
                exact = self._by_count.get(left)
                fits = exact or self._sorted[: bisect_right(self._counts, left)]
                piece = fits[int(draw() * len(fits))]
            parts.append(piece.text)
            left -= piece.num_tokens
        return self._fill(rng, parts, left, num)

    def plain(self, rng: random.Random, num: int) -> tuple[str, int]:
        """Random words, `num` tokens in all."""
        parts, left = self._lead(rng, num)
        return self._fill(rng, parts, left, num)

    def filling(self, rng: random.Random, num: int) -> tuple[str, int]:
        """Random words to go on with, `num` tokens in all."""
        return self._fill(rng, [], num, num)

    def _lead(self, rng: random.Random, num: int) -> tuple[list[str], int]:
        parts: list[str] = []
        left = num
        for some in (self.leads, *[self.words] * (LEAD - 1)):
            piece = some[int(rng.random() * len(some))]
            if piece.num_tokens > left and parts:
                break
            parts.append(piece.text)
            left -= piece.num_tokens
        return parts, max(0, left)

    def _fill(self, rng: random.Random, parts: list[str], left: int, num: int) -> tuple[str, int]:
        while left > 0:
            fitting = self.words if left > _DEPTH else self._steps[left]
            if not fitting:
                break  # no word is short enough
            piece = fitting[int(rng.random() * len(fitting))]
            parts.append(piece.text)
            left -= piece.num_tokens
        return "".join(parts), num - left


async def measure(counter: TokenCounter) -> Pieces:
    """Counts every piece once (some hundred short texts), and checks that counts add up. LabError if it counts none."""
    texts = [f" {s}" for s in sentences()]
    others = [f" {s}" for s in (*TASKS, *ROLES, *[form.asks for form in (*TOOLS, *SCHEMAS)], *_descriptions())]
    joined = [texts[0] + texts[1], texts[2] + " " + " ".join(words()[:8]), "".join(texts[3:9])]
    parts = [" " + " ".join(words()[:8])]
    counts = await counter.count([*texts, *others, *joined, *parts])
    if len(counts) != len(texts) + len(others) + 4 or min(counts) < 1:
        raise LabError("the server's token counts make no sense", seen=counts[:8], expected="at least 1 for each text")
    of = dict(zip([*texts, *others, *joined, *parts], counts, strict=True))
    offset = of[texts[0]] + of[texts[1]] - of[joined[0]]
    adds_up = (
        0 <= offset <= 8
        and of[texts[2]] + of[parts[0]] - offset == of[joined[1]]
        and sum(of[t] for t in texts[3:9]) - 5 * offset == of[joined[2]]
    )
    offset = offset if adds_up else 0
    usable = await _words(counter, offset)
    bare = await counter.count([w.text.strip() for w in usable[:_NUM_LEADS]])
    leads = [w for w, n in zip(usable, bare, strict=False) if n - offset == w.num_tokens == 1]

    def pieces(wanted: Sequence[str]) -> tuple[Piece, ...]:
        return tuple(Piece(t, max(1, of[t] - offset)) for t in wanted)

    rest = pieces(others)
    ends = (len(TASKS), len(TASKS) + len(ROLES), len(TASKS) + len(ROLES) + len(TOOLS) + len(SCHEMAS))
    asks = zip((*TOOLS, *SCHEMAS), rest[ends[1] : ends[2]], strict=True)
    return Pieces(
        sentences=pieces(texts),
        words=tuple(usable),
        leads=tuple(leads) or tuple(usable),
        tasks=rest[: ends[0]],
        roles=rest[ends[0] : ends[1]],
        asks={form.name: piece for form, piece in asks},
        tools=rest[ends[2] :],
        offset=offset,
        additive=adds_up and len(leads) >= 16 and counter.exact,
    )


async def _words(counter: TokenCounter, offset: int) -> list[Piece]:
    """Words of one token each; where the vocabulary has few, some words with the counts they have."""
    first, rest = words()[:_FIRST], words()[_FIRST:]
    single = await _single(counter, first, offset)
    if len(single) < _FIRST // 2:
        counts = await counter.count([f" {w}" for w in first])
        return [Piece(f" {w}", max(1, n - offset)) for w, n in zip(first, counts, strict=True)]
    return [Piece(f" {w}", 1) for w in (*single, *await _single(counter, rest, offset))]


async def _single(counter: TokenCounter, some: Sequence[str], offset: int) -> list[str]:
    groups = [some[i : i + _GROUP] for i in range(0, len(some), _GROUP)]
    sums = await counter.count(["".join(f" {w}" for w in group) for group in groups])
    whole = [w for group, n in zip(groups, sums, strict=True) if n - offset == len(group) for w in group]
    doubtful = [w for group, n in zip(groups, sums, strict=True) if n - offset != len(group) for w in group]
    counts = await counter.count([f" {w}" for w in doubtful]) if doubtful else []
    return whole + [w for w, n in zip(doubtful, counts, strict=True) if n - offset == 1]


def _descriptions() -> list[str]:
    return [json.dumps({"name": t.name, "description": t.purpose, "parameters": t.schema}) for t in TOOLS]
