"""A small matrix as it is stored: a workload that passes, one that fails, one that could not be measured. Made up."""

from __future__ import annotations

from typing import Any

from paceline.contracts.artefact import Answer, Caution
from paceline.lab.experiment.bench import MatrixResult, MatrixRow

FIGURES: dict[str, Any] = {
    "num_requests": 60, "offered_rps": 2.0, "goodput_rps": 1.9, "attainment": 0.95, "output_tokens_per_s": 64.0,
    "prefix_hit": None, "outcomes": {"ok": 58, "http_error": 2, "timeout": 0}, "ttft_p50_s": 0.2, "ttft_p95_s": None,
    "tpot_p50_s": 0.03, "tpot_p95_s": 0.05, "e2e_p50_s": 1.2, "e2e_p95_s": 2.0,
}  # fmt: skip
THIN = Caution(code="thin_percentile", sentence="p99 refused.")
VOID = Caution(code="client_bound", sentence="The client was late.", invalidates=True)


def sample_row(name: str, **fields: Any) -> MatrixRow:
    given = {"path": name, "answer": Answer.PASS, "sentence": "pass", "figures": FIGURES, "cautions": (THIN,)} | fields
    return MatrixRow(name=name, description=f"the {name} one", **given)


FAILED = MatrixRow(name="tools", status="failed", reason="no tools: 400", answer=Answer.INVALID)


def sample_matrix(first: str = "steady") -> MatrixResult:
    low = FIGURES | {"attainment": 0.4}
    burst = sample_row("burst", answer=Answer.FAIL, sentence="too late", figures=low, cautions=(THIN, VOID))
    return MatrixResult(server="mock 1", model="toy", created="2026", rows=(sample_row(first), burst, FAILED))
