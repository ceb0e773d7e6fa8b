"""SentencePiece BPE (Llama 1 and 2, Mistral, Gemma) as a `tokenizers` object, from pieces, scores and types.

SentencePiece knows no merges: again and again it joins the neighbouring pair whose union is the vocabulary's
best-scored piece, leftmost first (Kudo and Richardson 2018, and the library's bpe_model.cc). A list of merges, one for
every way to cut every piece in two, ordered by the piece's score, does the same. User-defined pieces are cut out of the
text before that, longest first; control pieces never come from text; characters that are no piece become bytes.

Not covered: Unigram models, text normalisation other than the spaces, unused pieces as stepping stones of a merge.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import TYPE_CHECKING

from paceline.errors import ModelError

if TYPE_CHECKING:
    import tokenizers

SPACE = "\u2581"  # ▁ stands for a space inside pieces


class PieceType(IntEnum):
    """Types of vocabulary entries, with the numbers that SentencePiece and GGUF share."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


def merges_of(pieces: Sequence[str], scores: Sequence[float], types: Sequence[int]) -> list[tuple[str, str]]:
    """All pairs of normal pieces whose union is a normal piece, best union first."""
    normal = [index for index, kind in enumerate(types) if kind == PieceType.NORMAL]
    known = {pieces[index] for index in normal}
    normal.sort(key=lambda index: -scores[index])  # stable: equal scores keep the vocabulary's order
    merges: list[tuple[str, str]] = []
    for index in normal:
        piece = pieces[index]
        for cut in range(1, len(piece)):
            # The right half is the rarer piece, so it is looked up first.
            if (right := piece[cut:]) in known and (left := piece[:cut]) in known:
                merges.append((left, right))
    return merges


def build_sentencepiece(
    pieces: Sequence[str], scores: Sequence[float], types: Sequence[int], *, prefix_space: bool
) -> tokenizers.Tokenizer:
    """A `tokenizers` object over `pieces` (id = place in the list).

    `prefix_space`: a space is put before text, also where text goes on after a special token, as the models' own
    `tokenizer.json` files do it. Raises ModelError when the three lists differ in length.
    """
    from tokenizers import Tokenizer, models, normalizers

    if not len(pieces) == len(scores) == len(types):
        raise ModelError(
            "the vocabulary's lists differ in length",
            seen=f"{len(pieces)} pieces, {len(scores)} scores, {len(types)} types",
            fix="use another file of this model",
        )
    vocab = {piece: index for index, piece in enumerate(pieces)}
    unknown = next((pieces[index] for index, kind in enumerate(types) if kind == PieceType.UNKNOWN), None)
    model = models.BPE(
        vocab=vocab,
        merges=merges_of(pieces, scores, types),
        unk_token=unknown,
        fuse_unk=True,
        byte_fallback=PieceType.BYTE in types,
    )
    backend = Tokenizer(model)
    spaces = normalizers.Replace(" ", SPACE)
    backend.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), spaces]) if prefix_space else spaces
    return backend


def add_typed_tokens(backend: tokenizers.Tokenizer, pieces: Sequence[str], types: Sequence[int]) -> None:
    """Mark what is cut out of text whole: control and unknown tokens (when asked for) and user-defined ones (always).

    They are looked for in the text as it came, so their spaces are spaces (in `pieces` too), not `▁`.
    """
    from tokenizers import AddedToken

    special = (PieceType.CONTROL, PieceType.UNKNOWN)
    tokens = []
    for index, kind in enumerate(types):
        if (kind in special or kind == PieceType.USER_DEFINED) and pieces[index]:
            tokens.append(AddedToken(pieces[index], normalized=False, special=kind in special))
    backend.add_tokens(tokens)


def sentencepiece_bytes(piece: str) -> bytes:
    """What a piece stands for in text: `▁` is a space, `<0xNN>` one byte."""
    if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
        try:
            return bytes([int(piece[3:5], 16)])
        except ValueError:
            pass
    return piece.replace(SPACE, " ").encode("utf-8")
