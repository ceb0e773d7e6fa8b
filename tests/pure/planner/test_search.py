"""Layouts judged: what fits where, what carries a rate, what is left after a loss."""

import numpy as np
import pytest
from tests.pure.planner.kit import question, short, traffic

from paceline.contracts.workload import SloClass
from paceline.cost import LinearStepCost, StepCost, decode_shape
from paceline.errors import ConfigError
from paceline.planner import CARDS, Fleet, Kept, Layout, Traffic, make_plan
from paceline.planner.layout import layouts
from paceline.planner.search import bounds, chunk_sizes, judge, layout_steps, rank, search


@pytest.fixture(scope="module")
def eight():
    """An 8B on eight devices of one node."""
    return make_plan(question(devices=8))


def test_every_layout_fills_whole_parts_of_the_fleet():
    spec = CARDS["mixtral-8x7b"].spec
    found = list(layouts(spec, Fleet(num_devices=16, num_nodes=2)))
    assert len(found) == len({str(x) for x in found})
    assert all(x.num_devices == 16 for x in found)
    assert {x.degrees.num_ranks for x in found} == {1, 2, 4, 8, 16}
    assert any(x.degrees.ep > 1 for x in found)
    assert not any(x.degrees.ep > 1 for x in layouts(CARDS["llama-3.1-8b"].spec, Fleet(num_devices=8)))
    with pytest.raises(ConfigError):
        Fleet(num_devices=9, num_nodes=2)


def test_a_group_leaves_its_node_only_when_it_must():
    found = {str(x): x.crosses(8) for x in layouts(CARDS["mixtral-8x7b"].spec, Fleet(num_devices=16, num_nodes=2))}
    assert found["TP16"] == {"tp": True, "cp": False, "ep": False, "pp": False}
    assert found["TP8 PP2"] == {"tp": False, "cp": False, "ep": False, "pp": True}
    assert found["TP8 EP2"] == {"tp": False, "cp": False, "ep": True, "pp": False}
    assert found["2 x (TP8)"] == {"tp": False, "cp": False, "ep": False, "pp": False}


def test_replicas_of_a_small_model_beat_one_divided_over_all(eight):
    single, divided = eight.search.layout("DP8"), eight.search.layout("TP8")
    assert eight.chosen.layout == single.layout
    assert single.capacity_rps > 1.5 * divided.capacity_rps
    assert single.goodput_after_loss_rps == pytest.approx(7 / 8 * single.capacity_rps)
    assert divided.goodput_after_loss_rps == 0.0
    assert divided.operating.step_ms < 2 * single.operating.step_ms


def test_the_walk_prints_that_decision(eight):
    step = next(s for s in eight.steps if s.name == "replicas")
    assert step.holds
    assert "DP8" in step.inequality
    assert "TP8" in step.inequality
    assert "after one device fails" in step.inequality
    assert len(eight.steps) == 7
    assert all(s.inequality and s.why for s in eight.steps)


def context_step(ask):
    return next(s for s in make_plan(ask).steps if s.name == "context parallel")


def test_long_prompts_are_priced_over_more_devices():
    """Whatever chunk, one device takes seconds for them: nothing fits, and the walk says what dividing would bring."""
    long = Traffic(input_tokens=np.array([100_000.0]), output_tokens=np.array([100.0]))
    step = context_step(question(devices=8, traffic=long, slo=SloClass(ttft_s=0.5, tpot_s=0.1)))
    assert not step.holds
    assert "over CP8" in step.inequality
    assert "6.4 s, over CP8 801 ms, 7.99 times as fast" in step.inequality
    assert "--context-parallel-size" in step.why
    assert "in order the last has 1.87 times the mean" in step.inequality


def test_what_context_parallelism_cannot_do_is_said():
    assert (
        "leaves no device" in context_step(question(devices=8, traffic=short(), slo=SloClass(tpot_s=0.0045))).inequality
    )
    assert context_step(question()).inequality == "1 device"


def test_a_70b_needs_several_devices_and_says_so():
    plan = make_plan(question("llama-3.1-70b", devices=8, slo=SloClass(ttft_s=1.0, tpot_s=0.05), traffic=short()))
    alone = plan.search.layout("DP8")
    assert "no room for a KV cache" in alone.rejected
    assert plan.chosen.layout.degrees.num_ranks > 1
    first = plan.steps[0]
    assert not first.holds


def test_the_fewest_devices_that_carry_a_rate_are_taken():
    plan = make_plan(question(devices=4, traffic=traffic(rate_rps=5.0)))
    assert plan.chosen.num_devices < 4
    assert plan.chosen.goodput_rps >= 0.95 * 5.0
    assert plan.chosen.operating.rate_rps * plan.chosen.layout.replicas == pytest.approx(5.0, rel=0.01)
    tokens = plan.chosen.goodput_rps * plan.question.traffic.mean_output
    assert plan.chosen.cost_per_million == pytest.approx(plan.chosen.num_devices * 3.0 / 3600 / tokens * 1e6)


