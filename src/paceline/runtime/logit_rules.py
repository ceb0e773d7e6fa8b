"""What changes logits before a draw: bias, minimum length, grammar masks and penalties, in this order, in place.

The rules of one row, built at admission. Token counts are kept up to date as tokens come, so that a draw costs the
number of different tokens seen and not the vocabulary. Draft tokens are pushed for the position that assumes them and
popped again.

    bias          logit += logit_bias[id]
    min_tokens    ids that would stop the request = -inf while its output is shorter (unless a grammar allows no other)
    mask          ids a grammar forbids = -inf
    repetition    ids of prompt or output: positive logits are divided by the penalty, others multiplied (Keskar 2019)
    frequency     logit -= penalty * times in the output
    presence      logit -= penalty for ids of the output

Shapes: V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from paceline.contracts.step import RowAdmit, SampleInputs
from paceline.runtime.kernels.dispatch import on_logits

_FIRST = np.zeros(1, dtype=np.int64)


class TokenCounts:
    """Different ids of a sequence in order of appearance, with how often each is in the output."""

    __slots__ = ("_size", "_slots", "counts", "ids")

    def __init__(self, prompt: np.ndarray, output: Sequence[int]) -> None:
        first = np.unique(prompt)
        self._size = len(first)
        self._slots = {token: at for at, token in enumerate(first.tolist())}
        self.ids = np.empty(max(64, 2 * self._size), dtype=np.int64)
        self.ids[: self._size] = first
        self.counts = np.zeros(len(self.ids), dtype=np.float32)
        for token in output:
            self.push(token)

    def push(self, token: int) -> None:
        at = self._slots.get(token)
        if at is None:
            at = self._slots[token] = self._size
            if at == len(self.ids):
                self.ids = np.concatenate([self.ids, np.empty_like(self.ids)])
                self.counts = np.concatenate([self.counts, np.zeros_like(self.counts)])
            self.ids[at] = token
            self.counts[at] = 0
            self._size += 1
        self.counts[at] += 1

    def truncate(self, tokens: Sequence[int], size: int) -> None:
        """Undo pushes: `tokens` are the last ones pushed, `size` the number of ids before them."""
        for token in tokens:
            self.counts[self._slots[token]] -= 1
        for at in range(size, self._size):
            del self._slots[int(self.ids[at])]
        self._size = size

    def __len__(self) -> int:
        return self._size


class RowRules:
    """The rules of one row. `of` gives None for a row without any."""

    def __init__(self, admit: RowAdmit, device: torch.device) -> None:
        s = admit.sampling
        self.device = device
        self.min_tokens = s.min_tokens if admit.stop_token_ids else 0
        self.stop_ids = torch.tensor(admit.stop_token_ids, dtype=torch.int64, device=device)
        self.bias_ids = torch.tensor(list(s.logit_bias), dtype=torch.int64, device=device)
        self.bias = torch.tensor(list(s.logit_bias.values()), dtype=torch.float32, device=device)
        self.repetition = s.repetition_penalty
        self.frequency = s.frequency_penalty
        self.presence = s.presence_penalty
        self.counts: TokenCounts | None = None
        if self.repetition != 1.0 or self.frequency or self.presence:
            prompt = admit.token_ids[: admit.num_prompt]
            # without a repetition penalty the prompt changes nothing
            prompt = prompt if self.repetition != 1.0 else prompt[:0]
            self.counts = TokenCounts(prompt, admit.token_ids[admit.num_prompt :].tolist())

    @classmethod
    def of(cls, admit: RowAdmit, device: torch.device) -> RowRules | None:
        rules = cls(admit, device)
        quiet = rules.counts is None and not len(rules.bias) and not rules.min_tokens
        return None if quiet else rules

    def push(self, tokens: Sequence[int]) -> None:
        """Tokens that are now part of the output."""
        if self.counts is not None:
            for token in tokens:
                self.counts.push(token)

    def apply(self, logits: torch.Tensor, position: int, drafts: Sequence[int], mask: np.ndarray | None) -> None:
        """Change logits [V] of output `position`, the output being followed by `drafts`; `mask` [ceil(V / 32)] uint32
        has a bit for each id that is allowed."""
        if len(self.bias):
            logits.index_add_(0, self.bias_ids, self.bias)
        if position < self.min_tokens and (mask is None or self._leaves_any(mask, len(logits))):
            logits.index_fill_(0, self.stop_ids, -math.inf)
        if mask is not None:
            keep_allowed(logits[None], _FIRST, mask[None])
        if self.counts is not None:
            size = len(self.counts)
            self.push(drafts)
            self._penalise(logits, self.counts)
            self.counts.truncate(drafts, size)

    def _leaves_any(self, mask: np.ndarray, vocab_size: int) -> bool:
        """Does a grammar allow any id besides those that stop? If not, it is complete, however short the output is."""
        left = mask.copy()
        stops = self.stop_ids.cpu().numpy()
        np.bitwise_and.at(left, stops >> 5, ~(np.uint32(1) << (stops & 31).astype(np.uint32)))
        whole, rest = divmod(vocab_size, 32)
        return bool(left[:whole].any() or (rest and left[whole] & np.uint32((1 << rest) - 1)))

    def _penalise(self, logits: torch.Tensor, seen: TokenCounts) -> None:
        ids = torch.from_numpy(seen.ids[: len(seen)].copy()).to(self.device)
        counts = torch.from_numpy(seen.counts[: len(seen)].copy()).to(self.device)
        values = logits[ids]
        if self.repetition != 1.0:
            values = torch.where(values > 0, values / self.repetition, values * self.repetition)
        values -= self.frequency * counts
        values -= self.presence * (counts > 0)
        logits[ids] = values


def keep_allowed(logits: torch.Tensor, rows: np.ndarray, masks: np.ndarray) -> torch.Tensor:
    """Rows [n] of logits [S, V]: what their masks [n, ceil(V / 32)] do not allow becomes -inf. Returns the largest
    logits of before, [n]; NaN where one is."""
    found: torch.Tensor = on_logits("keep_allowed", logits.device.type)(logits, rows, masks)
    return found


def masks_by_row(inputs: SampleInputs | None) -> dict[int, int]:
    """Row -> the first of its masks among `inputs.masks`; those of its other draws follow."""
    if inputs is None:
        return {}
    rows = inputs.mask_row.tolist()
    return {row: len(rows) - 1 - at for at, row in enumerate(reversed(rows))}


def masked_draws(mask_row: np.ndarray, draw_row: np.ndarray) -> np.ndarray:
    """The draw of each mask, [masks] int64: `draw_row` [S] is the row of each draw; rows come in any order among masks,
    the draws of one in theirs."""
    masked = np.zeros(draw_row.max() + 1, dtype=bool)
    masked[mask_row] = True
    draws = np.flatnonzero(masked[draw_row])
    if not np.array_equal(draw_row[draws], mask_row):  # not in the order of the draws, as an engine has them
        draws = draws[np.argsort(draw_row[draws], kind="stable")][np.argsort(np.argsort(mask_row, kind="stable"))]
    return draws
