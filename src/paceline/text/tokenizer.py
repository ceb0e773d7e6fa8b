"""The tokenizer: text to ids, ids to bytes. One class for every kind of vocabulary; `loading.py` builds it.

Text is bytes here. Each id adds a fixed run of bytes (`token_bytes`), special tokens add none, and text is what those
bytes say as UTF-8. So text is the same however the ids were cut into pieces on their way, and the engine can look for
stop strings in bytes. Two things follow. A vocabulary that puts a space before text (Llama 2) gives that space back:
`decode` takes it off again for ids that begin a text, and leaves it for ids that continue one. And a broken byte
sequence shows as U+FFFD once for each maximal broken part, as SentencePiece and byte-level vocabularies have it.

Special tokens *in* text are text (`parse_special=False`) unless the caller asks: a user who types "<|im_end|>" cannot
end a turn. Rendered chat templates ask, for the tokens the template itself writes (`guard.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from paceline.errors import RequestError

if TYPE_CHECKING:
    import tokenizers


def utf8(text: str, param: str = "prompt") -> bytes:
    """`text` as UTF-8. Raises RequestError for half of a surrogate pair, which no UTF-8 can hold."""
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RequestError(
            f"{param} is not valid Unicode text: it holds half of a surrogate pair",
            param=param,
            seen=f"U+{ord(text[error.start]):04X} at character {error.start}",
            expected="text that can be written as UTF-8",
            fix="decode the text with the right encoding, or replace what could not be decoded",
        ) from None


class TextTokenizer:
    """Implements `contracts.ports.Tokenizer` over a `tokenizers` object. Immutable, so threads may share it.

    Ids run from 0 to vocab_size - 1; ids that the model has and the vocabulary lacks (padding of the embedding) add no
    text. `special_tokens` maps roles (bos_token, eos_token, unk_token, pad_token) to their text, for chat templates.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        vocab_size: int,
        piece_bytes: Callable[[str], bytes],
        pieces: Sequence[str] | None = None,
        special_tokens: Mapping[str, str] | None = None,
        eos_token_ids: Sequence[int] = (),
        add_bos: bool | None = None,
        add_eos: bool | None = None,
        strip_space: bool = False,
        replace_marks: bool = False,
    ) -> None:
        """`pieces`: the vocabulary by id, when the caller has it (else it is asked of `backend` when first needed).
        `add_bos`, `add_eos`: None leaves both to the backend's own post-processor. `strip_space`: `decode` takes one
        space off the start of a text. `replace_marks`: the space mark `▁` in text is a space, before anything else."""
        backend.no_truncation()
        backend.no_padding()
        self.backend = backend
        self.vocab_size = vocab_size
        self.special_tokens = dict(special_tokens or {})
        self.strip_space = strip_space
        self._replace_marks = replace_marks
        added = backend.get_added_tokens_decoder()
        self.added_text = {index: token.content for index, token in added.items()}
        self.special_ids = frozenset(index for index, token in added.items() if token.special)
        self.bos_token_id = self._id_of("bos_token")
        self.eos_token_ids = tuple(dict.fromkeys(eos_token_ids))
        eos = self._id_of("eos_token")
        self._before = [self.bos_token_id] if add_bos and self.bos_token_id is not None else []
        self._after = [eos] if add_eos and eos is not None else []
        self._post_process = add_bos is None and add_eos is None
        self._plain = _without_special(backend)
        self._pieces = pieces
        self._piece_bytes = piece_bytes
        self._bytes: list[bytes] | None = None

    def encode(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """Ids of `text`. `add_special`: with BOS and EOS as the model wants them. `parse_special`: special tokens
        written in the text become their ids. Raises RequestError when the text is not valid Unicode."""
        utf8(text)
        if self._replace_marks:
            text = text.replace("\u2581", " ")
        backend = self.backend if parse_special else self._plain
        ids: list[int] = backend.encode(text, add_special_tokens=add_special and self._post_process).ids
        return [*self._before, *ids, *self._after] if add_special else ids

    def decode(self, ids: Iterable[int], *, skip_special: bool = True, start_of_text: bool = True) -> str:
        """Text of `ids`. With `start_of_text`, the space that `encode` put before the text is taken off again;
        without, the result is what the ids add to the text before them: the joined deltas of a `Detokenizer`."""
        table = self.token_bytes() if skip_special else None
        data = b"".join([self.bytes_of(i) if table is None else table[i] if 0 <= i < len(table) else b"" for i in ids])
        if start_of_text and self.strip_space and data.startswith(b" "):
            data = data[1:]
        return data.decode("utf-8", errors="replace")

    def token_bytes(self) -> Sequence[bytes]:
        """Bytes each id adds to the text, `vocab_size` entries; special tokens add none. Built at the first call."""
        if self._bytes is None:
            table = [b""] * self.vocab_size
            for index, piece in self._by_id():
                table[index] = self._piece_bytes(piece)
            for index, text in self.added_text.items():
                if index < self.vocab_size:
                    table[index] = b"" if index in self.special_ids else text.encode("utf-8")
            self._bytes = table
        return self._bytes

    def bytes_of(self, token_id: int) -> bytes:
        """Bytes of one id, special tokens shown as written; b"" for an id outside the vocabulary."""
        if token_id in self.special_ids:
            return self.added_text[token_id].encode("utf-8")
        table = self.token_bytes()
        return table[token_id] if 0 <= token_id < len(table) else b""

    @cached_property
    def longest_token_bytes(self) -> int:
        """Bytes of text the longest token stands for: no text of n bytes has fewer than n / longest tokens."""
        return max(
            1, max(map(len, self.token_bytes()), default=1), *(len(t.encode()) for t in self.added_text.values())
        )

    def token_id(self, text: str) -> int | None:
        """Id of a vocabulary entry written as `text`, special or not."""
        return self.backend.token_to_id(text)

    def _id_of(self, role: str) -> int | None:
        text = self.special_tokens.get(role)
        return None if text is None else self.backend.token_to_id(text)

    def _by_id(self) -> Iterable[tuple[int, str]]:
        if self._pieces is not None:
            return enumerate(self._pieces)
        return ((index, piece) for piece, index in self.backend.get_vocab().items() if index < self.vocab_size)


def _without_special(backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """The same tokenizer, blind to special tokens in text. Shares the vocabulary: a second copy costs nothing."""
    from tokenizers import Tokenizer

    plain = Tokenizer(backend.model)
    added = backend.get_added_tokens_decoder()
    plain.add_tokens([added[index] for index in sorted(added)])
    if plain.get_added_tokens_decoder().keys() != added.keys():  # ids with holes cannot be given out again in order
        plain = Tokenizer.from_str(backend.to_str())
    plain.normalizer = backend.normalizer
    plain.pre_tokenizer = backend.pre_tokenizer
    plain.post_processor = backend.post_processor
    plain.encode_special_tokens = True
    return plain
