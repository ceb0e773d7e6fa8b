"""TTFT and TPOT gates against requests whose times are given."""

import random

import pytest
from tests.fakes.lab.gate_runs import CHAT, answered, failed, run_of

from paceline.contracts.artefact import Answer, Caution
from paceline.contracts.slo import Outcome
from paceline.contracts.workload import SloClass
from paceline.lab.gates.evidence import Evidence
from paceline.lab.gates.latency import tpot_gate, ttft_gate
from paceline.lab.gates.spec import TpotGate, TtftGate


def ttft(records, gate=None, **options):
    return ttft_gate(Evidence(runs=[run_of(records, **options)]), gate or TtftGate(percentile=0.95))


def answers(results):
    return [result.answer for result in results]


def test_the_whole_interval_within_the_limit_passes():
    (found,) = ttft([answered(i, ttft_s=0.3 + 0.001 * (i % 100)) for i in range(400)])
    assert found.answer is Answer.PASS
    assert found.estimate.value == pytest.approx(0.394)
    assert found.estimate.hi <= 0.4
    assert (found.limit, found.subject) == (1.0, "chat")


def test_the_whole_interval_beyond_fails_and_one_that_straddles_is_inconclusive():
    assert answers(ttft([answered(i, ttft_s=1.5) for i in range(400)])) == [Answer.FAIL]
    near = [answered(i, ttft_s=2.0 if i % 20 == 7 else 0.5) for i in range(400)]  # 5 % are late: p95 is at the edge
    assert answers(ttft(near)) == [Answer.INCONCLUSIVE]


def test_a_percentile_of_too_few_requests_is_inconclusive_even_if_all_were_fast():
    (found,) = ttft([answered(i, ttft_s=0.1) for i in range(58)])
    assert found.answer is Answer.INCONCLUSIVE
    assert "needs 59" in found.sentence
    assert answers(ttft([answered(i, ttft_s=0.1) for i in range(59)])) == [Answer.PASS]
    assert answers(ttft([answered(i, ttft_s=0.1) for i in range(298)], TtftGate(percentile=0.99))) == [
        Answer.INCONCLUSIVE
    ]


def test_failed_requests_are_late_without_end():
    records = [failed(i) if i % 5 == 0 else answered(i, ttft_s=0.1) for i in range(400)]
    (found,) = ttft(records)
    assert found.answer is Answer.FAIL
    assert "80 of 400 requests failed" in found.sentence
    few = [failed(i) if i % 100 == 0 else answered(i, ttft_s=0.1) for i in range(400)]
    assert answers(ttft(few)) == [Answer.PASS]


def test_what_the_client_left_early_says_nothing_and_late_says_missed():
    early = [failed(i, Outcome.CLIENT_CANCEL, after_s=0.2) for i in range(200, 400)]
    good = [answered(i, ttft_s=0.1) for i in range(200)]
    (found,) = ttft([*good, *early])
    assert (found.answer, found.evidence["n"]) == (Answer.PASS, 200)
    late = [failed(i, Outcome.CLIENT_CANCEL, after_s=3.0) for i in range(200, 400)]
    assert answers(ttft([*good, *late])) == [Answer.FAIL]


def test_each_class_has_its_own_limit_and_repeats_are_taken_together():
    slow = SloClass(name="slow", ttft_s=5.0)
    records = [answered(i, ttft_s=2.0, slo_class="slow" if i % 2 else "chat") for i in range(100)]
    run = run_of(records, slo=[CHAT, slow])
    found = ttft_gate(Evidence(runs=[run, run]), TtftGate())
    assert [(r.subject, r.answer, r.evidence["n"]) for r in found] == [
        ("chat", Answer.FAIL, 100),
        ("slow", Answer.PASS, 100),
    ]
    only = ttft_gate(Evidence(runs=[run, run]), TtftGate(classes=("slow",)))
    assert [r.subject for r in only] == ["slow"]


def test_a_run_that_is_client_bound_is_invalid():
    caution = Caution(code="client_bound", sentence="the client was late", invalidates=True)
    (found,) = ttft([answered(i, ttft_s=0.1) for i in range(400)], cautions=[caution])
    assert found.answer is Answer.INVALID
    assert "the client was late" in found.sentence


def test_no_run_and_no_target_are_not_measured():
    assert answers(ttft_gate(Evidence(), TtftGate())) == [Answer.NOT_MEASURED]
    assert answers(ttft([answered(0, ttft_s=1)], slo=[SloClass(name="chat")])) == [Answer.NOT_MEASURED]


def test_tpot_leaves_out_answers_of_one_chunk_and_asks_the_longest_gap_and_the_overload():
    draw = random.Random(1)
    one = [answered(i, ttft_s=0.1, num_tokens=1) for i in range(300, 400)]
    many = [answered(i, ttft_s=0.1, tpot_s=draw.uniform(0.04, 0.06)) for i in range(300)]
    slo = [SloClass(name="chat", tpot_s=0.1, icl_max_s=0.02)]
    run = run_of([*many, *one], slo=slo)
    found = tpot_gate(Evidence(runs=[run]), TpotGate(overload=True))
    assert [(r.subject, r.answer) for r in found] == [
        ("chat", Answer.PASS),
        ("chat, longest gap", Answer.FAIL),
        ("above the target rate", Answer.NOT_MEASURED),
    ]
    assert found[0].evidence["n"] == 300
    slow = run_of([answered(i, ttft_s=0.1, tpot_s=draw.uniform(0.19, 0.21)) for i in range(300)], slo=slo)
    assert tpot_gate(Evidence(runs=[run], overload=[slow]), TpotGate(overload=True))[-1].answer is Answer.FAIL


def test_without_a_percentile_each_class_is_judged_at_the_share_it_asks_for():
    """One in twenty-five is late: a class that asks for nine in ten has them, one that asks for 99 in 100 has not."""
    records = [answered(i, ttft_s=3.0 if i % 25 == 0 else 0.2) for i in range(400)]
    strict = SloClass(name="chat", ttft_s=1.0, share=0.99)
    whole = SloClass(name="chat", ttft_s=1.0, share=1.0)
    found = [ttft(records, TtftGate(), slo=[terms])[0] for terms in (CHAT, strict, whole)]
    assert [r.evidence["percentile"] for r in found] == [0.9, 0.99, 0.999]
    assert answers(found) == [Answer.PASS, Answer.FAIL, Answer.INCONCLUSIVE]
