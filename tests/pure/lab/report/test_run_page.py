from __future__ import annotations

import msgspec
import numpy as np
import pytest
from tests.fakes.lab.sample_runs import SampleRun

from paceline.contracts.artefact import Answer, Caution
from paceline.contracts.slo import Outcome
from paceline.lab.metrics import compute
from paceline.lab.report.charts.outcomes import outcome_chart
from paceline.lab.report.charts.server import server_charts
from paceline.lab.report.charts.split import split_chart
from paceline.lab.report.html import page_html
from paceline.lab.report.page import Figure, Page, Table, Words
from paceline.lab.report.requests import requests_of
from paceline.lab.report.run_page import run_page

ALL_FIGURES = {
    "outcomes", "in-flight", "rates", "ttft", "ttft-time", "tpot", "tpot-time", "e2e", "icl-max", "ttft-split",
    "attainment", "length-map", "batch", "kv", "server-tokens", "hits",
}  # fmt: skip


def page_of(run: SampleRun) -> Page:
    return run_page(run.info, run.metrics, run.records, run.server_metrics, run.verdict, folder="runs/x")


def figures(page: Page) -> dict[str, Figure]:
    return {figure.id: figure for section in page.sections for figure in section.figures}


def tables(page: Page) -> dict[str, Table]:
    return {b.caption: b for section in page.sections for b in section.blocks if isinstance(b, Table)}


def test_a_whole_run_shows_every_figure_with_its_numbers(run):
    page = page_of(run)
    assert set(figures(page)) == ALL_FIGURES
    for figure in figures(page).values():
        assert figure.traces, figure.id
        assert figure.table.rows, figure.id
        assert all(len(row) == len(figure.table.columns) for row in figure.table.rows), figure.id
        assert figure.layout["xaxis"].get("title"), f"{figure.id} has an axis without a title"


def test_the_verdict_comes_first_with_what_failed_before_what_passed(run):
    page = page_of(run)
    assert page.answer is Answer.FAIL
    assert page.sentence == run.verdict.sentence
    order = [gate.answer for gate in page.gates]
    assert order[0] is Answer.FAIL
    assert order[-1] is Answer.NOT_MEASURED
    failed = page.gates[0]
    assert failed.name == "TPOT"
    assert failed.strip["limit"] < failed.strip["lo"] < failed.strip["value"] < failed.strip["hi"]
    assert "TPOT interactive p95 would have to move by" in page.what_would_change_it
    assert "more samples would narrow Quality" in page.what_would_change_it


def test_a_difference_of_shares_is_said_in_points(run):
    quality = next(gate for gate in page_of(run).gates if gate.name == "Quality")
    assert quality.value.replace("\u00a0", " ") == "−1.20 points"
    assert quality.limit.replace("\u00a0", " ") == "−2 points"


def test_key_numbers_carry_intervals(run):
    numbers = {item.label: item for item in page_of(run).numbers}
    assert {"Goodput", "Attainment", "TTFT p95", "TPOT p95", "Output", "Prefix hits", "Requests"} <= set(numbers)
    assert numbers["Goodput"].value == f"{run.metrics.whole.goodput_rps.value:.2f}"
    assert numbers["Goodput"].interval.startswith("[")
    assert numbers["Goodput"].unit == "req/s"


def test_outcomes_add_up_to_every_request(run):
    figure = outcome_chart(run.metrics.whole)
    assert sum(trace["x"][0] for trace in figure.traces) == pytest.approx(1.0)
    assert sum(int(row[1].replace(",", "")) for row in figure.table.rows) == run.metrics.whole.num_requests


def test_the_parts_of_ttft_add_up(run):
    figure = split_chart(requests_of(run.info, run.records))
    spent = [trace for trace in figure.traces if trace["name"] != "prefill saved by the cache"]
    assert len(spent) == len(figure.traces) - 1
    total = sum(trace["x"][0] for trace in spent) / 1e3
    assert total == pytest.approx(run.metrics.whole.latency["ttft"].mean, rel=1e-6)


def test_latency_curves_end_at_the_slowest_request_of_the_tables(run):
    figure = figures(page_of(run))["ttft"]
    assert [trace["name"] for trace in figure.traces] == ["from the schedule", "from send"]
    assert figure.traces[0]["x"][-1] / 1e3 == pytest.approx(run.metrics.whole.latency["ttft"].max)
    assert [view.label for view in figure.views] == ["Log tail", "Linear"]


def test_tables_by_class_tenant_and_length_and_no_table_twice(run):
    found = tables(page_of(run))
    assert {"By class", "By tenant", "By length", "Latencies with 95 % intervals", "Parts of TTFT"} <= set(found)
    assert "By stream" not in found, "one stream for each class: the same table again"


