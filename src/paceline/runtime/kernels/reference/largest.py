"""The largest logit of each row, by pieces: maxima of short runs first, then one look into the best of them."""

from __future__ import annotations

import torch

PIECE = 128  # ids


def largest(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Largest value [S] and its lowest id [S] (int64) of logits [S, V]. A row with a NaN has the value NaN, and an id
    that means nothing.

    Maxima of pieces first: many times faster on a CPU than one arg-max over the row, and the same answer.
    """
    value, piece = piece_max(logits).max(dim=1)
    ids = ids_of_pieces(piece[:, None], logits.shape[1])
    inside = logits.gather(1, ids).argmax(dim=1, keepdim=True)
    return value, ids.gather(1, inside)[:, 0]


def piece_max(x: torch.Tensor) -> torch.Tensor:
    """Largest value of each piece: [S, V] to [S, ceil(V / PIECE)]."""
    whole = x.shape[1] // PIECE * PIECE
    maxima = x[:, :whole].view(len(x), -1, PIECE).amax(dim=2)
    return maxima if whole == x.shape[1] else torch.cat([maxima, x[:, whole:].amax(dim=1, keepdim=True)], dim=1)


def ids_of_pieces(pieces: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """All ids of pieces [S, n] as [S, n * PIECE]; the last piece of a row repeats the last id."""
    ids = pieces[:, :, None] * PIECE + torch.arange(PIECE, device=pieces.device)
    return ids.flatten(1).clamp_(max=vocab_size - 1)
