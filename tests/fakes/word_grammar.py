"""A grammar small enough to be judged without the library: `least` to `most` words of a list, one after the other.

`spec` is the same as a regular expression for the real compiler; the functions here say by themselves which texts are
whole, which can be gone on with, and which token ids may follow.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paceline.contracts.request import Request
from paceline.text.grammar import GrammarCompiler, GrammarSpec, encode_spec
from paceline.text.grammar.vocabulary import Vocabulary


@dataclass(frozen=True)
class WordGrammar:
    """`most` None: any number of words."""

    words: tuple[bytes, ...]
    least: int
    most: int | None

    @property
    def spec(self) -> bytes:
        words = "|".join(re.escape(word.decode()) for word in self.words)
        count = f"{{{self.least},{'' if self.most is None else self.most}}}"
        return encode_spec(GrammarSpec(kind="regex", value=f"({words}){count}"))

    def _ends(self, text: bytes) -> tuple[bool, bool]:
        """Is the text whole; is it the beginning of a longer one or of itself?"""
        states = {(0, 0)}  # (bytes read, words read)
        todo, whole, begins = [(0, 0)], False, False
        while todo:
            at, count = todo.pop()
            if at == len(text):
                whole = whole or (count >= self.least and (self.most is None or count <= self.most))
            if self.most is not None and count >= self.most:
                continue
            for word in self.words:
                begins = begins or (len(word) > len(text) - at and word.startswith(text[at:]))
                step = (at + len(word), count + 1)
                if text.startswith(word, at) and step not in states:
                    states.add(step)
                    todo.append(step)
        return whole, whole or begins

    def whole(self, text: bytes) -> bool:
        return self._ends(text)[0]

    def begins(self, text: bytes) -> bool:
        """Some text of the language begins with it."""
        return self._ends(text)[1]

    def complete(self, text: bytes) -> bool:
        """Whole, and no byte can follow."""
        letters = {bytes([byte]) for word in self.words for byte in word}
        return self.whole(text) and not any(self.begins(text + letter) for letter in letters)


def vocabulary(token_bytes: Sequence[bytes], eos: int) -> Vocabulary:
    tokens = [b"<eos>" if index == eos else data for index, data in enumerate(token_bytes)]
    return Vocabulary(tokens=tokens, special_ids=[eos], eos_token_ids=[eos], bos_token_id=None)


def compiler(token_bytes: Sequence[bytes], eos: int) -> GrammarCompiler:
    """The real one, for a small vocabulary."""
    return GrammarCompiler(lambda: vocabulary(token_bytes, eos))


@dataclass(frozen=True)
class Reference:
    """What may follow, worked out from the text alone."""

    grammar: WordGrammar
    token_bytes: Sequence[bytes]
    eos: int

    def stop_ids(self, request: Request) -> set[int]:
        sampling = request.sampling
        return set(sampling.stop_token_ids) | (set() if sampling.ignore_eos else {self.eos})

    def allowed(self, request: Request, text: bytes) -> np.ndarray:
        """[vocab] bool."""
        found = np.zeros(len(self.token_bytes), dtype=bool)
        for index, data in enumerate(self.token_bytes):
            found[index] = bool(data) and self.grammar.begins(text + data)
        if self.grammar.whole(text):
            found[list(self.stop_ids(request))] = True
            if not found.any():
                found[self.eos] = True
        return found

    def ends(self, request: Request, text: bytes, token: int) -> bool:
        """Is the text complete with `token`, which comes next?"""
        if self.grammar.whole(text) and (token in self.stop_ids(request) or token == self.eos):
            return True
        return self.grammar.complete(text + self.token_bytes[token])
