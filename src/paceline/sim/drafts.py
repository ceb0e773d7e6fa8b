"""Drafts that are accepted as often as a measured curve says: speculation in simulation, through the engine's own rows.

Answers of a simulation are consecutive ids (`prompts.Answers`), so what comes next is known: of the drafts for one step
the first few are right and the rest wrong, and the executor accepts what is right, as ever. How many are right is a
function of the token they follow, drawn so that with K drafts a step yields AL(K) tokens on average:

    at least k are right with probability AL(k) - AL(k - 1),  AL(0) = 1

Steps are priced with their drafts as positions that are verified. What making drafts costs is not priced.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from paceline.contracts.mix import mix64
from paceline.errors import ConfigError

_WHOLE = float(1 << 64)


class CurveDrafter:
    """`contracts.ports.Drafter`. `lengths`: tokens a step yields with 1, 2, 3 ... drafts."""

    def __init__(self, lengths: Sequence[float], seed: int = 0) -> None:
        steps = [after - before for before, after in zip([1.0, *lengths], lengths, strict=False)]
        if not lengths or not all(0 <= step <= 1 for step in steps):
            raise ConfigError(
                "not an acceptance curve",
                seen=", ".join(f"{length:g}" for length in lengths) or "nothing",
                expected="tokens per step with 1, 2, 3 ... drafts, each 0 to 1 above the one before: 1.7,2.2,2.5",
            )
        if any(later > before for before, later in pairwise(steps)):
            raise ConfigError(
                "later drafts are accepted more often than earlier ones",
                seen=", ".join(f"{length:g}" for length in lengths),
                expected="steps that do not grow",
            )
        self._shares = steps
        self._seed = mix64(seed)

    def propose(self, token_ids: np.ndarray, max_drafts: int) -> Sequence[int]:
        last, num = int(token_ids[-1]), min(max_drafts, len(self._shares))
        drawn = mix64(self._seed ^ last) / _WHOLE
        right = sum(drawn < share for share in self._shares[:num])
        return [last + at if at <= right else (last + at) ^ 1 for at in range(1, num + 1)]
