"""Goodput, cost and energy gates against runs whose good requests are known."""

import random

import pytest
from tests.fakes.lab.gate_runs import answered, run_of

from paceline.contracts.artefact import Answer, Caution, Estimate
from paceline.errors import LabError
from paceline.lab.gates.cost import cost_gate, energy_gate
from paceline.lab.gates.evidence import Evidence
from paceline.lab.gates.goodput import goodput_gate
from paceline.lab.gates.spec import CostGate, EnergyGate, GoodputGate

RATIO_ONLY = GoodputGate(min_ratio=0.97, attainment=False)


def run_with(good_share, seed=0, n=1000):
    draw = random.Random(seed)
    return run_of([answered(i, ttft_s=0.2 if draw.random() < good_share else 3.0) for i in range(n)])


def answer(base, runs, gate=RATIO_ONLY):
    return goodput_gate(Evidence(runs=runs, base=base), gate)[0]


def test_equal_runs_pass_and_a_loss_fails():
    base = run_with(0.9)
    same = answer([base], [base])
    assert (same.answer, same.estimate.value) == (Answer.PASS, 1.0)
    worse = answer([base], [run_with(0.7, seed=1)])
    assert worse.answer is Answer.FAIL
    assert worse.estimate.hi < 0.97
    assert worse.evidence["worse_p"] < 0.001
    assert answer([base], [run_with(0.9, seed=1)]).answer is not Answer.FAIL


def test_a_small_run_cannot_decide():
    assert answer([run_with(0.9, n=60)], [run_with(0.9, seed=1, n=60)]).answer is Answer.INCONCLUSIVE


def test_two_pairs_are_pooled_and_three_give_the_spread_of_repeats():
    base, run = run_with(0.9), run_with(0.6, seed=1)
    assert answer([base] * 2, [run] * 2).answer is Answer.FAIL
    three = answer([base] * 3, [run, run_with(0.61, seed=2), run_with(0.59, seed=3)])
    assert "pairs of runs" in three.estimate.method
    assert three.answer is Answer.FAIL
    with pytest.raises(LabError, match="do not pair"):
        answer([base] * 2, [run])


def test_runs_of_other_requests_do_not_pair():
    other = run_of([answered(i, ttft_s=0.2) for i in range(5000, 6000)])
    with pytest.raises(LabError, match="do not pair"):
        answer([run_with(0.9)], [other])


def test_without_a_base_the_ratio_is_not_measured():
    assert answer([], [run_with(0.9)]).answer is Answer.NOT_MEASURED


def test_a_base_without_good_requests_gives_no_ratio():
    found = answer([run_with(0.0)], [run_with(0.9)])
    assert found.answer is Answer.INCONCLUSIVE
    assert "no good request" in found.sentence


def test_a_broken_base_is_invalid():
    broken = run_of([answered(0, ttft_s=0.1)], cautions=[Caution(code="c", sentence="s", invalidates=True)])
    assert answer([broken], [run_with(0.9)]).answer is Answer.INVALID


def test_absolute_goodput_and_the_share_of_each_class():
    attainment = Estimate(value=0.95, lo=0.91, hi=0.98)
    run = run_of([answered(0, ttft_s=0.1)], goodput_rps=Estimate(value=4.0, lo=3.5, hi=4.5), attainment=attainment)
    found = goodput_gate(Evidence(runs=[run]), GoodputGate(min_ratio=None, min_rps=3.0))
    assert [r.answer for r in found] == [Answer.PASS, Answer.PASS]
    found = goodput_gate(Evidence(runs=[run]), GoodputGate(min_ratio=None, min_rps=5.0, attainment=False))
    assert [r.answer for r in found] == [Answer.FAIL]


