"""PL101: from prices, and from a run of a made-up server, which the fix makes meet its target."""

import pytest
from tests.fakes.lab.sample_records import SampleServer
from tests.pure.planner.lint.worlds import config, found, served, with_engine, workload

from paceline.contracts.lint import Severity
from paceline.contracts.workload import SloClass
from paceline.planner.lint import Timed
from paceline.planner.lint.batch import mean_rows

# 10 ms a step and 2 ms a row: 16 rows take 42 ms
SERVER = SampleServer(rows=24, step_ms=10.0, row_ms=2.0, prefill_token_ms=0.01, prefix_cache=False)


def test_a_batch_whose_step_outlasts_the_target_is_found_and_the_fix_clears_it():
    facts = config(slo=(SloClass(name="chat", tpot_s=0.030),))
    (finding,) = found(facts, "PL101")
    assert finding.severity is Severity.ERROR  # 0.9 of 42 ms as well
    assert finding.subject == "chat"
    assert finding.fix.options == {"max_num_seqs": 10}
    assert {e.name: e.value for e in finding.evidence}["TPOT of a full batch"] == pytest.approx(42.0)
    assert "42 -> 30 ms" in finding.fix.gain
    assert found(with_engine(facts, **finding.fix.options), "PL101") == []


def test_a_target_within_the_interval_only_warns_and_one_above_it_is_met():
    (finding,) = found(config(slo=(SloClass(tpot_s=0.040),)), "PL101")
    assert finding.severity is Severity.WARNING  # 37.8 to 46.2 ms
    assert found(config(slo=(SloClass(tpot_s=0.042),)), "PL101") == []


def test_where_one_sequence_is_too_slow_no_option_is_offered():
    (finding,) = found(config(slo=(SloClass(tpot_s=0.011),)), "PL101")
    assert finding.fix.options == {}
    assert "no batch meets" in finding.sentence


def test_a_workload_says_how_long_sequences_are():
    facts = config(workload(input=1000, output=200), (SloClass(tpot_s=0.030),))
    (finding,) = found(facts, "PL101")
    assert {e.name: e.value for e in finding.evidence}["context of a sequence"] == 1100


def test_a_run_that_batched_too_much_is_found_and_a_run_with_the_fix_is_not():
    target = SloClass(tpot_s=0.030, share=0.9)
    slow = served(SERVER, target, rate_rps=14.0, config={"scheduling.max_num_seqs": 24})
    (finding,) = found(slow, "PL101")
    best = finding.fix.options["max_num_seqs"]
    assert 4 <= best <= 10  # 10 rows take 30 ms; steps vary by a tenth
    evidence = {e.name: e.value for e in finding.evidence}
    tpots = sorted(r.tpot_s for r in slow.run.requests if r.tpot_s is not None)
    assert evidence["TPOT p90"] == pytest.approx(1e3 * tpots[int(0.9 * len(tpots)) - 1])
    assert evidence["TPOT of a sequence more, fitted"] == pytest.approx(2.0, rel=0.3)
    fixed = SampleServer(**{**vars(SERVER), "rows": best})
    assert found(served(fixed, target, rate_rps=14.0, config={"scheduling.max_num_seqs": best}), "PL101") == []


def test_tokens_that_are_late_for_another_reason_are_not_the_batch_s():
    slow = SampleServer(**{**vars(SERVER), "step_ms": 60.0, "row_ms": 0.0})
    assert found(served(slow, SloClass(tpot_s=0.030), rate_rps=0.3, num_requests=20), "PL101") == []  # one at a time


def test_mean_rows_is_the_overlap_over_the_length():
    def timed(first, last, replica=None):
        return Timed(id=0, slo_class="c", in_window=True, ok=True, first_s=first, last_s=last, replica=replica)

    rows = mean_rows([timed(0.0, 4.0), timed(1.0, 3.0), timed(3.0, 5.0), timed(None, None), timed(2.0, 2.0)])
    assert rows == pytest.approx([1 + 2 / 4 + 1 / 4, 2.0, 1.5, 1.0, 1.0])
    apart = mean_rows([timed(0.0, 4.0, 0), timed(1.0, 3.0, 1), timed(3.0, 5.0, 0)])
    assert apart == pytest.approx([1 + 1 / 4, 1.0, 1.5])
