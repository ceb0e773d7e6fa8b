from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from paceline.cli.main import app
from paceline.contracts.ports import StepShape
from paceline.cost import Calibration, CalibrationKey, StepCost, TimedCell, decode_shape, encode_calibration
from paceline.lab.artefact import is_intact, read_plan, read_run

CARD = ["sim", "--model", "llama-3.1-8b", "--device", "h100-sxm"]


def sim(*options: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, [*CARD, *options])
    return done.exit_code, done.output


def test_a_simulation_prints_what_a_measurement_prints_and_leaves_its_artefact(tmp_path: Path) -> None:
    out = tmp_path / "run"
    code, text = sim(
        "--workload", "steady", "--num-requests", "30", "--replicas", "2", "--seed", "3", "--out", str(out),
        "--set", "max_num_seqs=16", "--slo", "ttft=500ms,tpot=30ms",
    )  # fmt: skip
    assert code == 0, text
    for words in ("goodput", "TTFT", "TPOT", "requests by replica", "simulated", "prices: counts over"):
        assert words in text
    assert is_intact(out)
    run = read_run(out)
    assert run.info.target.kind == "simulation"
    assert run.info.config["max_num_seqs"] == 16
    assert run.info.fingerprint["simulation"]["replicas"] == 2
    assert "paceline sim" in run.info.fingerprint["command"]
    assert run.info.fingerprint["simulation"]["card"]["link"] == "NVLink"
    assert (out / "lint.json").is_file()
    assert len(run.records) == len(read_plan(out)) > 30
    assert not [c for c in run.metrics.cautions if c.invalidates]
    again, _ = sim("--out", str(out))
    assert again == 1  # results are never written over
    done = CliRunner().invoke(app, ["report", str(out)])
    assert done.exit_code == 0, done.output
    assert (out / "report.html").stat().st_size > 10_000


def test_a_trace_is_replayed_whole_at_the_asked_rate(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    lines = [
        f'{{"timestamp": {1000 * i}, "input_length": {1024 + i}, "output_length": 5, "hash_ids": [1, {i % 3 + 2}]}}'
        for i in range(40)
    ]
    trace.write_text("\n".join(lines) + "\n")
    code, text = sim(
        "--workload", str(trace), "--rate", "4", "--slo", "ttft=1s", "--replicas", "2", "--router", "prefix-affinity",
        "--out", str(tmp_path / "run"),
    )  # fmt: skip
    assert code == 0, text
    run = read_run(tmp_path / "run")
    assert len(run.records) == 40
    assert run.info.span_s == pytest.approx(10.0, rel=0.01)
    assert run.metrics.whole.cached_tokens > 20 * 512  # the block that all have, and every third's own


class FlatPrior:
    """Every step takes 10 ms."""

    def step_ms(self, shape: StepShape) -> float:
        return 10.0


def test_timed_prices_are_taken_from_a_calibration_file(tmp_path: Path) -> None:
    key = CalibrationKey(
        device="cuda h", num_cores=1, num_threads=1, model="m", revision="r", dtype="bfloat16", weights="w",
        activations="float", kv_bytes_per_token=2.0 * 32 * 8 * 128 * 2, numerics="fast", kernels="k",
        paceline="0", torch="0",
    )  # fmt: skip
    cell = TimedCell(cell="a row", shape=decode_shape(1, 64), ms=10.0, spread=0.0, tries=3)
    prices = StepCost.from_prior(FlatPrior()).prices
    made = Calibration(
        key=key, prices=prices, cells=(cell,), probe_ms=(10.0, 10.0), load_gbps=1.0, gflops=1.0, memory_gbps=1.0
    )
    file = tmp_path / "calibration.json"
    file.write_bytes(encode_calibration(made))
    out = tmp_path / "run"
    code, text = sim("--calibration", str(file), "--workload", "steady", "--num-requests", "5", "--out", str(out))
    assert code == 0, text
    assert "prices: 1 sizes of step timed for m on cuda h" in text
    tpot = read_run(out).metrics.whole.latency["tpot"].p50.value
    assert tpot == pytest.approx(0.010, rel=1e-6)
    code, text = sim("--calibration", str(file), "--set", "dtype=float32")
    assert code == 2
    assert "of something else" in text
    assert "dtype bfloat16, kv_bytes_per_token 131072" in " ".join(text.split())
    code, text = sim("--calibration", str(tmp_path / "none.json"))
    assert code == 2
    assert "cannot be read" in text


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--router", "nearest"], "no router policy"),
        (["--device", "h1000"], "no such device"),
        (["--fail", "0"], "--fail was not understood"),
        (["--set", "max_num_seqs"], "--set was not understood"),
        (["--set", "kv_cache_dtype=fp8"], "no KV cache is kept in this type"),
        (["--set", "quantization=int8"], "rounded to 8 bits are not simulated"),
        (["--workload", "matrix"], "one workload is simulated at a time"),
    ],
)
def test_what_cannot_be_is_bad_input(options: list[str], words: str) -> None:
    code, text = sim(*options)
    assert code == 2
    assert words in text


