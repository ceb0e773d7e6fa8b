"""PL104: matrices divided over slow links, predicted and simulated; replicas on the same devices are better."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.pure.assemble.lint.kit import Case, numbers

from paceline.assemble.lint import Serving, lint_folder, serving_of
from paceline.contracts.lint import Severity
from paceline.cost.prior import Degrees
from paceline.errors import ConfigError, UnsupportedError
from paceline.lab.artefact import write_run
from paceline.planner.lint import Facts, FleetFacts, LayoutFacts, lint

SETTINGS = {"model": "llama-3.1-8b", "max_model_len": 4096, "max_num_seqs": 64}
LOAD: dict[str, Any] = {
    "duration_s": 3.0, "slo": {"default": {"ttft_s": 2.0, "tpot_s": 0.2}},
    "stream": [{"arrival": {"kind": "poisson", "rate": 30.0}, "input": 1000, "output": 40}],
}  # fmt: skip


def case(folder: Path, card: str, **serving: int) -> Case:
    return Case(folder, SETTINGS, LOAD, card, serving_of(**serving))


def test_four_cards_on_a_bus_wait_for_each_other_and_are_better_as_replicas(tmp_path: Path) -> None:
    divided = case(tmp_path, "l40s", tp=4)
    predicted, measured = divided.predicted("PL104"), divided.measured("PL104")
    for finding in (predicted, measured.finding):
        assert finding is not None
        assert finding.fix.fleet == {"tensor_parallel_size": 1, "replicas": 4}
        seen = numbers(finding)
        assert seen["TP4: all-reduces of that request"] > 0.4 * seen["TP4: a request, prompt and decode steps"]
    fixed = replace(divided, serving=serving_of(num_replicas=4))  # the same four devices
    apart = fixed.measured("PL202", name="apart")
    assert apart.p50("e2e") < 0.7 * measured.p50("e2e")
    good, before = apart.metrics.whole.goodput_rps.value, measured.metrics.whole.goodput_rps.value
    assert good is not None
    assert before is not None
    assert good > 1.2 * before


def test_what_crosses_a_network_outlasts_what_it_saves_and_stays_within_the_node(tmp_path: Path) -> None:
    wide = case(tmp_path, "h100-sxm", tp=16)
    predicted, measured = wide.predicted("PL104"), wide.measured("PL104")
    for finding in (predicted, measured.finding):
        assert finding is not None
        assert finding.severity is Severity.ERROR
        assert "over the network" in finding.sentence
        assert finding.fix.fleet["tensor_parallel_size"] <= 8  # as many as a node has
    fleet = measured.finding.fix.fleet if measured.finding is not None else {}
    within = case(tmp_path, "h100-sxm", tp=fleet["tensor_parallel_size"], num_replicas=fleet["replicas"])
    assert within.predicted("PL104") is None
    after = within.measured("PL104", name="within")
    assert after.finding is None
    assert after.p50("e2e") < measured.p50("e2e")


def test_a_fast_link_is_left_alone(tmp_path: Path) -> None:
    fast = case(tmp_path, "h100-sxm", tp=2)
    assert fast.predicted("PL104") is None
    assert fast.measured("PL104").finding is None


def layout(name: str, **changes: Any) -> LayoutFacts:
    whole = LayoutFacts(
        name=name, options={}, tp=2, num_replicas=1, link="PCIe", hops=True, num_rows=8, step_ms=20.0,
        step_talk_ms=6.0, request_ms=100.0, talk_ms=30.0, saved_ms=40.0, tier="first principles",
    )  # fmt: skip
    return msgspec.structs.replace(whole, **changes)


@pytest.mark.parametrize(
    ("changes", "other", "seen"),
    [
        ({}, {"num_replicas": 2, "request_ms": 150.0}, [Severity.WARNING]),
        ({}, {"num_replicas": 2, "request_ms": 190.0}, []),  # hardly more
        ({}, {"num_replicas": 2, "request_ms": 150.0, "fits": False}, []),
        ({"hops": False}, {"num_replicas": 2, "request_ms": 150.0}, []),  # a fast link, and it gains
        ({"talk_ms": 50.0}, {"num_replicas": 2, "request_ms": 150.0}, [Severity.ERROR]),
        ({"talk_ms": 50.0, "hops": False}, {"fits": False}, [Severity.ERROR]),  # nothing else fits: said all the same
    ],
)
def test_a_slow_link_is_a_mistake_where_it_gains_nothing_or_others_carry_more(
    changes: dict[str, Any], other: dict[str, Any], seen: list[Severity]
) -> None:
    fleet = FleetFacts(layouts=(layout("TP2", **changes), layout("DP2", tp=1, **other)))
    found = [f for f in lint(Facts(source="config", name="c", fleet=fleet)).findings if f.code == "PL104"]
    assert [f.severity for f in found] == seen


def test_what_a_fleet_cannot_be_is_said(tmp_path: Path) -> None:
    for serving, words in (
        (Serving(degrees=Degrees(tp=3)), "cannot be divided"),
        (Serving(router="nearest"), "no router policy"),
        (Serving(acceptance=(0.5,)), "not an acceptance curve"),
        (Serving(tier_policy="often"), "no such policy"),
    ):
        with pytest.raises((ConfigError, UnsupportedError), match=words):
            replace(case(tmp_path, "l4"), serving=serving).predicted("PL101")


def test_a_run_of_a_model_that_is_not_known_here_is_left_out(tmp_path: Path) -> None:
    """Nothing is fetched to look at a run, and no price is made up."""
    run = case(tmp_path, "l40s", tp=2).simulated()
    run.info.target.model = "somebody/elses-model"
    write_run(tmp_path / "run", run.info, run.records)
    (result,) = lint_folder(tmp_path / "run")
    assert "what its model and devices are" in result.skipped["PL104"]
    assert "PL207" in result.judged
