"""Two scores of one set, item by item: which items flipped, and is the candidate worse by more than a margin. Pure.

The difference of the shares has Newcombe's paired interval; one-sided 5 % on each side decides:

    not worse     the lower bound is at or above -margin
    worse         the upper bound is below -margin
    inconclusive  the interval holds -margin: more items are needed, and how many is told

McNemar's exact p (two-sided, for "no difference") stands beside it. Right answers are what is paired, so for a set of
refusals the two error rates are compared each by itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from paceline.contracts.artefact import Estimate
from paceline.errors import ConfigError
from paceline.lab.quality.score import ItemScore, SetScore
from paceline.lab.stats.distributions import normal_quantile
from paceline.lab.stats.proportion import mcnemar_exact, paired_share_difference

_ONE_SIDED = 0.90  # confidence of a two-sided interval whose each side errs by 5 %
_MOST_NAMED = 20  # flipped items listed


class SetComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Candidate against reference on one set, or on one kind of its items."""

    set: str
    what: str  # right answers, refusing, answering
    num_items: int
    reference: float  # share right
    candidate: float
    both: int
    only_reference: int  # right in the reference, wrong in the candidate
    only_candidate: int
    neither: int
    difference: Estimate  # candidate - reference, one-sided 5 % on each side
    mcnemar_p: float
    margin: float  # share, not points
    worse_p: float  # one-sided, for "worse by more than the margin"
    answer: str  # not worse, worse, inconclusive
    items_needed: int | None = None  # for 80 % power at this margin and discordance
    lost: tuple[str, ...] = ()  # ids of items only the reference has right
    won: tuple[str, ...] = ()
    num_failed_reference: int = 0
    num_failed_candidate: int = 0

    @property
    def sentence(self) -> str:
        d = self.difference
        told = (
            f"{self.set} ({self.what}): {100 * self.reference:.1f} % to {100 * self.candidate:.1f} % on "
            f"{self.num_items} items, {100 * (d.value or 0):+.1f} points [{100 * (d.lo or 0):+.1f}, "
            f"{100 * (d.hi or 0):+.1f}], {self.only_reference} lost and {self.only_candidate} won, "
            f"McNemar p {self.mcnemar_p:.3f}: {self.answer} by more than {100 * self.margin:g} points"
        )
        if self.answer == "inconclusive" and self.items_needed is not None:
            told += f"; about {self.items_needed} items would decide"
        return told.replace("inconclusive by", "inconclusive about worse by")


def compare_scores(reference: SetScore, candidate: SetScore, *, margin: float = 0.02) -> list[SetComparison]:
    """One comparison; for a set of refusals one for each kind of item. `margin`: share, 0.02 is two points. Raises
    ConfigError where the scores do not pair."""
    for name in ("set_sha256", "form", "judge", "max_tokens"):
        if getattr(reference, name) != getattr(candidate, name):
            raise ConfigError(
                "the two scores do not pair",
                seen=f"{name}: {getattr(reference, name)} and {getattr(candidate, name)}",
                expected="the same items, asked and judged the same way",
                fix="score both servers with the same command",
            )
    if not 0 < margin < 1:
        raise ConfigError("the margin is out of range", seen=margin, expected="a share between 0 and 1, as 0.02")
    theirs = {item.id: item for item in candidate.items}
    pairs = [(item, theirs[item.id]) for item in reference.items]
    kinds = {"refuse": "refusing", "answer": "answering", "": "right answers"}
    return [
        _compare(reference.set, what, [pair for pair in pairs if pair[0].expect == expect], margin)
        for expect, what in kinds.items()
        if any(pair[0].expect == expect for pair in pairs)
    ]


def _compare(name: str, what: str, pairs: Sequence[tuple[ItemScore, ItemScore]], margin: float) -> SetComparison:
    lost = [a.id for a, b in pairs if a.right and not b.right]
    won = [a.id for a, b in pairs if b.right and not a.right]
    both = sum(a.right and b.right for a, b in pairs)
    n = len(pairs)
    counts = (both, len(lost), len(won), n - both - len(lost) - len(won))
    found = paired_share_difference(*counts, confidence=_ONE_SIDED)
    answer = "not worse" if found.lo >= -margin else "worse" if found.hi < -margin else "inconclusive"
    return SetComparison(
        set=name,
        what=what,
        num_items=n,
        reference=(both + len(lost)) / n,
        candidate=(both + len(won)) / n,
        both=both,
        only_reference=len(lost),
        only_candidate=len(won),
        neither=counts[3],
        difference=Estimate(
            value=found.value, lo=found.lo, hi=found.hi, n=n, n_eff=n, method="Newcombe paired 90 %", unit="share"
        ),
        mcnemar_p=mcnemar_exact(len(lost), len(won)),
        margin=margin,
        worse_p=worse_p(counts, margin),
        answer=answer,
        items_needed=items_needed((len(lost) + len(won)) / n, margin),
        lost=tuple(lost[:_MOST_NAMED]),
        won=tuple(won[:_MOST_NAMED]),
        num_failed_reference=sum(bool(a.error) for a, _ in pairs),
        num_failed_candidate=sum(bool(b.error) for _, b in pairs),
    )


def worse_p(counts: tuple[int, int, int, int], margin: float) -> float:
    """One-sided p of "the candidate is worse by more than the margin": the level at which the interval's upper bound
    touches -margin. `counts`: both, only reference, only candidate, neither."""
    low, high = 0.0, 1.0 - 1e-9
    if paired_share_difference(*counts, confidence=low).value >= -margin:
        return 0.5 if counts[1] > counts[2] else 1.0  # not even the point lies beyond the margin
    for _ in range(24):
        middle = (low + high) / 2
        if paired_share_difference(*counts, confidence=middle).hi < -margin:
            low = middle
        else:
            high = middle
    return (1 - low) / 2


def items_needed(discordance: float, margin: float) -> int | None:
    """Items of a paired set for 80 % power to show "not worse by more than `margin`", one-sided 5 %, when the arms are
    equal and so large a share of the items differs: (z95 + z80)^2 d / margin^2. None where no item differed."""
    if discordance <= 0:
        return None
    z = normal_quantile(0.95) + normal_quantile(0.80)
    return math.ceil(z * z * discordance / (margin * margin))