def test_the_chunk_that_carries_the_rate_with_fewest_devices_stands_for_its_layout():
    def options(ask):
        return [judge(ask, Layout(replicas=2), c, lambda: layout_steps(ask, Layout())) for c in chunk_sizes(ask)]

    best = max(options(question(devices=2)), key=lambda c: c.capacity_rps)
    ask = question(devices=2, traffic=traffic(rate_rps=0.999 * best.capacity.rate_rps))
    assert {c.num_devices for c in options(ask) if c.fits} == {1, 2}
    found = search(ask).chosen
    assert (found.chunk, found.num_devices) == (best.chunk, 1)
    assert rank(ask, found) == min(rank(ask, c) for c in options(ask))


def test_no_more_is_good_than_is_asked_for():
    plan = make_plan(question(device="h200", traffic=traffic(rate_rps=0.01)))
    assert plan.chosen.memory.seats > 500
    assert plan.chosen.goodput_rps == pytest.approx(0.01, rel=1e-3)
    assert plan.chosen.goodput_rps <= 0.01


def test_more_than_the_fleet_carries_is_said():
    plan = make_plan(question(devices=1, traffic=traffic(rate_rps=10_000.0)))
    assert plan.chosen.goodput_rps < 10_000
    assert any("10000 requests/s were asked for" in note for note in plan.notes)


def test_targets_nobody_meets_leave_no_choice():
    plan = make_plan(question(slo=SloClass(tpot_s=1e-4)))
    assert plan.chosen is None
    assert "with one row running" in plan.search.candidates[0].rejected
    late = make_plan(question(slo=SloClass(ttft_s=1e-3)))
    assert "with nobody else there" in late.search.candidates[0].rejected


def test_experts_over_two_nodes():
    ask = question("deepseek-v3", devices=16, nodes=2, slo=SloClass(ttft_s=2.0, tpot_s=0.1), traffic=short())
    found = search(ask)
    best = found.chosen
    assert best.layout.degrees.num_ranks == 16
    assert "no room" in found.layout("2 x (TP8)").rejected or "does not fit" in found.layout("2 x (TP8)").rejected
    across = found.layout("TP16")
    assert across.rejected or across.capacity_rps < best.capacity_rps


def test_faster_cards_and_longer_targets_never_carry_less():
    h100, h200 = (search(question(device=name)).chosen.capacity_rps for name in ("h100-sxm", "h200"))
    assert h200 > h100
    tight, loose = (search(question(slo=SloClass(ttft_s=t, tpot_s=0.03))).chosen.capacity_rps for t in (0.3, 3.0))
    assert loose >= tight


def test_eight_bit_weights_need_a_device_that_multiplies_them():
    fp8 = Kept(weights="fp8")
    a100, h100 = (
        search(question(device=d, kept=fp8)).chosen.capacity_rps / search(question(device=d)).chosen.capacity_rps
        for d in ("a100-sxm", "h100-sxm")
    )
    assert h100 > a100 > 1


def test_the_interval_of_step_times_bounds_capacity():
    ask = question()
    best = bounds(ask, search(ask).chosen)
    assert 0 <= best.low_rps < best.capacity_rps < best.high_rps
    assert best.tier == "first principles"


def test_times_that_nothing_bounds_from_below_bound_capacity_from_above():
    """Steps that were timed on a machine that moved by half: the interval reaches 0, and no capacity is endless."""
    times = StepCost.from_prior(LinearStepCost())
    seen = {"low": (1.0, 1.0, 1.0, 1.0, 0.0), "high": (9.0, 9.0, 9.0, 9e9, 9.0)}
    wide = StepCost(**{**times.prices, **seen, "noise": 1.0})
    assert wide.estimate(decode_shape(4, 500)).lo == 0.0
    ask = question(times=wide)
    best = bounds(ask, search(ask).chosen)
    assert 0 <= best.low_rps < best.capacity_rps < best.high_rps < float("inf")


def test_a_plan_is_a_function_of_its_question():
    one, other = make_plan(question()), make_plan(question())
    assert one.chosen == other.chosen
    assert one.steps == other.steps
    assert [rank(one.question, c) for c in one.search.candidates] == sorted(
        rank(one.question, c) for c in one.search.candidates
    )


def test_drafts_are_judged_alone_and_under_load():
    curve = (1.93, 2.73, 3.39, 3.97, 4.41, 4.80, 5.04, 5.21)
    alone, loaded = make_plan(question(), acceptance=curve, draft_ms=0.5).drafts
    assert alone.num_rows == 1 < loaded.num_rows
    assert alone.num_drafts >= loaded.num_drafts
    assert alone.speedup > 1.5


def test_the_frontier_rises_and_turns(eight):
    tpot = [point[1] for point in eight.frontier]
    assert tpot == sorted(tpot)
    good = [point[0] for point in eight.frontier]
    assert max(good) > 0.9 * eight.chosen.capacity_rps


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"slo": SloClass()}, "no target is set"),
        ({"slo": SloClass(ttft_s=1.0, e2e_s=3.0)}, "TTFT and TPOT only"),
        (
            {"traffic": Traffic(input_tokens=np.array([131_072.0]), output_tokens=np.array([1.0]))},
            "longer than the model",
        ),
    ],
)
def test_questions_without_an_answer_are_refused(changed, words):
    with pytest.raises(ConfigError, match=words):
        make_plan(question(**changed))


def test_layouts_read_as_people_say_them():
    assert str(Layout()) == "one device"