def test_a_run_without_anything_says_so_and_still_has_a_page(run):
    info = msgspec.structs.replace(run.info, slo=[], config={}, cache={}, start={}, energy={}, fingerprint={}, spec={})
    empty = SampleRun(info, [], compute(info, []), [])
    page = page_of(empty)
    assert page.answer is Answer.INVALID
    assert page.sentence.startswith("Nothing can be said about the server: ")
    missing = [b.text for s in page.sections for b in s.blocks if isinstance(b, Words) and b.tone == "missing"]
    assert len(missing) >= 4
    assert all(text.startswith(("Not measured", "Energy: not measured", "Cost: not measured")) for text in missing)
    page_html(page)


def test_without_an_slo_nothing_is_called_good(run):
    info = msgspec.structs.replace(run.info, slo=[])
    page = page_of(SampleRun(info, run.records, compute(info, run.records), run.server_metrics))
    assert "no SLO was asked for" in page.sentence
    page_html(page)


def test_a_caution_that_voids_the_run_is_the_answer(run):
    bad = Caution(code="client_bound", sentence="The client was late.", invalidates=True)
    mild = Caution(code="thin", sentence="Few samples.")
    metrics = msgspec.structs.replace(run.metrics, cautions=(mild, bad))
    page = page_of(SampleRun(run.info, run.records, metrics, []))
    assert page.answer is Answer.INVALID
    assert [warn.code for warn in page.cautions] == ["client_bound", "thin"]
    assert page.cautions[0].severe


def test_every_failed_request_is_drawn_nowhere_but_counted(run):
    failed = [msgspec.structs.replace(r, chunks=[], outcome=Outcome.TIMEOUT) for r in run.records[:40]]
    page = page_of(SampleRun(run.info, failed, compute(run.info, failed), []))
    assert "ttft" not in figures(page)
    page_html(page)


def scrape(t_s: float, **common: float) -> dict[str, object]:
    return {"t_ns": int(t_s * 1e9), "common": common, "values": {}}


def test_a_counter_that_starts_again_adds_nothing_negative(run):
    rows = [scrape(t, output_tokens=v, num_running=1) for t, v in enumerate([100, 200, 300, 0, 100])]
    charts = {figure.id: figure for figure in server_charts(rows, run.info.window)}
    assert set(charts) == {"batch", "server-tokens"}, "a series that is not there gives no chart"
    assert min(charts["server-tokens"].traces[0]["y"]) >= 0


def test_the_hit_rate_is_new_hits_over_new_queries(run):
    rows = [scrape(t, prefix_queries=100.0 * t, prefix_hits=25.0 * t) for t in range(1, 6)]
    charts = {figure.id: figure for figure in server_charts(rows, run.info.window)}
    assert np.allclose(charts["hits"].traces[0]["y"], 0.25)
    assert "25" in charts["hits"].lead


def test_no_server_metrics_no_charts(run):
    assert server_charts([], run.info.window) == ()
    assert server_charts([scrape(1, num_running=1)], run.info.window) == ()


def test_valid_answers_are_told_beside_the_requests(run):
    records = [
        msgspec.structs.replace(r, valid={"tool_call": i % 4 > 0, "json": True}) for i, r in enumerate(run.records)
    ]
    terms = tuple(msgspec.structs.replace(each, validators=("tool_call",)) for each in run.info.slo)
    info = msgspec.structs.replace(run.info, slo=terms)
    metrics = compute(info, records)
    page = run_page(info, metrics, records, run.server_metrics, None, folder="runs/x")
    passed, judged = metrics.whole.valid["tool_call"]
    assert 0 < passed < judged
    (note,) = [each.interval for each in page.numbers if each.label == "Requests"]
    assert note.endswith(f"; tool call valid in {passed} of {judged}")
    assert "json" not in note


def test_cut_answers_are_told_apart_from_invalid_ones(run):
    whole, cut = {"json": True, "not_truncated": True}, {"json": False, "not_truncated": False}
    records = [
        msgspec.structs.replace(r, valid=cut if i % 4 == 0 else whole, reason="length" if i % 4 == 0 else "stop")
        for i, r in enumerate(run.records)
    ]
    terms = tuple(msgspec.structs.replace(each, validators=("json",)) for each in run.info.slo)
    info = msgspec.structs.replace(run.info, slo=terms)
    metrics = compute(info, records)
    page = run_page(info, metrics, records, run.server_metrics, None, folder="runs/x")
    passed, judged = metrics.whole.valid["json"]
    assert passed == judged == metrics.whole.num_requests - metrics.whole.num_cut
    (note,) = [each.interval for each in page.numbers if each.label == "Requests"]
    assert note.endswith(
        f"; json valid in {passed} of {judged}; {metrics.whole.num_cut} more cut at their limit of tokens"
    )
