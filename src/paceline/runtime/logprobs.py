"""Log-probabilities as reported: of the raw logits, before bias, masks, penalties and temperature.

Shapes: A asked positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from paceline.contracts.request import TokenLogprob


def report(
    logits: torch.Tensor, tokens: Sequence[int], num_top: Sequence[int], extra: Sequence[tuple[int, ...]]
) -> list[TokenLogprob]:
    """What is known about each token: its log-probability, rank, the best alternatives and ids asked for by name.

    `logits` [A, V] float32 raw; `tokens`, `num_top` and `extra` have A entries. The rank counts ids with a strictly
    larger logit, so equal logits share one. Alternatives are sorted by value, then id.
    """
    if not len(tokens):
        return []
    norm = torch.logsumexp(logits, dim=1, keepdim=True)
    chosen = logits.gather(1, torch.tensor(tokens, device=logits.device)[:, None])
    ranks = ((logits > chosen).sum(dim=1) + 1).tolist()
    values = (chosen - norm)[:, 0].tolist()
    k = min(max(num_top), logits.shape[1])
    top_values, top_ids = logits.topk(k, dim=1) if k else (chosen[:, :0], chosen[:, :0])
    tops, names = (top_values - norm).tolist(), top_ids.tolist()
    found = []
    for at, token in enumerate(tokens):
        best = sorted(zip(names[at], tops[at], strict=True), key=lambda pair: (-pair[1], pair[0]))
        ids = extra[at]
        named = (logits[at, list(ids)] - norm[at]).tolist() if ids else []
        found.append(
            TokenLogprob(token, values[at], ranks[at], tuple(best[: num_top[at]]), tuple(zip(ids, named, strict=True)))
        )
    return found
