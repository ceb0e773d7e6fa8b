"""The engine's own scheduler in the simulator: what the lint predicts from a configuration it finds in the run, and the
fix clears both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paceline.assemble.lint import Beside, lint_config, lint_folder
from paceline.assemble.lint.configuration import resolve
from paceline.assemble.sim import simulate, simulated_engine
from paceline.config import load_config
from paceline.contracts.lint import Finding, LintResult
from paceline.lab.artefact import read_run, write_run
from paceline.lab.workload import load_spec

MODEL: dict[str, Any] = {"model": "llama-3.1-8b", "max_model_len": 4096}
CARD = "h100-sxm"


def one(result: LintResult, code: str) -> Finding | None:
    assert code in result.judged, result.skipped
    return next((finding for finding in result.findings if finding.code == code), None)


def simulated(settings: dict[str, Any], workload: dict[str, Any], folder: Path) -> LintResult:
    engine = simulated_engine(load_config(None, settings), card=CARD)
    run = simulate(engine, load_spec(workload), seed=1)
    write_run(folder, run.info, run.records, plan=run.plan)
    (result,) = lint_folder(folder)
    return result


def figure(folder: Path, name: str, at: str) -> float:
    value = getattr(read_run(folder).metrics.whole.latency[name], at).value
    assert isinstance(value, float)
    return value


@pytest.fixture(scope="module")
def target_s() -> float:
    """TPOT between a decode step of 8 rows and one of 96."""
    prices = resolve(load_config(None, MODEL), CARD).prices
    return (prices.decode(8, 82).value + prices.decode(96, 82).value) / 2e3


def test_a_batch_that_is_predicted_too_big_is_too_big_and_the_fix_makes_it_fit(target_s, tmp_path):
    wide = {**MODEL, "max_num_seqs": 96, "max_num_batched_tokens": 1024}
    predicted = one(lint_config(None, wide, Beside(device=CARD, workload=_file(tmp_path, target_s))), "PL101")
    assert predicted is not None
    workload = _burst(target_s)
    measured = one(simulated(wide, workload, tmp_path / "wide"), "PL101")
    assert measured is not None
    narrow = {**wide, **measured.fix.options}
    assert narrow["max_num_seqs"] < 96
    assert one(simulated(narrow, workload, tmp_path / "narrow"), "PL101") is None
    assert figure(tmp_path / "narrow", "tpot", "p90") <= target_s < figure(tmp_path / "wide", "tpot", "p90")
    fits = _file(tmp_path, target_s)
    assert one(lint_config(None, narrow, Beside(device=CARD, workload=fits)), "PL101") is None


def test_a_rate_that_is_predicted_to_saturate_does_and_the_fix_is_steady(tmp_path):
    settings = {**MODEL, "max_num_seqs": 16}
    stream = {"arrival": {"kind": "poisson", "rate": 120.0}, "input": 200, "output": 40}
    load = {"duration_s": 2.0, "slo": {"default": {"ttft_s": 1.0}}, "stream": [stream]}
    file = tmp_path / "load.toml"
    file.write_text(
        "duration_s = 2\n[slo.default]\nttft_s = 1.0\n[[stream]]\ninput = 200\noutput = 40\n"
        'arrival = { kind = "poisson", rate = 120.0 }\n'
    )
    beside = Beside(device=CARD, workload=str(file))
    predicted = one(lint_config(None, settings, beside), "PL212")
    assert predicted is not None
    drowned = one(simulated(settings, load, tmp_path / "drowned"), "PL212")
    assert drowned is not None
    assert "saturated" in drowned.sentence
    rate = min(predicted.fix.workload["rate"], drowned.fix.workload["rate"])
    calm = {**load, "stream": [{**stream, "arrival": {"kind": "poisson", "rate": 0.7 * rate}}]}
    assert one(simulated(settings, calm, tmp_path / "calm"), "PL212") is None
    assert figure(tmp_path / "calm", "ttft", "p50") < 0.5 * figure(tmp_path / "drowned", "ttft", "p50")
    assert one(lint_config(None, settings, Beside(device=CARD, workload=str(file), rate=0.7 * rate)), "PL212") is None


def _burst(target_s: float) -> dict[str, Any]:
    """More than the rows carry, with answers long enough that prompts do not matter."""
    stream = {"arrival": {"kind": "poisson", "rate": 120.0}, "input": 32, "output": 100}
    return {"num_requests": 144, "slo": {"default": {"tpot_s": target_s, "share": 0.9}}, "stream": [stream]}


def _file(folder: Path, target_s: float) -> str:
    file = folder / "burst.toml"
    file.write_text(
        f"num_requests = 144\n[slo.default]\ntpot_s = {target_s}\nshare = 0.9\n[[stream]]\ninput = 32\noutput = 100\n"
        'arrival = { kind = "poisson", rate = 120.0 }\n'
    )
    return str(file)
