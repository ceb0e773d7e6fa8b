"""What a comparison of two runs says, for reports. Made up."""

from __future__ import annotations

from typing import Any

from paceline.contracts.artefact import Caution, Estimate
from paceline.lab.artefact.comparison import Comparison, Difference, Line


def line(figure: str, ratio: float, width: float, answer: str, higher: bool = True, **more: Any) -> Line:
    estimate = Estimate(value=ratio, lo=ratio - width, hi=ratio + width, unit="x")
    a = Estimate(value=0.1, lo=0.09, hi=0.11, unit="s" if "_" in figure else "")
    return Line(
        figure=figure, higher_is_better=higher, a=a, b=a, ratio=estimate, answer=answer, p=0.01, p_holm=0.02, **more
    )


COMPARISON = Comparison(
    a="x", b="y", answer="better", sentence="B is better.", paired=True, num_pairs=290,
    lines=(
        line("goodput", 1.2, 0.05, "better"),
        line("ttft_p95", 0.7, 0.1, "better", higher=False),
        line("tpot_p95", 1.3, 0.1, "worse", higher=False),
        line("e2e_p50", 1.0, 0.1, "no difference shown", higher=False),
        Line(figure="quality:basics", higher_is_better=True, a=Estimate(value=0.7), b=Estimate(value=0.68),
             ratio=Estimate(value=-0.02, lo=-0.05, hi=0.01, unit="share")),
    ),
    differences=(Difference(where="config", key="prefix_cache", a=False, b=True),),
    cautions=(Caution(code="one_run_each", sentence="One run of each."),),
)  # fmt: skip
