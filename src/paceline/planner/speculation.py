"""How many tokens to draft at a given batch: what a measured acceptance curve is worth against a longer step.

    speedup(B, K) = AL(K) t(B) / (t(B (K + 1)) + K d(B))

AL(K) tokens a step yields with K drafts (1 = none accepted), t the target's step, d one step of the drafter. AL must be
measured per K: later drafts are accepted less often than the first, so the independent estimate
E(K) = (1 - a^(K+1)) / (1 - a) with a from K = 1 is an upper bound, and is labelled so. Source of E: Y. Leviathan and
others, "Fast inference from transformers via speculative decoding", ICML 2023.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from paceline.errors import ConfigError

Basis = Literal["measured curve", "upper bound: independent acceptance"]


class DraftChoice(msgspec.Struct, frozen=True, kw_only=True):
    """What is best at one batch size. `num_drafts` 0: drafting does not pay."""

    num_rows: int
    num_drafts: int
    speedup: float
    basis: Basis
    speedups: tuple[float, ...]  # of K = 1, 2, ...


def independent_length(acceptance: float, num_drafts: int) -> float:
    """Tokens per step if each draft were accepted independently: an upper bound for real drafters."""
    if not 0 <= acceptance <= 1:
        raise ConfigError("an acceptance rate is out of range", seen=acceptance, expected="0 to 1")
    return float(sum(acceptance**k for k in range(num_drafts + 1)))


def check_curve(lengths: Sequence[float]) -> None:
    """Raise ConfigError unless `lengths` can be tokens per step for K = 1, 2, ..."""
    if not lengths or any(not 1 <= length <= k + 1 for k, length in enumerate(lengths, start=1)):
        raise ConfigError(
            "not an acceptance curve",
            seen=", ".join(f"{length:g}" for length in lengths) or "nothing",
            expected="tokens per step with 1, 2, 3 ... drafts: each between 1 and drafts + 1, for example 1.9,2.7,3.4",
        )


def choose_drafts(
    num_rows: int,
    lengths: Sequence[float],
    step_ms: Callable[[int], float],
    *,
    draft_ms: float = 0.0,
    basis: Basis = "measured curve",
) -> DraftChoice:
    """The K with the greatest speedup for `num_rows` running rows.

    `lengths` are tokens per step for K = 1, 2, ...; `step_ms(n)` is a step that computes n tokens over these rows;
    `draft_ms` one step of the drafter.
    """
    check_curve(lengths)
    plain = step_ms(num_rows)
    speedups = tuple(
        length * plain / (step_ms(num_rows * (k + 1)) + k * draft_ms) for k, length in enumerate(lengths, start=1)
    )
    best = max(range(len(speedups)), key=lambda i: speedups[i])
    pays = speedups[best] > 1
    return DraftChoice(
        num_rows=num_rows,
        num_drafts=best + 1 if pays else 0,
        speedup=speedups[best] if pays else 1.0,
        basis=basis,
        speedups=speedups,
    )
