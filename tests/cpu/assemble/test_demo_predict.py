"""The demo's ladder foretold: a small experiment whose points are simulated again with the same requests."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest
from tests.fakes.model_folder import write_model

from paceline.assemble.calibrate import calibrate
from paceline.assemble.sim_engine import simulated_engine
from paceline.assemble.step_cost import load_calibration, save_calibration
from paceline.cli.demo_ladder import write_ladder
from paceline.cli.demo_predict import Foretold, foretell, plan_lines, table
from paceline.config import load_config
from paceline.contracts.artefact import Estimate
from paceline.errors import ConfigError
from paceline.lab.experiment import load_experiment
from paceline.lab.experiment.results import ExperimentResult, NodeResult, PointResult
from paceline.lab.workload import TargetSize

SIZES = {"dtype": "float32", "max_num_seqs": 4, "max_model_len": 2048, "max_num_batched_tokens": 600}


@pytest.fixture(scope="module")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"), max_position_embeddings=2048)


@pytest.fixture(scope="module")
def timed(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("timed") / "calibration.json"
    found, path = calibrate(load_config(flags={"model": str(tiny_llama), **SIZES}), rounds=3, attempts=1, out=file)
    assert path == file
    assert found.attempts == 1
    return file


def experiment(model: Path) -> ExperimentResult:
    """Two nodes as if they had been measured; the second computes with other numbers."""

    def point(node: str, rate: float, status: str = "ok") -> PointResult:
        figures = {"goodput_rps": Estimate(value=rate / 2), "ttft_p50_s": Estimate(value=0.1)}
        return PointResult(id=f"{node}/{rate}", node=node, rate_rps=rate, seed=7, status=status, figures=figures)

    options = {"model": str(model), **SIZES, "enable_prefix_caching": True}
    nodes = (
        NodeResult(name="base", options=options),
        NodeResult(name="int8", parent="base", options={**options, "quantization": "int8", "activation_dtype": "int8"}),
    )
    points = (point("base", 2.0), point("base", 4.0), point("base", 8.0, status="invalid"), point("int8", 2.0))
    return ExperimentResult(name="ladder", nodes=nodes, points=points, best="base")


def test_points_are_simulated_with_their_own_requests(tiny_llama: Path, timed: Path, tmp_path: Path) -> None:
    size = TargetSize(ttft_s=0.1, ttft_tokens=128, tpot_s=0.01, parallel=4.0, max_model_len=2048)
    loaded = load_experiment(write_ladder(size, 3.0, {"model": str(tiny_llama)}, tmp_path))
    result = experiment(tiny_llama)
    found = list(foretell(loaded, result, timed))
    assert [(f.node, f.rate_rps) for f in found] == [("base", 2.0), ("base", 4.0)]
    assert found[0].measured["goodput_rps"] == 1.0
    assert math.isnan(found[0].measured["tpot_p50_s"])
    # a model of a few thousand weights keeps every target: what is offered is good
    assert found[0].simulated["goodput_rps"] == pytest.approx(2.0, rel=0.4)
    assert found[1].simulated["goodput_rps"] > found[0].simulated["goodput_rps"]
    assert 0 < found[0].simulated["ttft_p50_s"] < 0.1
    assert str(list(foretell(loaded, result, timed))) == str(found)

    lines = plan_lines(loaded, result, timed, tmp_path)
    assert lines[0].startswith("plan for this machine: one device")
    assert "measured: 2 good requests/s" in lines[-1]
    assert (tmp_path / "lengths.csv").read_text().startswith("input,output\n")


def test_the_table_says_how_far_they_lie_apart() -> None:
    measured = {"goodput_rps": 2.0, "ttft_p50_s": 0.1, "tpot_p50_s": math.nan}
    simulated = {"goodput_rps": 2.2, "ttft_p50_s": 0.05, "tpot_p50_s": 0.01}
    lines = table([Foretold("base", 1.5, measured, simulated)])
    assert len(lines) == 3
    assert lines[1].split() == ["base", "at", "1.5/s", "2,", "2.2", "100,", "50", "-,", "10"]
    assert lines[2].split()[-7:] == ["10%", "of", "1", "50%", "of", "1", "-"]
    assert len({len(line) for line in lines}) == 1


def test_a_calibration_of_other_activations_is_refused(tiny_llama: Path, timed: Path, tmp_path: Path) -> None:
    config = load_config(flags={"model": str(tiny_llama), **SIZES})
    simulated_engine(config, calibration=timed)
    found = load_calibration(timed)
    other = msgspec.structs.replace(found, key=msgspec.structs.replace(found.key, activations="int8"))
    save_calibration(tmp_path / "other.json", other)
    with pytest.raises(ConfigError, match="something else") as raised:
        simulated_engine(config, calibration=tmp_path / "other.json")
    assert raised.value.seen == "activation_dtype int8"
