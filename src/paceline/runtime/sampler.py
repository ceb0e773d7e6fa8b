"""From logits to token ids. The idea: draw first, then ask the filters, because few draws are ever turned down.

The order of operations on one row of logits:

    1. logit_bias    2. min_tokens    3. grammar mask    4. penalties          (logit_rules.py, in place)
    5. greedy: the largest logit wins, ties go to the lowest id; nothing below applies. So do top_k = 1, and a
       temperature so low that it may be 0 in float32 (`SamplingParams.greedy`).
    6. temperature: z = (logit - largest logit) / temperature
    7. top_k: keep ids whose z is at least the k-th largest
    8. top_p: keep an id when the probability strictly above it, in what step 7 left, is below top_p
    9. min_p: keep an id whose probability is at least min_p times the best one's
    10. typical_p: by distance of -log p from the entropy of what is left, keep ids until their mass reaches typical_p
    11. the kept id with the largest z + noise wins (noise.py), ties go to the lowest id

Probabilities are those of the whole vocabulary (of the top_k ids when top_k is on), not of the ids looked at. Every
filter is a function of the values alone: ids with equal logits are kept or dropped together.

Steps 7 to 9 keep what lies above a threshold, so the best-scoring id that passes them is the answer, and the common
cases need neither a sort of the vocabulary nor exact noise for all of it:

    narrow   rows with filters: the 128 largest are looked at; done when everything the filters keep is among them
    dense    other rows: a cheap upper bound of z + noise over all ids leaves a few hundred ids to score exactly
    wide     what neither settles (typical_p, a large top_k, many draws turned down): one row at a time, sorted

A row's answer never depends on the other rows: everything is done per row or per number, and sums are taken over
fixed pieces of a row. Rules 6 to 10 follow Fan et al. 2018 (top-k), Holtzman et al. 2019 (top-p), Nguyen et al. 2024
(min-p) and Meister et al. 2022 (typical).

Shapes: S draws, s of them in a group, V vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from paceline.runtime import noise
from paceline.runtime.kernels.dispatch import on_logits
from paceline.runtime.kernels.reference.draws import slabs
from paceline.runtime.kernels.reference.largest import PIECE, ids_of_pieces

NARROW = 128  # ids the narrow way looks at
PIECES_SCORED = 4  # pieces the dense way scores exactly
DENSE_TRIES = 4  # draws top_p may turn down before the wide way takes over
NEVER = -math.inf


@dataclass(slots=True)
class Draws:
    """What S draws need besides logits: numpy arrays of S entries."""

    greedy: np.ndarray  # bool; top_k = 1 counts as greedy
    temperature: np.ndarray  # float32, GREEDY_BELOW or more; 1 where greedy
    top_k: np.ndarray  # int64, 0 = off
    top_p: np.ndarray  # float64, 1 = off
    min_p: np.ndarray  # float64, 0 = off
    typical_p: np.ndarray  # float64, 1 = off
    multiplier: np.ndarray  # int32, noise.position_keys
    offset: np.ndarray  # int32


def draw(logits: torch.Tensor, draws: Draws) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids [S] (int64) and largest logit [S] of processed logits [S, V] (float32, overwritten).

    Where the largest logit is not finite (a NaN, an infinity, or nothing allowed) the token means nothing.
    """
    largest, token = best(logits)
    sampled = ~draws.greedy
    if sampled.any():
        filtered = (draws.top_k > 0) | (draws.top_p < 1.0) | (draws.min_p > 0.0)
        typical = draws.typical_p < 1.0
        sampled &= np.isfinite(largest.cpu().numpy())
        ways = _Ways(logits, largest, draws)
        token[torch.from_numpy(sampled).to(token.device)] = -1
        ways.narrow(token, sampled & filtered & ~typical & (draws.top_k <= NARROW))
        ways.dense(token, (token.cpu().numpy() < 0) & ~typical & (draws.top_k == 0))
        ways.wide(token, token.cpu().numpy() < 0)
    return token, largest


