"""Byte-level BPE (GPT-2 and after): the byte alphabet, the ways text is split before merging, the builder.

A GGUF file stores only the *name* of the split (`tokenizer.ggml.pre`); the table below says what each name stands for.
The patterns are those of the models' own `tokenizer.json` files; the names and which vocabularies look a whole word up
before merging (`whole_words`) are llama.cpp's. A name that is not here is refused: a wrong split gives ids that look
right and are not. Not covered: splits that only embedding models use.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paceline.errors import ModelError, UnsupportedError

if TYPE_CHECKING:
    import tokenizers

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = _SUFFIX + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _TAIL
_QWEN2 = _SUFFIX + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _TAIL
_QWEN35 = _SUFFIX + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+", rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
_SLASH_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TEKKEN = _CASED[0] + "|" + _CASED[1] + r"|\p{N}" + _SLASH_TAIL
_GPT4O = _CASED[0] + _SUFFIX + "?|" + _CASED[1] + _SUFFIX + r"?|\p{N}{1,3}" + _SLASH_TAIL
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
)


@dataclass(frozen=True, slots=True)
class SplitKind:
    """How text becomes the words that merges work on: each pattern cuts what the ones before it left."""

    patterns: tuple[str, ...]
    whole_words: bool = False  # a word that is itself in the vocabulary is taken without merging
    add_bos: bool = False  # when the file does not say
    nfc: bool = False  # text is brought to Unicode normal form C first


_DIGITS_GPT2 = SplitKind((r"\p{N}", _GPT2))
SPLIT_KINDS: dict[str, SplitKind] = {
    # "default" is what converters wrote before splits had names: GPT-2's, as for GPT-2 and its kin
    **dict.fromkeys(("default", "gpt-2", "gpt2", "phi-2", "mpt", "olmo"), SplitKind((_GPT2,))),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"), _DIGITS_GPT2),
    **dict.fromkeys(
        ("llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral", "lfm2"),
        SplitKind((_LLAMA3,), whole_words=True, add_bos=True),
    ),
    **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe"), SplitKind((_LLAMA3,))),
    "glm4": SplitKind((_LLAMA3,), whole_words=True),
    "qwen2": SplitKind((_QWEN2,), nfc=True),
    "deepseek-r1-qwen": SplitKind((_QWEN2,)),
    "qwen35": SplitKind((_QWEN35,), nfc=True),
    "tekken": SplitKind((_TEKKEN,), whole_words=True, add_bos=True),
    **dict.fromkeys(("gpt-4o", "llama4"), SplitKind((_GPT4O,))),
    "deepseek-v3": SplitKind(_DEEPSEEK3),
}


def split_kind(name: str) -> SplitKind:
    """The split a GGUF file names. Raises UnsupportedError for a name whose pattern is not known here."""
    try:
        return SPLIT_KINDS[name]
    except KeyError:
        raise UnsupportedError(
            "the tokenizer of this GGUF file splits text in a way that paceline does not know",
            seen=f"tokenizer.ggml.pre = {name!r}",
            expected=", ".join(sorted(SPLIT_KINDS)),
            fix="use the model's Hugging Face folder, whose tokenizer.json carries the pattern itself",
        ) from None


def build_byte_level(tokens: Sequence[str], merges: Sequence[str], kind: SplitKind) -> tokenizers.Tokenizer:
    """A `tokenizers` object over `tokens` (id = place in the list) and `merges` ("left right", best first).

    Raises ModelError when a merge has no two parts or a part that is not in the vocabulary.
    """
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

    pairs: list[tuple[str, str]] = []
    for rank, merge in enumerate(merges):
        # A part never holds a plain space (the alphabet writes it as Ġ), so the one space is the border.
        left, _, right = merge.partition(" ")
        if not left or not right:
            raise ModelError(
                "a merge of the vocabulary has no two parts", seen=f"merge {rank}: {merge!r}", fix="use another file"
            )
        pairs.append((left, right))
    vocab = {token: index for index, token in enumerate(tokens)}
    try:
        model = models.BPE(vocab=vocab, merges=pairs, ignore_merges=kind.whole_words)
    except Exception as error:  # the library raises a bare Exception
        raise ModelError(
            "the merges do not fit the vocabulary", seen=str(error), fix="use another file of this model"
        ) from error
    backend = Tokenizer(model)
    if kind.nfc:
        backend.normalizer = normalizers.NFC()
    splits: list[Any] = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in kind.patterns]
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    return backend


def _alphabet() -> dict[int, int]:
    """Code point of the stand-in character -> byte. GPT-2's rule: printable Latin-1 as it is, the rest from 256 up."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    table, spare = {}, 0x100
    for byte in range(256):
        if byte in printable:
            table[byte] = byte
        else:
            table[spare] = byte
            spare += 1
    return table


BYTE_ALPHABET = _alphabet()


def byte_level_bytes(piece: str) -> bytes:
    """What a piece in the byte alphabet stands for; a piece with other characters is taken as plain text."""
    try:
        return bytes([BYTE_ALPHABET[ord(char)] for char in piece])
    except KeyError:
        return piece.encode("utf-8")
