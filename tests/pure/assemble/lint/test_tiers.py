"""PL107: a lower tier slower than prefill, predicted and simulated; computing again is faster, as a fast tier is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.pure.assemble.lint.kit import Case, Measured, numbers

from paceline.assemble.lint import serving_of
from paceline.assemble.sim import simulated_engine, tiering_of
from paceline.config import load_config
from paceline.contracts.lint import Finding, Severity

SETTINGS = {"model": "llama-3.1-8b", "max_model_len": 4096, "max_num_seqs": 4, "memory_utilization": 0.72}
SLOW, FAST = "nvme=500,0.3,100", "dram=64,25,10"
GROUPS = {"groups": 16, "tokens": 2048}  # more than is left of the card beside the model
LOAD: dict[str, Any] = {
    "num_requests": 48, "slo": {"default": {"ttft_s": 1.0}},
    "stream": [{"arrival": {"kind": "closed", "slots": 1}, "input": 32, "output": 2, "prefix": GROUPS}],
}  # fmt: skip


def judged(folder: Path, tier: str, policy: str) -> tuple[Finding | None, Measured]:
    case = Case(folder, SETTINGS, LOAD, "l4", serving_of(tiers=[tier], tier_policy=policy))
    engine = simulated_engine(load_config(None, SETTINGS), card="l4")
    tiering = tiering_of([tier], policy, engine)
    return case.predicted("PL107"), case.measured("PL107", name=f"{policy}-{tier[:4]}", tiering=tiering)


def test_what_comes_back_later_than_it_is_computed_is_found_and_pricing_it_helps(tmp_path: Path) -> None:
    predicted, always = judged(tmp_path, SLOW, "always")
    for finding in (predicted, always.finding):
        assert finding is not None
        assert finding.severity is Severity.WARNING
        assert finding.subject == "nvme"
        assert finding.fix.fleet == {"kv_tier_policy": "priced"}
    assert predicted is not None
    assert always.finding is not None
    assert numbers(predicted)["restoring them"] > numbers(predicted)["computing them"]
    told = numbers(always.finding)
    assert told["restoring, p95"] > told["computing the same tokens, p95"]
    assert told["requests with restored KV, of the records"] == told["requests with restored KV"]
    assert told["tokens that came back, of each"] > 1000
    _, priced = judged(tmp_path, SLOW, "priced")
    assert priced.finding is None or priced.finding.severity is Severity.INFO  # its link is busy with what goes down
    assert priced.seconds < 0.95 * always.seconds


def test_a_tier_that_is_faster_than_prefill_is_left_alone_and_pays(tmp_path: Path) -> None:
    predicted, restored = judged(tmp_path, FAST, "always")
    assert predicted is None
    assert restored.finding is None
    _, never = judged(tmp_path, FAST, "never")
    assert restored.seconds < 0.7 * never.seconds
