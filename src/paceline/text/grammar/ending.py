"""A short way from where a text is in its grammar to a whole one, found by masks alone.

A model that is small or hot may not end what it began. Near the limit of its answer it is then led out: quotation marks
and brackets are closed first, what must still come is written in as few tokens as can be seen one step ahead. The way
is not always the shortest, and there is none for some grammars (a pattern that only ends in certain places); then the
answer is cut, as it would have been.

What to take, by what the mask allows:

    text goes on freely (letters and any punctuation)   a special token that ends it; a quotation mark, with brackets
                                                        behind it; else a long word
    text of some pattern (letters)                      an @; a quotation mark
    else                                                closing brackets; a quotation mark; what separates (, :)
    none of these                                       the longest token, for names and words that must come
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from paceline.contracts.ports import Grammar
from paceline.text.grammar.vocabulary import Vocabulary

_CLOSING = frozenset(b"}])")
_SEPARATING = frozenset(b',: "\n')
_MAX_WORDS = 256
_FREE = (b"Z", b"e", b"}", b" ")  # all of them may follow: the text is what the model likes


class Endings:
    """What the tokens of one vocabulary are good for. Shared by threads."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        tokens = vocabulary.tokens
        never = {*vocabulary.special_ids, *vocabulary.eos_token_ids}
        ids = [index for index, data in enumerate(tokens) if data and index not in never]
        at = {tokens[index]: index for index in reversed(ids)}

        def one(data: bytes) -> np.ndarray:
            return _ids([at[data]] if data in at else [])

        self._letter, self._at, self._quote = one(b"Z"), one(b"@"), one(b'"')
        self._free = _ids(at[data] for data in _FREE if data in at)
        self._special = _ids(index for index in vocabulary.special_ids if index not in vocabulary.eos_token_ids)
        self._end_quotes = _longest(
            tokens, (i for i in ids if tokens[i][:1] == b'"' and _CLOSING.issuperset(tokens[i][1:]))
        )
        self._words = _longest(tokens, (i for i in ids if tokens[i].isalpha()))[:_MAX_WORDS]
        self._brackets = _longest(tokens, (i for i in ids if _CLOSING.issuperset(tokens[i])))
        commas = (i for i in ids if tokens[i][:1] == b"," and _SEPARATING.issuperset(tokens[i]))
        self._separators = np.concatenate([_longest(tokens, commas), one(b":")])
        self._lengths = np.zeros(len(tokens), dtype=np.int32)
        self._lengths[ids] = [len(tokens[index]) for index in ids]

    def way(self, grammar: Grammar, most: int, *, further: bool = False) -> list[int] | None:
        """Ids that make the text whole, at most `most` of them; none of them where it is whole, unless it is to go
        `further`. None where no way was found. `grammar` stays where it is."""
        found = self._walk(grammar.clone(), most, further, longest=True)
        # a long token may run past every end
        return self._walk(grammar.clone(), most, further, longest=False) if found is None else found

    def _walk(self, grammar: Grammar, most: int, further: bool, *, longest: bool) -> list[int] | None:
        words = np.empty(-(-len(self._lengths) // 32), dtype=np.uint32)
        found: list[int] = []
        while (further and not found) or not grammar.accepting:
            if len(found) >= most:
                return None
            grammar.fill_mask(words)
            token = -1 if grammar.error else self._choose(words, len(found), longest)
            if token < 0 or not grammar.accept(token):
                return None
            found.append(token)
        return found

    def _choose(self, words: np.ndarray, turn: int, longest: bool) -> int:
        """An allowed id; -1 for none. Where nothing is known of what is best: the longest, or a shortest."""
        order: tuple[np.ndarray, ...]
        if len(self._free) and _allowed(words, self._free).all():
            order = (self._special, self._end_quotes, self._words)
        elif _allowed(words, self._letter).any():
            order = (self._at, self._quote)
        else:
            order = (self._brackets, self._quote, self._separators)
        for ids in order:
            allowed = np.flatnonzero(_allowed(words, ids))
            if len(allowed):
                return int(ids[allowed[0]])
        bits = np.unpackbits(words.view(np.uint8), count=len(self._lengths), bitorder="little")
        lengths = self._lengths * bits
        most = int(lengths.max())
        if most:
            size = most if longest else int(lengths[lengths > 0].min())
            best = np.flatnonzero(lengths == size)
            return int(best[turn % len(best)])  # digits of a multiple of 7: not always the same one
        special = self._special[_allowed(words, self._special)]
        return int(special[0]) if len(special) else -1


def _allowed(words: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Which of `ids` a mask allows, bool."""
    found: np.ndarray = (words[ids >> 5] >> (ids & 31).astype(np.uint32) & np.uint32(1)).astype(bool)
    return found


def _ids(ids: Iterable[int]) -> np.ndarray:
    return np.asarray(list(ids), dtype=np.int64)


def _longest(tokens: list[bytes], ids: Iterable[int]) -> np.ndarray:
    """The longest first."""
    return _ids(sorted(ids, key=lambda index: (-len(tokens[index]), index)))
