"""What a comparison of two runs says: values only, so that pages and terminals can show it."""

from __future__ import annotations

from typing import Any

import msgspec

from paceline.contracts.artefact import Caution, Estimate

BETTER, WORSE, SAME, INCOMPARABLE = "better", "worse", "no difference shown", "not comparable"
_WORDS = {"tokens_per_s": "output tokens/s", "ttft": "TTFT", "tpot": "TPOT", "e2e": "E2E"}


def figure_words(figure: str) -> str:
    """A figure's name within a sentence: `ttft_p50` is "TTFT p50", `quality:sums` is "quality (sums)"."""
    if figure in _WORDS:
        return _WORDS[figure]
    head, _, of = figure.partition(":")
    term, _, mark = head.rpartition("_")
    name = f"{_WORDS[term]} {mark}" if term in _WORDS else head.replace("_", " ")
    return f"{name} ({of})" if of else name


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One option that differs. "(not there)" where one side lacks it."""

    where: str  # config, workload, slo, target, cache, fingerprint
    key: str  # dotted path
    a: Any = None
    b: Any = None


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of both runs. `ratio` is B / A (unit "x"); of quality it is the difference B - A (unit "share")."""

    figure: str  # goodput, attainment, tokens_per_s, ttft_p50, ttft_p95, ..., quality:SET
    higher_is_better: bool
    a: Estimate
    b: Estimate
    ratio: Estimate
    typical: Estimate | None = None  # of the p50s, paired: Hodges-Lehmann ratio of one request's two times
    p: float | None = None  # two-sided, for "no difference"
    p_holm: float | None = None  # adjusted for all figures together: below 0.05 decides
    answer: str = SAME
    not_worse: str = "inconclusive"  # by more than the margin: "not worse", "worse", "inconclusive"
    margin: float = 0.0
    sentence: str = ""


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """B against A."""

    a: str  # names
    b: str
    answer: str  # better, worse, no difference shown, not comparable
    sentence: str
    paired: bool = False
    num_pairs: int = 0
    reasons: tuple[str, ...] = ()  # why not comparable, or why not paired
    lines: tuple[Line, ...] = ()  # goodput first
    differences: tuple[Difference, ...] = ()
    cautions: tuple[Caution, ...] = ()  # of either run, and of one-against-one itself