def test_the_model_is_that_of_the_file_unless_one_is_named(tmp_path: Path) -> None:
    file = tmp_path / "serve.toml"
    file.write_text('[model]\nmodel = "qwen2.5-7b"\n')
    card = ["sim", "--config", str(file), "--device", "h100-sxm", "--num-requests", "2"]
    for more, name in (((), "qwen2.5-7b"), (("--model", "llama-3.1-8b"), "llama-3.1-8b")):
        out = tmp_path / name
        done = CliRunner().invoke(app, [*card, *more, "--out", str(out)])
        assert done.exit_code == 0, done.output
        assert read_run(out).info.target.model == name


def test_prefill_and_decode_apart_say_what_the_links_did(tmp_path: Path) -> None:
    out = tmp_path / "run"
    code, text = sim(
        "--replicas", "2", "--prefill-replicas", "1", "--num-requests", "5", "--kv-link", "1,20", "--out", str(out)
    )
    assert code == 0, text
    assert "KV between replicas: links busy" in text
    apart = read_run(out).info.fingerprint["simulation"]["prefill_and_decode"]
    assert apart["num_prefill"] == 1
    assert apart["link"] == {"gbps": 1.0, "latency_us": 20.0}
    assert apart["kv_bytes_per_token"] == 131_072


def test_an_engine_may_be_divided_over_devices(tmp_path: Path) -> None:
    out = tmp_path / "run"
    code, text = sim(
        "--tensor-parallel-size", "2", "--context-parallel-size", "2", "--num-requests", "5", "--out", str(out)
    )
    assert code == 0, text
    assert "TP2 CP2" in text
    divided = read_run(out).info.fingerprint["simulation"]["devices_per_replica"]
    assert "tp=2" in divided
    assert "cp=2" in divided


def test_an_autoscaled_run_keeps_its_history_and_the_report_draws_it(tmp_path: Path) -> None:
    out = tmp_path / "run"
    code, text = sim(
        "--autoscale", "1-3", "--scale-period", "0.5", "--scale-target", "2", "--rate", "6", "--duration", "8",
        "--cold-start", "process=1,weights=2", "--scale-up-budget", "--slo", "ttft=5s", "--out", str(out),
    )  # fmt: skip
    assert code == 0, text
    for words in ("replicas wanted: ", "replica-hours", "scale-up budget: "):
        assert words in text
    run = read_run(out)
    assert run.info.fingerprint["simulation"]["cold_start_phases_s"] == {"process": 1.0, "weights": 2.0}
    assert run.info.fingerprint["simulation"]["scaling"]["max_replicas"] == 3
    assert run.server_metrics[0]["common"]["replicas_ready"] == 1
    assert CliRunner().invoke(app, ["report", str(out)]).exit_code == 0
    assert "Replicas over time" in (out / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--autoscale", "3"], "--autoscale was not understood"),
        (["--scale-up-budget"], "nothing scales up"),
        (["--cold-start", "weights=x"], "--cold-start was not understood"),
        (["--prefill-replicas", "1"], "no replica is left to decode"),
        (["--prefill-replicas", "1", "--replicas", "2", "--kv-link", "fast"], "--kv-link was not understood"),
        (["--prefill-replicas", "1", "--replicas", "2", "--autoscale", "1-2"], "do not scale"),
    ],
)
def test_fleets_that_cannot_be_are_bad_input(options: list[str], words: str) -> None:
    code, text = sim("--num-requests", "2", *options)
    assert code == 2
    assert words in " ".join(text.split())
