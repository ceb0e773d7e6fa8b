"""A tokenizer whose ids are bytes, with a few specials above: text rules can be tested without a model's files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class ByteTokenizer:
    """Ids 0 to 255 are bytes; 256 begins a text, 257 ends one. Implements `contracts.ports.Tokenizer`."""

    vocab_size = 258
    bos_token_id: int | None = 256
    eos_token_ids: tuple[int, ...] = (257,)

    def encode(self, text: str, *, add_special: bool = True) -> list[int]:
        return [256] * add_special + list(text.encode())

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        special = {256: b"<s>", 257: b"</s>"} if not skip_special else {}
        return b"".join(bytes([i]) if i < 256 else special.get(i, b"") for i in ids).decode(errors="replace")

    def token_bytes(self) -> Sequence[bytes]:
        return [bytes([i]) for i in range(256)] + [b"", b""]


def letter_bytes(vocab_size: int, silent: tuple[int, ...] = ()) -> list[bytes]:
    """A tiny vocabulary that spells often: single letters a to d, then pairs of them, then triples, then e0, e1, ...

    `silent` ids add no bytes, as special tokens do."""
    letters = [b"a", b"b", b"c", b"d"]
    pairs = [x + y for x in letters for y in letters]
    words = letters + pairs + [x + y for x in letters for y in pairs]
    spelled = (words[i] if i < len(words) else b"e%d" % i for i in range(vocab_size))
    return [b"" if i in silent else word for i, word in enumerate(spelled)]
