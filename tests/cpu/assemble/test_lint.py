"""A configuration on this machine: the kernels decide how weights are held, and the fix changes that."""

import pytest
from tests.fakes.model_folder import write_model

from paceline.assemble.lint import Beside, lint_config
from paceline.assemble.lint.configuration import resolve
from paceline.config import load_config

SETTINGS = {"model": "smollm2-135m", "dtype": "float32", "num_threads": 1, "max_num_seqs": 8}


def test_a_model_of_floats_on_this_machine_has_prices_and_nothing_to_widen(tmp_path):
    folder = write_model(tmp_path / "tiny")
    one = resolve(load_config(None, {"model": str(folder), "num_threads": 1}))
    assert one.engine.weights is None
    assert one.prices.decode(4, 64).value > 0
    assert one.prices.decode(8, 64).value >= one.prices.decode(1, 64).value
    assert one.engine.max_num_seqs == one.knobs.max_num_seqs
    result = lint_config(None, {"model": str(folder), "num_threads": 1}, Beside(slo="tpot=1000s"))
    assert "PL101" in result.judged
    assert result.findings == ()


@pytest.mark.model("smollm2-135m")
@pytest.mark.parametrize("wrong", [{"quantization": "none"}, {"numerics": "reference"}])
def test_a_quantised_file_that_is_widened_and_the_option_that_keeps_it(wrong):
    from paceline.assemble.inspect import kernel_table

    if dict(row[:2] for row in kernel_table("cpu", "float32", "fast"))["gguf_linear"] == "none":
        pytest.skip("no kernel of this machine multiplies such blocks")
    findings = {f.code: f for f in lint_config(None, SETTINGS | wrong).findings}
    fix = findings["PL103"].fix.options
    assert set(fix) == set(wrong)
    assert "PL103" not in {f.code for f in lint_config(None, SETTINGS | wrong | fix).findings}


@pytest.mark.model("smollm2-135m")
def test_a_simulation_of_widened_weights_says_so_and_with_the_fix_is_faster(tmp_path):
    from paceline.assemble.inspect import kernel_table
    from paceline.assemble.lint import lint_folder
    from paceline.assemble.sim import simulate, simulated_engine
    from paceline.lab.artefact import write_run
    from paceline.lab.workload import load_spec

    if dict(row[:2] for row in kernel_table("cpu", "float32", "fast"))["gguf_linear"] == "none":
        pytest.skip("no kernel of this machine multiplies such blocks")
    stream = {"arrival": {"kind": "closed", "slots": 1, "requests": 4}, "input": 32, "output": 8}
    seen, took = {}, {}
    for name, settings in (("wide", SETTINGS | {"quantization": "none"}), ("kept", SETTINGS)):
        run = simulate(simulated_engine(load_config(None, settings)), load_spec({"stream": [stream]}))
        write_run(tmp_path / name, run.info, run.records)
        (result,) = lint_folder(tmp_path / name)
        assert "PL103" in result.judged
        seen[name] = "PL103" in {f.code for f in result.findings}
        took[name] = run.totals.virtual_s
    assert seen == {"wide": True, "kept": False}
    assert took["kept"] < took["wide"]
