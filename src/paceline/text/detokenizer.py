"""From ids to text while they come: nothing shown is ever taken back, and all deltas joined are the final text.

Two things keep bytes back. A character of several bytes waits for its last byte (a broken sequence shows as U+FFFD as
soon as the next byte proves it broken, or at the end). And the engine may say that the last `hold_bytes` bytes can
still turn into a stop string, of which `cut_bytes` go at the end. Both counts are over `Tokenizer.token_bytes`, so
special tokens, even when shown, do not count; a special token that comes after held bytes is held with them.
"""

from __future__ import annotations

import codecs
from collections.abc import Container, Iterable

from paceline.contracts.ports import Tokenizer


class Detokenizer:
    """Turns the ids of one sequence, in any portions, into text. Made for ids that continue a prompt: a leading space
    that the first token brings is part of the text."""

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool = True, shown: Container[int] = ()) -> None:
        """`skip_special`: special tokens show nothing, but for those of `shown`; else what `tokenizer.decode` shows for
        them."""
        self._tokenizer = tokenizer
        self._table = tokenizer.token_bytes()
        self._skip_special = skip_special
        self._shown = shown
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        # Held runs, oldest first: (bytes, whether they count). Only the shown special tokens do not count.
        self._held: list[tuple[bytes, bool]] = []

    def push(self, ids: Iterable[int], *, hold_bytes: int = 0) -> str:
        """Text that became certain. The last `hold_bytes` bytes of all so far are kept back."""
        self._take(ids)
        return self._decoder.decode(self._release(hold_bytes))

    def finish(self, ids: Iterable[int] = (), *, cut_bytes: int = 0) -> str:
        """The rest of the text, after the last `ids`, without the last `cut_bytes` bytes. Call it once."""
        self._take(ids)
        text = self._decoder.decode(self._release(cut_bytes), final=True)
        self._held.clear()
        return text

    def _take(self, ids: Iterable[int]) -> None:
        table, size = self._table, len(self._table)
        run: list[bytes] = []
        for index in ids:
            data = table[index] if 0 <= index < size else b""
            if data or (self._skip_special and index not in self._shown):
                run.append(data)
            else:
                shown = self._tokenizer.decode([index], skip_special=False).encode("utf-8")
                self._held += [(b"".join(run), True), (shown, False)]
                run = []
        self._held.append((b"".join(run), True))

    def _release(self, keep: int) -> bytes:
        """All held bytes up to the place where the last `keep` counted ones begin."""
        at = len(self._held)
        while keep > 0 and at > 0:
            at -= 1
            data, counts = self._held[at]
            if not counts:
                continue
            if len(data) > keep:
                self._held[at : at + 1] = [(data[:-keep], True), (data[-keep:], True)]
                at += 1
                keep = 0
            else:
                keep -= len(data)
        assert keep <= 0, "the engine holds or cuts bytes that are already out"
        ready, self._held = self._held[:at], self._held[at:]
        return b"".join([data for data, _ in ready])
