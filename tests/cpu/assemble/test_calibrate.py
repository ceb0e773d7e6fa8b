from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from tests.fakes.model_folder import write_model
from tests.fakes.tiny_models import tiny_executor

from paceline.assemble.calibrate import StepTimer, calibrate, calibrate_core
from paceline.assemble.core import build_core
from paceline.assemble.step_cost import load_calibration, save_calibration, timed_here
from paceline.config import Environment, load_config
from paceline.cost.cells import Limits, cell_plan, filling_plans, grid, held_out
from paceline.errors import ConfigError


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_a_real_executor_runs_every_cell_again_and_again(family: str) -> None:
    executor = tiny_executor(family, max_rows=4, max_tokens=32)
    layout = executor.caps.layout
    limits = Limits(max_rows=4, max_tokens=32, max_model_len=64, num_blocks=layout.num_blocks, block_size=4)
    cells = [*grid(limits), *held_out(limits)]
    timer = StepTimer(executor)
    for plan in [*filling_plans(cells, layout, limits), *(cell_plan(cell, layout, 0) for cell in cells)]:
        assert timer.ms(plan) >= 0.0
    tries = timer.rounds(cells, 3, None)
    assert len(tries) == len(cells)
    assert all(len(times) == 3 and min(times) > 0.0 for times in tries)


def test_what_was_timed_is_saved_and_the_next_engine_begins_with_it(tmp_path: Path) -> None:
    folder, home = write_model(tmp_path / "model"), tmp_path / "home"
    config = load_config(
        flags={"model": str(folder), "max_num_seqs": 2, "max_num_batched_tokens": 24, "num_threads": 1}
    )
    environment = Environment(home=home)
    found, path = calibrate(config, rounds=3, environment=environment)
    assert path.parent == home / "calibrations"
    assert load_calibration(path) == found
    assert {cell.held_out for cell in found.cells} == {False, True}
    assert all(cell.ms > 0.0 and cell.tries == 3 and cell.predicted_ms > 0.0 for cell in found.cells)
    assert found.load_gbps > 0.0
    built = build_core(config, environment=environment)
    try:
        assert built.cost_key == found.key
        assert timed_here(home, config, built.spec, built.device, built.dtype) == found
        assert str(path) in built.cost_source
        assert (built.device.gflops, built.device.memory_gbps) == (found.gflops, found.memory_gbps)
        assert built.prior.step_ms(found.cells[0].shape) > 0.0
        again = calibrate_core(built, rounds=3)
        assert [cell.cell for cell in again.cells] == [cell.cell for cell in found.cells]
    finally:
        built.core.close()


def test_calibrating_again_looks_at_the_device_and_not_at_the_file(tmp_path: Path) -> None:
    folder, environment = write_model(tmp_path / "model"), Environment(home=tmp_path / "home")
    options = {"model": str(folder), "max_num_seqs": 2, "max_num_batched_tokens": 24, "num_threads": 1}
    found, path = calibrate(load_config(flags=options), rounds=3, environment=environment)
    save_calibration(path, msgspec.structs.replace(found, gflops=1e-6, memory_gbps=1e-6))
    again, _ = calibrate(load_config(flags=options), rounds=3, environment=environment)
    assert again.gflops > 1e-6
    assert again.memory_gbps > 1e-6


def test_an_engine_of_other_kernels_takes_no_rates_of_these(tmp_path: Path) -> None:
    folder, environment = write_model(tmp_path / "model"), Environment(home=tmp_path / "home")
    config = load_config(
        flags={"model": str(folder), "max_num_seqs": 2, "max_num_batched_tokens": 24, "num_threads": 1}
    )
    found, path = calibrate(config, rounds=3, environment=environment)
    other = msgspec.structs.replace(found.key, kernels="attention of another kind")
    save_calibration(path, msgspec.structs.replace(found, key=other, gflops=1e-6))
    built = build_core(config, environment=environment)
    built.core.close()
    assert built.device.gflops > 1e-6


def test_a_median_needs_three_rounds(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="too few rounds"):
        calibrate(load_config(flags={"model": "dummy:llama"}), rounds=2, environment=Environment(home=tmp_path))