def test_cost_turns_the_interval_round():
    run = run_of([], good_tokens_per_s=Estimate(value=100.0, lo=80.0, hi=125.0, unit="tokens/s"))
    (found,) = cost_gate(Evidence(runs=[run]), CostGate(price_per_hour=3.6, max_per_million_good_tokens=13.0))
    assert found.estimate.value == pytest.approx(10.0)  # 3.6 / 3600 / 100 * 1e6
    assert (found.estimate.lo, found.estimate.hi) == (pytest.approx(8.0), pytest.approx(12.5))
    assert found.answer is Answer.PASS
    (dear,) = cost_gate(Evidence(runs=[run]), CostGate(price_per_hour=3.6, max_per_million_good_tokens=7.0))
    assert dear.answer is Answer.FAIL
    nothing = run_of([], good_tokens_per_s=Estimate(value=0.0, lo=0.0, hi=0.0))
    (found,) = cost_gate(Evidence(runs=[nothing]), CostGate(price_per_hour=1, max_per_million_good_tokens=1))
    assert found.answer is Answer.INCONCLUSIVE
    assert "no token was good" in found.sentence


def test_energy_is_not_measured_without_a_meter():
    tokens = Estimate(value=100.0, lo=80.0, hi=125.0, unit="tokens/s")
    gate = EnergyGate(max_joules_per_good_token=1.0)
    run = run_of([], good_tokens_per_s=tokens)
    assert energy_gate(Evidence(runs=[run]), gate)[0].answer is Answer.NOT_MEASURED
    metered = run_of([], good_tokens_per_s=tokens, seconds=10.0, energy={"joules": 500.0, "source": "rapl"})
    (found,) = energy_gate(Evidence(runs=[metered]), gate)
    assert found.estimate.value == pytest.approx(0.5)  # 50 W over 100 tokens/s
    assert found.answer is Answer.PASS
    assert energy_gate(Evidence(runs=[metered, run]), gate)[0].answer is Answer.NOT_MEASURED


def closed(times, seconds):
    """A closed loop that was asked only what it answered in time: `times` of the requests, all good."""
    records = [answered(i, ttft_s=0.2, every_s=seconds / times) for i in range(times)]
    run = run_of(records, seconds=seconds)
    run.info.closed_loop = True
    return run


def test_a_slower_server_in_a_closed_loop_is_worse_although_all_its_answers_are_good():
    base, slower = closed(1000, 100.0), closed(600, 100.0)
    found = answer([base], [slower])
    assert found.estimate.value == pytest.approx(0.6, rel=0.05)
    assert found.answer is Answer.FAIL
    assert answer([base] * 2, [slower] * 2).answer is Answer.FAIL
    assert answer([base], [closed(1000, 100.0)]).answer is Answer.PASS
    nothing = run_of([answered(i, ttft_s=3.0) for i in range(100)], seconds=100.0)
    nothing.info.closed_loop = True
    assert answer([base], [nothing]).answer is Answer.FAIL
    with pytest.raises(LabError, match="workloads differ"):
        answer([run_with(0.9)], [slower])


def test_later_turns_come_as_the_server_answers_so_they_are_a_rate_too():
    base, slower = (run_of([answered(i, ttft_s=0.2, every_s=100 / n) for i in range(n)], seconds=100.0)
                    for n in (1000, 600))  # fmt: skip
    assert answer([base], [slower]).estimate.value == 1.0  # of the requests that both hold, all are good
    slower.records[1].turn = 1
    assert answer([base], [slower]).estimate.value == pytest.approx(0.6, rel=0.05)


def test_pairs_without_a_good_request_are_pooled_and_decide():
    base, nothing = run_with(0.9), run_with(0.0)
    for runs in ([nothing] * 2, [nothing] * 3):
        found = answer([base] * len(runs), runs)
        assert found.answer is Answer.FAIL
        assert "pooled" in found.estimate.method
    mixed = answer([base] * 2, [run_with(0.5, seed=1), nothing])
    assert mixed.estimate.value == pytest.approx(0.26, abs=0.03)
    assert mixed.answer is not Answer.PASS


def test_the_usual_ratio_is_asked_only_where_a_base_is_given():
    run = run_of([answered(0, ttft_s=0.1)], attainment=Estimate(value=0.95, lo=0.91, hi=0.98))
    assert [r.subject for r in goodput_gate(Evidence(runs=[run]), GoodputGate())] == ["attainment of chat"]
    assert goodput_gate(Evidence(runs=[run], base=[run]), GoodputGate())[0].limit == 0.97
