"""Gates together: order of answers, Holm, exit codes, and the spec that asks for them."""

import math
import random
from pathlib import Path

import pytest
from tests.fakes.lab.gate_runs import answered, run_of

from paceline.contracts.artefact import Answer, Estimate, GateResult
from paceline.errors import ConfigError
from paceline.lab.gates import Evidence, Start, conclude, evaluate, exit_code, load_gate_spec
from paceline.lab.gates.cold_start import p95_of
from paceline.lab.gates.verdict import corrected
from paceline.lab.quality.paired import SetComparison


def result(answer, gate="ttft", **evidence):
    return GateResult(gate=gate, answer=answer, sentence="s", evidence=evidence)


@pytest.mark.parametrize(
    ("answers", "whole", "code"),
    [
        (["pass", "pass"], "pass", 0),
        (["pass", "fail", "invalid"], "fail", 1),
        (["pass", "inconclusive"], "inconclusive", 2),
        (["pass", "invalid", "inconclusive"], "invalid", 3),
        (["pass", "not measured"], "inconclusive", 2),
        (["not measured"], "inconclusive", 2),
    ],
)
def test_nothing_but_a_pass_is_a_pass(answers, whole, code):
    verdict = conclude([result(Answer(each)) for each in answers], required={"ttft"})
    assert verdict.answer is Answer(whole)
    assert exit_code(verdict) == code


def test_what_is_not_required_may_be_left_unmeasured():
    results = [result(Answer.PASS), result(Answer.NOT_MEASURED, gate="energy")]
    verdict = conclude(results, required={"ttft"})
    assert verdict.answer is Answer.PASS
    assert "1 not measured and not required" in verdict.sentence
    assert conclude([results[1]], required=set()).answer is Answer.NOT_MEASURED


def test_a_fail_by_chance_among_many_gates_is_inconclusive():
    ten = [result(Answer.FAIL, worse_p=0.03), *(result(Answer.PASS, worse_p=0.5) for _ in range(9))]
    assert corrected(ten, 0.05)[0].answer is Answer.INCONCLUSIVE
    assert corrected(ten, 0.05)[0].evidence["worse_p_holm"] == pytest.approx(0.3)
    assert corrected(ten[:1], 0.05)[0].answer is Answer.FAIL
    sure = [result(Answer.FAIL, worse_p=0.001), *ten[1:]]
    assert corrected(sure, 0.05)[0].answer is Answer.FAIL


def comparison(answer, worse_p=1.0, failed=0, name="basics", what="right answers"):
    return SetComparison(
        set=name, what=what, num_items=1000, reference=0.8, candidate=0.8, both=800, only_reference=0,
        only_candidate=0, neither=200, difference=Estimate(value=0.0, lo=-0.01, hi=0.01), mcnemar_p=1.0, margin=0.02,
        worse_p=worse_p, answer=answer, num_failed_candidate=failed,
    )  # fmt: skip


def test_everything_that_is_asked_for_is_evaluated():
    spec = load_gate_spec({
        "quality": {}, "ttft": {}, "tpot": {}, "goodput": {"min_ratio": 0.97, "attainment": False},
        "cold_start": {"cold_s": 10.0, "min_starts": 4},
        "cost": {"price_per_hour": 1.0, "max_per_million_good_tokens": 9.0},
        "stability": {"required": False}, "energy": {"max_joules_per_good_token": 1.0, "required": False},
        "safety": {"min_schema_share": 1.0},
    })  # fmt: skip
    draw = random.Random(2)
    records = [answered(i, ttft_s=draw.uniform(0.1, 0.3), tpot_s=draw.uniform(0.04, 0.06)) for i in range(1000)]
    for record in records[:10]:
        record.valid = {"schema": True}
    run = run_of(records, good_tokens_per_s=Estimate(value=100.0, lo=90.0, hi=110.0, unit="tokens/s"))
    evidence = Evidence(
        runs=[run],
        base=[run],
        comparisons=[comparison("not worse"), comparison("not worse", what="refusing", name="refusals")],
        starts=[Start(kind="cold", seconds=s) for s in (4.0, 4.1, 4.2, 4.05, 4.1)],
    )
    verdict = evaluate(evidence, spec)
    assert {r.gate: r.answer for r in verdict.gates} == {
        "quality": Answer.PASS,
        "ttft": Answer.PASS,
        "tpot": Answer.PASS,
        "goodput": Answer.PASS,
        "stability": Answer.NOT_MEASURED,
        "cold_start": Answer.PASS,
        "cost": Answer.PASS,
        "energy": Answer.NOT_MEASURED,
        "safety": Answer.PASS,
    }
    assert exit_code(verdict) == 0
    records[3].valid = {"schema": False}
    assert evaluate(evidence, spec).answer is Answer.FAIL


