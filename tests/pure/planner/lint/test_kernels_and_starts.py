"""PL103, quantised but not faster; PL108, starts beyond the budget."""

import msgspec
import pytest
from tests.pure.lab.metrics.logs import info, steady_log
from tests.pure.planner.lint.worlds import config, found, run, stored

from paceline.assemble.lint.stored import experiment_facts, run_facts
from paceline.contracts.artefact import Estimate
from paceline.contracts.lint import Severity
from paceline.contracts.workload import SloClass
from paceline.lab.experiment.results import EdgeResult, ExperimentResult, NodeResult, OptionChange, Ratio, StartResult
from paceline.planner.lint import WeightFacts, lint

WIDE = WeightFacts(
    stored="gguf:Q4_1", stored_bytes=92 << 20, held_bytes=513 << 20, why="quantization=none asks for floats",
    instead={"quantization": "auto"},
)  # fmt: skip
SERVER = {"weight_dtype": "gguf:Q4_1", "stored_weight_bytes": 92 << 20}


def test_weights_that_are_widened_are_found_and_kept_as_stored_they_are_not():
    (finding,) = found(config(engine={"weights": WIDE}), "PL103")
    assert finding.fix.options == {"quantization": "auto"}
    assert "5.6 times" in finding.sentence
    kept = WeightFacts(stored="gguf:Q4_1", stored_bytes=92 << 20, held_bytes=96 << 20)
    assert found(config(engine={"weights": kept}), "PL103") == []


def test_a_run_tells_by_what_its_server_said_of_its_weights():
    wide = run(steady_log(4), fingerprint={"server": {**SERVER, "weight_bytes": 513 << 20}})
    (finding,) = found(wide, "PL103")
    assert "gguf:Q4_1" in finding.sentence
    kept = run(steady_log(4), fingerprint={"server": {**SERVER, "weight_bytes": 92 << 20}})
    assert found(kept, "PL103") == []
    assert "PL103" in lint(run(steady_log(4))).skipped


@pytest.mark.parametrize(("slower", "seen"), [(1.6, 1), (0.7, 0)])
def test_a_run_after_quantising_against_the_one_before(slower, seen):
    slo = SloClass(ttft_s=0.2, tpot_s=0.012)
    before = stored(steady_log(300), info(slo, end=30_000.0, name="floats", config={"model.quantization": "none"}))
    log = steady_log(300, gap=10.0 * slower, ttft=50.0 * slower)
    after = stored(log, info(slo, end=30_000.0, name="int8", config={"model.quantization": "int8"}))
    findings = found(run_facts(after, against=(before,)), "PL103")
    assert len(findings) == seen
    for finding in findings:
        assert finding.severity is Severity.ERROR
        assert finding.fix.options == {"model.quantization": "none"}
        assert finding.subject == "floats -> int8"


def experiment(answer: str, value: float) -> ExperimentResult:
    ratio = Ratio(figure="goodput_rps", parent=2.0, child=2.0 * value, answer=answer,
                  ratio=Estimate(value=value, lo=value - 0.05, hi=value + 0.05, unit="x"))  # fmt: skip
    change = OptionChange(name="activation_dtype", group="quantisation", before="float", after="int8")
    edge = EdgeResult(parent="base", child="int8", group="quantisation", changes=(change,), ratios=(ratio,))
    start = StartResult(kind="cold", ready_s=8.0, first_token_s=9.0, phases={"weights": 6.0, "torch": 2.0})
    return ExperimentResult(name="e", nodes=(NodeResult(name="base", starts=(start,)),), edges=(edge,))


def test_a_step_of_an_experiment_that_got_slower():
    (finding,) = found(experiment_facts(experiment("worse", 0.8)), "PL103")
    assert "0.8 times" in finding.sentence
    assert finding.fix.options == {"activation_dtype": "float"}
    assert found(experiment_facts(experiment("better", 1.2)), "PL103") == []


def test_a_start_beyond_the_budget_names_its_longest_phase():
    result = experiment("same", 1.0)
    (finding,) = found(experiment_facts(result, start_budget_s=5.0), "PL108")
    assert "weights" in finding.sentence
    assert finding.subject == "cold"
    assert found(experiment_facts(result, start_budget_s=10.0), "PL108") == []
    assert "--start-budget" in lint(experiment_facts(result)).skipped["PL108"]


def test_a_run_whose_server_the_lab_started():
    head = info(end=60_000.0)
    head.start = {"kind": "warm", "ready_s": 3.0, "first_token_s": 3.4, "server": {"weights": 2.0}}
    slow = run_facts(stored(steady_log(4), head), start_budget_s=2.0)
    assert [f.subject for f in found(slow, "PL108")] == ["warm"]
    assert found(msgspec.structs.replace(slow, start_budget_s=4.0), "PL108") == []


def test_a_configuration_whose_weights_alone_take_longer_than_the_budget():
    (finding,) = found(config(engine={"load_s": 12.0}, start_budget_s=10.0), "PL108")
    assert finding.severity is Severity.ERROR
    assert found(config(engine={"load_s": 3.0}, start_budget_s=10.0), "PL108") == []
    assert "paceline calibrate" in lint(config(start_budget_s=10.0)).skipped["PL108"]