def best(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Largest value [S] and its lowest id [S] (int64) of logits [S, V] float32. A row with a NaN has the value NaN."""
    found: tuple[torch.Tensor, torch.Tensor] = on_logits("largest", logits.device.type)(logits)
    return found


class _Ways:
    """Three ways to the same answer, over z. Each writes the tokens it is sure of and leaves the others at -1."""

    def __init__(self, logits: torch.Tensor, largest: torch.Tensor, draws: Draws) -> None:
        device = logits.device

        def column(array: np.ndarray) -> torch.Tensor:
            return torch.from_numpy(array).to(device)[:, None]  # [S, 1]

        on_logits("draw_scale", device.type)(logits, largest, torch.from_numpy(draws.temperature).to(device))
        self.z = logits
        self.vocab_size = logits.shape[1]
        self.top_k, self.top_p = column(draws.top_k), column(draws.top_p)
        self.min_z = column(np.log(draws.min_p, out=np.full(len(draws.min_p), NEVER), where=draws.min_p > 0))
        self.multiplier, self.offset = column(draws.multiplier), column(draws.offset)
        self.typical_p = draws.typical_p

    def narrow(self, token: torch.Tensor, which: np.ndarray) -> None:
        """From the NARROW largest; sure where the filters keep nothing beyond them."""
        rows = self._rows(which)
        if not len(rows):
            return
        z = self.z if len(rows) == len(self.z) else self.z[rows]
        values, ids = z.topk(min(NARROW, self.vocab_size), dim=1)  # [s, K], descending
        limited = self.top_k[rows] > 0
        cut = values.gather(1, (self.top_k[rows] - 1).clamp(min=0, max=values.shape[1] - 1))
        cut = torch.where(limited, cut, NEVER)
        mass = values.double().exp_()
        if bool((self.top_p[rows] < 1.0).any()):
            total = torch.where(limited, (mass * (values >= cut)).sum(1, keepdim=True), self._mass(rows))
            above = mass.cumsum(1) - mass
            kept = (above < self.top_p[rows] * total).sum(1, keepdim=True).clamp(min=1)
            cut = torch.maximum(cut, values.gather(1, kept - 1))
        cut = torch.maximum(cut, self.min_z[rows].float())
        scores = torch.where(values >= cut, self._scores(values, ids, rows), NEVER)
        found, _ = _winner(scores, ids)
        if values.shape[1] < self.vocab_size:  # else everything was looked at
            found = torch.where(values[:, -1] < cut[:, 0], found, -1)
        token[rows] = found

    def dense(self, token: torch.Tensor, which: np.ndarray) -> None:
        """From the pieces with the highest bounds; sure where the winner is above all other bounds."""
        rows = self._rows(which)
        if not len(rows):
            return
        bounds = on_logits("draw_bounds", self.z.device.type)(self.z, rows, self.multiplier, self.offset)
        pieces = min(PIECES_SCORED, bounds.shape[1])
        top, piece = bounds.topk(min(pieces + 1, bounds.shape[1]), dim=1)
        rest = top[:, pieces] if top.shape[1] > pieces else torch.full_like(top[:, 0], NEVER)
        ids = ids_of_pieces(piece[:, :pieces], self.vocab_size)
        values = self.z[rows[:, None], ids]
        scores = torch.where(values >= self.min_z[rows], self._scores(values, ids, rows), NEVER)
        nucleus = self.top_p[rows, 0] < 1.0
        limit = torch.zeros_like(self.top_p[rows])
        if bool(nucleus.any()):
            limit[nucleus] = self.top_p[rows[nucleus]] * self._mass(rows[nucleus])
        undecided = torch.arange(len(rows), device=rows.device)
        for _ in range(DENSE_TRIES):
            found, score = _winner(scores[undecided], ids[undecided])
            sure = score > rest[undecided]
            accept = sure.clone()
            ask = sure & nucleus[undecided]
            if bool(ask.any()):
                at = undecided[ask]
                floor = self.z[rows[at], found[ask]][:, None]
                accept[ask] = (self._mass(rows[at], floor) < limit[at])[:, 0]
            token[rows[undecided[accept]]] = found[accept]
            scores[undecided] = scores[undecided].masked_fill(ids[undecided] == found[:, None], NEVER)
            undecided = undecided[sure & ~accept]
            if not len(undecided):
                return

    def wide(self, token: torch.Tensor, which: np.ndarray) -> None:
        """From the whole row, sorted; always sure."""
        for row in np.flatnonzero(which).tolist():
            values, ids = self.z[row].sort(descending=True)
            top_k, top_p = int(self.top_k[row, 0]), float(self.top_p[row, 0])
            if 0 < top_k < len(values):
                values = values[values >= values[top_k - 1]]
            mass = values.double().exp_()
            above = mass.cumsum(0) - mass
            kept = max(1, int((above < top_p * mass.sum()).sum())) if top_p < 1.0 else len(values)
            values = values[values >= torch.maximum(values[kept - 1], self.min_z[row].float())]
            keep = torch.isfinite(values)
            if self.typical_p[row] < 1.0:
                keep &= _typical(values.double(), float(self.typical_p[row]))
            ids, at = ids[: len(values)], self._rows(np.arange(len(which)) == row)
            scores = torch.where(keep, self._scores(values[None], ids[None], at), NEVER)
            token[row] = _winner(scores, ids[None])[0][0]

    def _rows(self, which: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.flatnonzero(which)).to(self.z.device)

    def _scores(self, values: torch.Tensor, ids: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """z + noise, float64 like ids [s, n]."""
        return noise.gumbel(ids.to(torch.int32), self.multiplier[rows], self.offset[rows]).add_(values)

    def _mass(self, rows: torch.Tensor, floor: torch.Tensor | None = None) -> torch.Tensor:
        """Sum of exp(z) over the row, or over what is strictly above `floor` [s, 1]; float64 [s, 1]."""
        sums = []
        at = 0
        for part in slabs(rows, self.vocab_size):
            z = self.z.index_select(0, part)
            mass = z.exp()
            if floor is not None:
                mass.masked_fill_(z <= floor[at : at + len(part)], 0.0)
            at += len(part)
            sums.append(_piece_sum(mass))
        return torch.cat(sums)[:, None]


def _piece_sum(x: torch.Tensor) -> torch.Tensor:
    """Sum of each row, float64 [S]; the order of additions is fixed, whatever S is and however many threads run."""
    whole = x.shape[1] // PIECE * PIECE
    pieces = x[:, :whole].view(len(x), -1, PIECE).sum(dim=2)
    return torch.cat([pieces, x[:, whole:]], dim=1).double().cumsum(1)[:, -1]


def _winner(scores: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Id with the largest score of each row and that score; equal scores go to the lowest id."""
    score = scores.amax(dim=1)
    return torch.where(scores == score[:, None], ids, torch.iinfo(ids.dtype).max).amin(dim=1), score


def _typical(values: torch.Tensor, typical_p: float) -> torch.Tensor:
    """Locally typical ids among values [n] (float64, unnormalised): mask [n]."""
    logp = torch.log_softmax(values, dim=0)
    p = logp.exp()
    entropy = -torch.where(p > 0, p * logp, 0.0).sum()
    distance = (-logp - entropy).abs()
    ordered, order = distance.sort()
    mass = p[order]
    kept = max(1, int((mass.cumsum(0) - mass < typical_p).sum()))
    return distance <= ordered[kept - 1]
