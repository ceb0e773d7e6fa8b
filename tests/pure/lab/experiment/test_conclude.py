"""The best node, and what two searches say of each other."""

from __future__ import annotations

import pytest

from paceline.contracts.artefact import Answer, Estimate, Verdict
from paceline.lab.experiment.conclude import MAX_RATE, at_target_rate, best_node, max_rate_ratio, paired_points
from paceline.lab.experiment.figures import over_repeats
from paceline.lab.experiment.results import EdgeResult, ExperimentResult, NodeResult, PointResult, RateResult


def node(name: str, value: float | None, parent: str | None = "base", lo=None, hi=None) -> NodeResult:
    figures = {} if value is None else {MAX_RATE: Estimate(value=value, lo=lo, hi=hi, unit="req/s")}
    return NodeResult(name=name, parent=parent, figures=figures)


def experiment(*nodes: NodeResult, edges=()) -> ExperimentResult:
    return ExperimentResult(name="x", nodes=nodes, edges=edges, decides=MAX_RATE, margin=0.03)


def test_the_highest_wins_and_says_by_how_much():
    found = best_node(
        experiment(node("base", 2.0, None), node("b", 3.0), node("c", 2.5), edges=(better("b"), better("c")))
    )
    assert found == ("b", "Best is b with max_rate_rps 3 req/s, 1.50 times the base's.")


def better(child: str) -> EdgeResult:
    return EdgeResult(parent="base", child=child, group="batch", answer="better")


def test_a_step_that_is_not_shown_is_not_made_but_told():
    edge = EdgeResult(parent="base", child="b", group="batch", answer="inconclusive")
    name, words = best_node(experiment(node("base", 2.0, None), node("b", 3.0), edges=(edge,)))
    assert name == "base"
    assert words.endswith("b measured 3, but its step is inconclusive.")


def test_within_the_margin_the_simpler_one_wins():
    name, words = best_node(experiment(node("base", 2.0, None), node("b", 2.05), edges=(better("b"),)))
    assert name == "base"
    assert "no change was shown to be worth more than the margin" in words


@pytest.mark.parametrize(
    "edge",
    [
        EdgeResult(
            parent="base",
            child="b",
            group="kv",
            answer="better",
            verdict=Verdict(answer=Answer.FAIL, sentence="quality"),
        ),
        EdgeResult(parent="base", child="b", group="kv", answer="invalid"),
    ],
)
def test_a_node_that_a_gate_refuses_is_not_best(edge):
    assert best_node(experiment(node("base", 2.0, None), node("b", 9.0), edges=(edge,)))[0] == "base"


def test_nothing_measured_is_no_best():
    name, words = best_node(experiment(node("base", None, None)))
    assert name is None
    assert "No node" in words


def test_nothing_good_anywhere_is_no_best():
    name, words = best_node(experiment(node("base", 0.0, None), node("b", 0.0)))
    assert name is None
    assert "0 everywhere" in words


def test_two_searches_widen_each_other():
    a, b = node("base", 2.0, None, 1.9, 2.1), node("b", 3.0, "base", 2.8, 3.3)
    found = max_rate_ratio(a, b, 0.03)
    assert found.ratio.value == pytest.approx(1.5)
    assert found.answer == "better"
    assert found.ratio.lo < 2.8 / 2.0
    assert found.ratio.hi > 3.3 / 2.0
    assert max_rate_ratio(a, a, 0.03).answer == "inconclusive"


def test_a_search_without_an_upper_end_has_no_upper_bound():
    found = max_rate_ratio(node("base", 2.0, None, 1.9, 2.1), node("b", 3.0, "base", 2.8, None), 0.03)
    assert found.ratio.hi is None
    assert found.answer == "better"  # its lower end is enough
    assert "no rate that fails" in found.ratio.reason
    assert "to open" in found.sentence
    assert max_rate_ratio(node("base", 2.0, None), node("b", None), 0.03).answer == "not measured"


