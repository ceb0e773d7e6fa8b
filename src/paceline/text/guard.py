"""Keeps special tokens that users wrote into chat messages plain text, while those of the template count.

Before rendering, each special token inside a string of a message is replaced by one private-use character that occurs
nowhere else, so the template still sees text it can trim, split and join. After rendering, every special token that is
left is the template's own. The text between two of those is encoded as plain text, with the hidden tokens written out
again, wherever it holds one. A string that ends with the start of a special token hides its last character too: two
parts of a message must not add up to a token.

Messages without any of this, nearly all, take no other way than before. What a template does to the placeholder counts:
one that drops it drops the token, and one that looks for a special token inside a content does not find it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from paceline.errors import RequestError
from paceline.text.tokenizer import TextTokenizer

_PRIVATE = (*range(0xF0000, 0xFFFFE), *range(0xE000, 0xF900))


class SpecialGuard:
    """For one tokenizer. Immutable, so threads may share it."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        texts = sorted({tokenizer.added_text[i] for i in tokenizer.special_ids} - {""}, key=lambda t: (-len(t), t))
        self._starts = {text[:size] for text in texts for size in range(1, len(text))}
        self._longest = max(map(len, texts), default=0)
        self._pattern = re.compile("(" + "|".join(map(re.escape, texts)) + ")") if texts else None

    def hide(self, value: Any, template: Iterable[str] = ()) -> tuple[Any, dict[str, str]]:
        """`value` (JSON values) with its special tokens replaced, and what each placeholder stands for; the very same
        value and {} when it holds none. Placeholders occur neither in `value` nor in the `template` texts."""
        if self._pattern is None or not any(map(self._touches, _strings(value))):
            return value, {}
        taken = set().union(*_strings(value), *template)
        free = (chr(code) for code in _PRIVATE if chr(code) not in taken)
        places: dict[str, str] = {}  # text -> placeholder
        value = self._replaced(value, places, free)
        return value, {mark: text for text, mark in places.items()}

    def encode(self, text: str, hidden: Mapping[str, str]) -> list[int]:
        """Ids of a rendered chat, no BOS added: the template's special tokens count, the hidden ones are text."""
        assert self._pattern is not None, "nothing can be hidden without special tokens"
        marks = re.compile("[" + "".join(map(re.escape, hidden)) + "]")
        ids: list[int] = []
        run: list[str] = []
        for section in [*self._pattern.split(text), None]:
            if section is not None and not marks.search(section):
                run.append(section)
                continue
            ids += self._tokenizer.encode("".join(run), add_special=False, parse_special=True)
            run.clear()
            if section is not None:
                plain = marks.sub(lambda found: hidden[found[0]], section)
                ids += self._tokenizer.encode(plain, add_special=False, parse_special=False)
        return ids

    def _touches(self, text: str) -> bool:
        assert self._pattern is not None
        return self._pattern.search(text) is not None or self._opens(text.rstrip())

    def _opens(self, text: str) -> bool:
        """Whether the end of `text` is the start of a special token."""
        tail = text[-self._longest :]
        return any(tail[at:] in self._starts for at in range(len(tail)))

    def _replaced(self, value: Any, places: dict[str, str], free: Iterable[str]) -> Any:
        if isinstance(value, str):
            assert self._pattern is not None
            text = self._pattern.sub(lambda found: _place(found[0], places, free), str.__str__(value))
            kept = text.rstrip()
            return kept[:-1] + _place(kept[-1], places, free) + text[len(kept) :] if self._opens(kept) else text
        if isinstance(value, Mapping):
            return {
                self._replaced(key, places, free): self._replaced(item, places, free) for key, item in value.items()
            }
        if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray)):
            return [self._replaced(item, places, free) for item in value]
        return value


def _place(text: str, places: dict[str, str], free: Iterable[str]) -> str:
    if text not in places:
        mark = next(iter(free), None)
        if mark is None:
            raise RequestError(
                "the messages use special tokens and every private-use character",
                param="messages",
                fix="leave one of the two out",
            )
        places[text] = mark
    return places[text]


def _strings(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _strings(key)
            yield from _strings(item)
    elif isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray)):
        for item in value:
            yield from _strings(item)
