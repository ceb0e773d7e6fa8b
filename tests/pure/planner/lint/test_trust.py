"""PL205 two changes at once, PL206 the client, PL209 hidden retries."""

import msgspec
import pytest
from tests.pure.lab.metrics.logs import chunk, info, record, steady_log
from tests.pure.planner.lint.worlds import config, found, run, stored

from paceline.assemble.lint.stored import experiment_facts, run_facts
from paceline.contracts.artefact import ClientHealth
from paceline.contracts.lint import Severity
from paceline.contracts.workload import SloClass
from paceline.lab.experiment.results import EdgeResult, ExperimentResult, OptionChange
from paceline.planner.lint import Change, PairFacts, lint

ROWS = Change(name="scheduling.max_num_seqs", group="batch", before=16, after=32)
TYPE = Change(name="model.dtype", group="quantisation", before="float32", after="bfloat16")
BASE = {"scheduling.max_num_seqs": 16, "model.quantization": "none", "server.port": 8000, "server.usage_log": None}


def pair(*changes: Change) -> PairFacts:
    return PairFacts(before="a", after="b", changes=changes)


def test_two_groups_between_two_configurations_and_one():
    (finding,) = found(config(pairs=(pair(ROWS, TYPE),)), "PL205")
    assert finding.fix.options == {"model.dtype": "float32"}
    assert found(config(pairs=(pair(ROWS),)), "PL205") == []
    assert "--against" in lint(config()).skipped["PL205"]


def against(changed: dict[str, object], **head: object) -> list[str]:
    slo = SloClass(ttft_s=1.0)
    before = stored(steady_log(60), info(slo, name="before", config=BASE))
    after = stored(steady_log(60), info(slo, name="after", config={**BASE, **changed}, **head))
    return [f.sentence for f in found(run_facts(after, against=(before,)), "PL205")]


def test_two_runs_are_compared_by_their_resolved_options():
    (sentence,) = against({"scheduling.max_num_seqs": 32, "model.quantization": "int8"})
    assert "batch: scheduling.max_num_seqs" in sentence
    assert "quantisation: model.quantization" in sentence
    assert against({"server.port": 9000, "server.usage_log": "u", "scheduling.max_num_seqs": 32}) == []


def test_another_workload_is_a_change_as_well():
    (sentence,) = against({"scheduling.max_num_seqs": 32}, spec={"name": "burst"})
    assert "workload" in sentence


def test_a_step_of_an_experiment_keeps_the_group_that_it_declares():
    changes = (
        OptionChange(name="max_num_seqs", group="batch", before=16, after=32),
        OptionChange(name="watermark", group="kv", before=0.01, after=0.02, asked=False),
    )
    edge = EdgeResult(parent="base", child="wide", group="batch", changes=changes)
    (finding,) = found(experiment_facts(ExperimentResult(name="e", edges=(edge,))), "PL205")
    assert finding.fix.options == {"watermark": 0.01}
    single = msgspec.structs.replace(edge, changes=changes[:1])
    assert found(experiment_facts(ExperimentResult(name="e", edges=(single,))), "PL205") == []


def test_a_client_that_sends_late_is_seen_in_the_records():
    late = [record(i, [chunk(i * 100 + 90.0)], plan=i * 100.0, send=i * 100.0 + 60.0) for i in range(40)]
    (finding,) = found(run(late, SloClass(ttft_s=1.0)), "PL206")
    assert finding.severity is Severity.ERROR
    assert {e.name: e.value for e in finding.evidence}["planned to sent, p99"] == pytest.approx(60.0)
    on_time = [record(i, [chunk(i * 100 + 90.0)], plan=i * 100.0) for i in range(40)]
    assert found(run(on_time, SloClass(ttft_s=1.0)), "PL206") == []


def test_a_busy_client_warns_before_it_voids():
    busy = ClientHealth(cpu_share_max=0.9)
    (finding,) = found(run(steady_log(40), client=busy), "PL206")
    assert finding.severity is Severity.WARNING
    assert found(run(steady_log(40), client=ClientHealth(cpu_share_max=0.5)), "PL206") == []


def test_two_records_of_one_request_are_a_retry():
    log = steady_log(20)
    again = record(7, [chunk(3000.0)], plan=700.0, send=2900.0)
    (finding,) = found(run([*log, again]), "PL209")
    assert {e.name: e.value for e in finding.evidence}["attempts of these"] == 2
    assert "request 7" in finding.sentence
    assert found(run(log), "PL209") == []
