"""KL divergence and top-1 agreement of two servers on the same text, by position. Pure.

KL(P || Q) at one position, P the reference and Q the candidate, both known only by their largest probabilities. Let C
be the tokens that both told, and r_P, r_Q the mass that each gives to all others. Then

    low  = sum over C of p log(p / q)  +  r_P log(r_P / r_Q)

is the KL of the two distributions with everything outside C merged into one token. By the log-sum inequality (Cover and
Thomas, Elements of Information Theory, 2.7) merging never raises KL: `low` is a lower bound, and it is the figure that
is shown. How much is missing depends on tokens nobody told of. If none of them has a log ratio log(p / q) above D, then

    KL <= sum over C of p log(p / q)  +  r_P D

The page shows this bound for D = the largest |log(p / q)| seen among the told tokens of the whole comparison: it is a
bound under that assumption, not without it. r_P is shown too: where it is small, the two are close whatever D is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from paceline.contracts.artefact import Estimate
from paceline.errors import LabError
from paceline.lab.quality.clusters import mean_of_clusters
from paceline.lab.quality.distributions import Distribution
from paceline.lab.stats.proportion import share_estimate

BUCKETS = ((0, 1000), (1000, 4000), (4000, 8000))
_LEAST = 1e-9  # a rest below this is rounding


class Point(msgspec.Struct, frozen=True, array_like=True):
    """One compared position."""

    position: int  # of the token that is predicted, from the start of its text
    low: float  # nats
    told: float  # sum over the told tokens, nats: may be negative on its own
    rest_p: float  # mass of the reference outside the told tokens
    ratio: float  # largest |log(p / q)| among the told tokens
    top1: bool  # both like the same token best


class Divergence(msgspec.Struct, frozen=True, kw_only=True):
    """All positions of one bucket."""

    bucket: str
    num_positions: int
    num_texts: int
    kl: Estimate  # nats, the lower bound; interval over texts
    kl_upper: float | None = None  # under the assumption about D
    rest: float | None = None  # mean mass of the reference outside the told tokens
    top1: Estimate = Estimate()


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Two servers on the same texts."""

    reference: str
    candidate: str
    method: str  # prompt_logprobs, echo, generated
    num_top: int
    assumed_ratio: float  # D
    buckets: tuple[Divergence, ...]  # "all" first
    notes: tuple[str, ...] = ()


def compare_position(p: Distribution, q: Distribution, position: int) -> Point:
    """Raises LabError where the two do not speak of the same token."""
    if p.token != q.token:
        raise LabError(
            "the two servers cut the text into different tokens",
            seen=f"position {position}: {p.token!r} and {q.token!r}",
            fix="compare servers of one vocabulary",
        )
    both = p.top.keys() & q.top.keys()
    told, mass_p, mass_q, ratio = 0.0, 0.0, 0.0, 0.0
    for token in both:
        log_p, log_q = p.top[token], q.top[token]
        mass = math.exp(log_p)
        told += mass * (log_p - log_q)
        mass_p += mass
        mass_q += math.exp(log_q)
        if mass > _LEAST:
            ratio = max(ratio, abs(log_p - log_q))
    rest_p, rest_q = max(0.0, 1.0 - mass_p), max(_LEAST, 1.0 - mass_q)
    rest = rest_p * math.log(rest_p / rest_q) if rest_p > _LEAST else 0.0
    return Point(position, max(0.0, told + rest), told, rest_p, ratio, p.best == q.best)


def compare_text(p: Sequence[Distribution], q: Sequence[Distribution], first: int = 1) -> list[Point]:
    """`first`: position of the first entry's token in its text."""
    if len(p) != len(q):
        raise LabError("the two servers cut the text into different tokens", seen=f"{len(p)} and {len(q)}")
    return [compare_position(a, b, first + i) for i, (a, b) in enumerate(zip(p, q, strict=True))]


def summarise(
    texts: Sequence[Sequence[Point]], *, reference: str, candidate: str, method: str, num_top: int
) -> Comparison:
    """All positions, then the buckets that hold any. `texts`: the points of each text; a text is one sample of the
    interval, since its positions are not independent. Raises LabError if there is nothing."""
    points = [point for text in texts for point in text]
    if not points:
        raise LabError("no position was compared", fix="give texts of two tokens or more")
    largest = max(point.ratio for point in points)
    buckets = [_bucket("all", texts, largest)]
    for low, high in (*BUCKETS, (BUCKETS[-1][1], None)):
        inside = [[p for p in text if p.position >= low and (high is None or p.position < high)] for text in texts]
        if any(inside):
            name = f"{_thousands(low)}-{_thousands(high)}" if high is not None else f"{_thousands(low)} and on"
            buckets.append(_bucket(name, inside, largest))
    return Comparison(
        reference=reference,
        candidate=candidate,
        method=method,
        num_top=num_top,
        assumed_ratio=largest,
        buckets=tuple(buckets),
    )


def _share_of_clusters(texts: Sequence[Sequence[bool]]) -> Estimate:
    """Positions of one text are not independent, so texts are drawn; where nearly all agree that shows no spread, and
    Wilson's interval over the positions is the wider one. The wider bound on each side holds."""
    wilson = share_estimate(sum(map(sum, texts)), sum(map(len, texts)))
    drawn = mean_of_clusters([[float(hit) for hit in text] for text in texts])
    lows = [each.lo for each in (wilson, drawn) if each.lo is not None]
    highs = [each.hi for each in (wilson, drawn) if each.hi is not None]
    return msgspec.structs.replace(
        wilson,
        lo=max(0.0, min(lows)),
        hi=min(1.0, max(highs)),
        n_eff=float(len(texts)),
        method=f"wider of Wilson and bootstrap 95 % over {len(texts)} texts",
    )


def _thousands(tokens: int) -> str:
    return f"{tokens // 1000}k" if tokens else "0"


def _bucket(name: str, texts: Sequence[Sequence[Point]], largest: float) -> Divergence:
    held = [text for text in texts if text]
    points = [point for text in held for point in text]
    rest = sum(point.rest_p for point in points) / len(points)
    kl = mean_of_clusters([[point.low for point in text] for text in held], unit="nats")
    top1 = _share_of_clusters([[point.top1 for point in text] for text in held])
    return Divergence(
        bucket=name,
        num_positions=len(points),
        num_texts=len(held),
        kl=kl,
        kl_upper=max(kl.value or 0.0, sum(point.told for point in points) / len(points) + rest * largest),
        rest=rest,
        top1=top1,
    )