def test_quality_sets_fail_straddle_or_are_invalid():
    spec = load_gate_spec({"quality": {"sets": ["basics", "gone"]}})

    def answers(*comparisons):
        return [r.answer for r in evaluate(Evidence(comparisons=comparisons), spec).gates]

    assert answers(comparison("worse", worse_p=0.001)) == [Answer.FAIL, Answer.NOT_MEASURED]
    assert answers(comparison("inconclusive"))[0] is Answer.INCONCLUSIVE
    assert answers(comparison("not worse", failed=50))[0] is Answer.INVALID
    assert answers(comparison("not worse", name="other")) == [Answer.NOT_MEASURED, Answer.NOT_MEASURED]


def test_refusals_are_asked_for_where_they_were_scored_or_named():
    """[safety] for schemas alone must be able to pass, and a set that was scored is not passed over."""

    def answers(table, *comparisons):
        return [r.answer for r in evaluate(Evidence(comparisons=comparisons), load_gate_spec({"safety": table})).gates]

    refusing = comparison("worse", worse_p=0.001, what="refusing", name="refusals")
    assert len(answers({"min_schema_share": 1.0})) == 1
    assert answers({"min_schema_share": 1.0}, refusing) == [Answer.NOT_MEASURED, Answer.FAIL]
    assert answers({"refusal_margin_points": 2.0}) == [Answer.NOT_MEASURED]


def test_starts_are_judged_by_a_tolerance_bound():
    seconds = [4.0, 4.4, 3.9, 4.1, 4.6, 4.2, 4.0, 4.3, 4.1, 4.2]
    found = p95_of(seconds)
    assert max(seconds) * 0.9 < found.value < found.hi < 6
    assert p95_of([4.0] * 10).hi == pytest.approx(4.0)
    assert p95_of([4.0, 5.0]).value is None

    def answer(limit, n=10, least=10):
        starts = [Start(kind="warm", seconds=s) for s in seconds[:n]]
        spec = load_gate_spec({"cold_start": {"warm_s": limit, "min_starts": least}})
        return evaluate(Evidence(starts=starts), spec).gates[0].answer

    assert answer(6.0) is Answer.PASS
    assert answer(4.5) is Answer.INCONCLUSIVE
    assert answer(3.0) is Answer.FAIL
    assert answer(60.0, n=5) is Answer.INCONCLUSIVE  # too few to pass
    assert answer(60.0, n=2, least=2) is Answer.INCONCLUSIVE  # too few for any bound


def test_the_bound_covers_as_often_as_it_says():
    draw = random.Random(4)
    true = math.exp(1 + 1.6448536 * 0.2)
    covered = sum(p95_of([math.exp(draw.gauss(1, 0.2)) for _ in range(10)]).hi >= true for _ in range(300))
    assert covered >= 270  # 285 expected


def test_a_spec_refuses_what_it_does_not_know(tmp_path: Path):
    for table, words in (
        ({"tttf": {}}, "did you mean ttft"),
        ({"ttft": {"percentil": 0.9}}, "did you mean percentile"),
        ({}, "no gate"),
        ({"ttft": {"percentile": 95}}, "percentile"),
        ({"cost": {}}, "price_per_hour"),
        ({"cost": {"price_per_hour": 0, "max_per_million_good_tokens": 1}}, "above 0"),
        ({"goodput": {"min_ratio": 97}}, "min_ratio"),
        ({"goodput": {"min_ratio": 0}}, "min_ratio"),
        ({"safety": {"refusal_margin_points": 0}}, "refusal_margin_points"),
    ):
        with pytest.raises(ConfigError, match=words):
            load_gate_spec(table)
    path = tmp_path / "gates.toml"
    path.write_text("[gates.ttft]\npercentile = 0.99\n[other]\nx = 1\n")
    assert load_gate_spec(path).ttft.percentile == 0.99
    path.write_text("[ttft\n")
    with pytest.raises(ConfigError, match="not TOML"):
        load_gate_spec(path)
