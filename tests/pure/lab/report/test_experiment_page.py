from __future__ import annotations

import msgspec
import pytest

from paceline.contracts.artefact import Answer
from paceline.lab.report.experiment_page import experiment_page
from paceline.lab.report.html import page_html
from paceline.lab.report.page import Edges, Table, Words
from paceline.lab.report.requests import requests_of


@pytest.fixture(scope="module")
def page(experiment, ladder_runs):
    requests = {name: requests_of(run.info, run.records) for name, run in ladder_runs.items()}
    links = {point.id: f"{point.path}/report.html" for point in experiment.points}
    return experiment_page(
        experiment, requests=requests, findings={"continuous": [("PL101", "Too many rows.")]}, links=links
    )


def figure(page, id):
    return next(f for section in page.sections for f in section.figures if f.id == id)


def edges(page):
    return next(b for section in page.sections for b in section.blocks if isinstance(b, Edges)).items


def test_the_answer_comes_first_and_the_best_configuration_with_it(page, experiment):
    assert page.sentence == experiment.answer
    assert page.question == experiment.question
    assert page.answer is Answer.PASS
    assert page.numbers[0].value == "prefix-cache"
    assert [gate.subject for gate in page.gates] == [
        "static → continuous",
        "continuous → chunked-prefill",
        "chunked-prefill → prefix-cache",
    ]


def test_the_ladder_draws_each_node_with_its_interval_and_gain(page, experiment):
    ladder = figure(page, "ladder")
    bars = ladder.traces[0]
    assert bars["x"] == [node.rate.max_rate_rps.value for node in experiment.nodes]
    assert bars["y"] == [f"{i}  {node.name}" for i, node in enumerate(experiment.nodes)]
    for node, plus, minus in zip(
        experiment.nodes, bars["error_x"]["array"], bars["error_x"]["arrayminus"], strict=True
    ):
        rate = node.rate.max_rate_rps
        assert rate.value + plus == pytest.approx(rate.hi)
        assert rate.value - minus == pytest.approx(rate.lo)
    assert "× 3.25" in ladder.layout["annotations"][1]["text"]
    assert "×" not in ladder.layout["annotations"][0]["text"], "the base has no gain"


def test_each_edge_says_what_changed_what_it_did_and_what_a_lint_found(page):
    base, continuous, _, prefix = edges(page)
    assert base.changes == (("max_num_seqs", "", "24"),)
    assert continuous.group == "batch"
    assert continuous.changes[0] == ("max_wait_ms", "400", "0")
    assert continuous.changes[1][2].endswith("(follows from it)")
    assert continuous.findings == (("PL101", "Too many rows."),)
    assert dict(continuous.effects)["TTFT p95"].tone == "good"
    assert prefix.links == (("the run of repeat 0", "nodes/prefix-cache/rep0/report.html"),)


def test_rates_show_the_bracket(page, experiment):
    attained = figure(page, "attainment-rate")
    boxes = [shape for shape in attained.layout["shapes"] if shape["type"] == "rect"]
    assert [(box["x0"], box["x1"]) for box in boxes] == [
        (node.rate.highest_pass_rps, node.rate.lowest_fail_rps) for node in experiment.nodes
    ]
    assert "static holds 2.00 req/s and not 2.50" in attained.lead
    levels = sum(len(node.rate.levels) for node in experiment.nodes)
    assert len(attained.table.rows) == levels
    assert len(figure(page, "goodput-rate").traces) == 1 + len(experiment.nodes)


def test_what_was_not_measured_is_said(experiment):
    nodes = tuple(msgspec.structs.replace(node, rate=None, starts=()) for node in experiment.nodes)
    failed = msgspec.structs.replace(nodes[-1], failed="the server ended with code 1", figures={})
    bare = msgspec.structs.replace(
        experiment, nodes=(*nodes[:-1], failed), edges=(), best=None, answer="", best_sentence="", decides="goodput_rps"
    )
    page = experiment_page(bare)
    assert page.answer is None
    assert page.sentence.startswith("No answer")
    missing = [b.text for s in page.sections for b in s.blocks if isinstance(b, Words) and b.tone == "missing"]
    assert any("does not search for the highest" in text for text in missing)
    table = next(b for s in page.sections for b in s.blocks if isinstance(b, Table) and b.caption.startswith("At the"))
    assert table.rows[-1][0].note == "the server ended with code 1"
    page_html(page)


def test_an_open_edge_says_what_would_close_it(experiment):
    edge = msgspec.structs.replace(experiment.edges[0], answer="inconclusive")
    page = experiment_page(msgspec.structs.replace(experiment, edges=(edge, *experiment.edges[1:])))
    assert page.what_would_change_it.startswith("more repeats would narrow static → continuous")


def test_an_experiment_with_nothing_in_it_has_a_page(experiment):
    page = experiment_page(
        msgspec.structs.replace(experiment, nodes=(), points=(), edges=(), best=None, fingerprint={})
    )
    assert "<h1>" in page_html(page)