def searched(name: str, failed: float, parent: str | None = "base") -> NodeResult:
    """A node that held no rate at all."""
    return NodeResult(name=name, parent=parent, rate=RateResult(share=0.9, answer="none", lowest_fail_rps=failed))


def test_a_node_that_carries_something_beats_one_that_carries_nothing():
    base, other = searched("base", 0.5, None), node("b", 3.0, "base", 2.8, 3.3)
    found = max_rate_ratio(base, other, 0.03)
    assert found.answer == "better"
    assert found.ratio.lo == pytest.approx(2.8 / 0.5)
    assert found.ratio.hi is None
    assert "base carries; it failed at 0.5" in found.ratio.reason
    edge = EdgeResult(parent="base", child="b", group="batch", answer=found.answer)
    assert best_node(experiment(base, other, edges=(edge,)))[0] == "b"


def test_a_node_that_carries_nothing_is_worse_and_two_of_them_say_nothing():
    held = node("base", 2.0, None, 1.9, 2.1)
    found = max_rate_ratio(held, searched("b", 0.5), 0.03)
    assert found.answer == "worse"
    assert (found.ratio.lo, found.ratio.hi) == (None, pytest.approx(0.5 / 1.9))
    assert max_rate_ratio(held, searched("b", 1.95), 0.03).answer == "inconclusive"
    assert max_rate_ratio(searched("base", 0.5, None), searched("b", 0.5), 0.03).answer == "not measured"


def test_points_pair_by_repeat_rate_and_seed_when_both_are_whole():
    def point(name: str, repeat: int, **more) -> PointResult:
        return PointResult(id=f"{name}{repeat}", node=name, repeat=repeat, **more)

    points = (point("a", 0), point("b", 0), point("a", 1), point("b", 1, status="partial"), point("b", 2, seed=5))
    result = ExperimentResult(name="x", points=points)
    assert [(a.id, b.id) for a, b in paired_points(result, "a", "b")] == [("a0", "b0")]


def test_gates_judge_the_highest_rate_that_the_parent_holds():
    def couple(rate: float | None, num_good: int):
        return (PointResult(id="x", node="a", rate_rps=rate, num_good=num_good, num_requests=10), None, None)

    runs = [couple(1.0, 10), couple(2.0, 10), couple(2.0, 9), couple(4.0, 5)]
    assert [c[0].rate_rps for c in at_target_rate(runs, 0.9)] == [2.0, 2.0]
    assert [c[0].rate_rps for c in at_target_rate(runs[2:], 0.95)] == [2.0]  # none holds: the lowest
    assert len(at_target_rate([couple(None, 0), couple(None, 0)], 0.9)) == 2


def test_how_rates_differ_is_no_uncertainty_of_a_node():
    def point(repeat: int, rate: float, value: float) -> PointResult:
        figures = {"goodput_rps": Estimate(value=value, lo=value - 0.1, hi=value + 0.1)}
        return PointResult(id=f"{repeat} {rate}", node="a", repeat=repeat, rate_rps=rate, figures=figures)

    one = point(0, 1.0, 1.0)
    assert over_repeats([one])["goodput_rps"] == one.figures["goodput_rps"]
    both = over_repeats([one, point(0, 4.0, 3.0)])["goodput_rps"]
    assert (both.value, both.lo, both.method) == (2.0, None, "mean over 2 rates")
    two = over_repeats([one, point(0, 4.0, 3.0), point(1, 1.0, 1.0), point(1, 4.0, 3.4)])["goodput_rps"]
    assert (two.value, two.lo, two.hi) == (pytest.approx(2.1), 2.0, pytest.approx(2.2))
    cut = over_repeats([one, point(0, 4.0, 3.0), point(1, 1.0, 1.0)])["goodput_rps"]
    assert cut.value == 2.0  # a repeat without its high rate is no repeat of the same
