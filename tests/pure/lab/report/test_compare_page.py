from __future__ import annotations

from pathlib import Path

import pytest
from tests.fakes.lab.sample_comparison import COMPARISON
from tests.fakes.lab.sample_runs import SampleRun

from paceline.contracts.artefact import Answer
from paceline.lab.artefact import StoredRun
from paceline.lab.artefact.comparison import Comparison
from paceline.lab.report.compare_page import compare_page, figure_name
from paceline.lab.report.html import page_html
from paceline.lab.report.page import Table


def stored(run: SampleRun, path: str) -> StoredRun:
    return StoredRun(path=Path(path), info=run.info, records=run.records, metrics=run.metrics)


@pytest.fixture(scope="module")
def page(ladder_runs):
    a, b = ladder_runs["chunked-prefill"], ladder_runs["prefix-cache"]
    return compare_page(COMPARISON, stored(a, "a"), stored(b, "b"))


def test_the_verdict_says_better_or_worse(page):
    assert (page.answer, page.answer_word, page.sentence) == (Answer.PASS, "better", "B is better.")
    assert page.title == "B against A: prefix-cache against chunked-prefill"
    assert "290 requests paired by id" in page.subtitle
    assert "chip pass" in page_html(page)


def test_ratios_stand_around_one_by_what_was_decided(page):
    chart = next(f for section in page.sections for f in section.figures if f.id == "ratios")
    by_name = {trace["name"]: trace["y"] for trace in chart.traces}
    assert by_name == {"better": ["Goodput", "TTFT p95"], "worse": ["TPOT p95"], "not told apart": ["E2E p50"]}
    assert len(chart.table.rows) == 4, "quality is a difference, not a ratio"


def test_every_line_is_in_the_table_quality_in_points(page):
    table = next(b for s in page.sections for b in s.blocks if isinstance(b, Table) and b.caption.startswith("Each"))
    assert [row[0] for row in table.rows] == ["Goodput", "TTFT p95", "TPOT p95", "E2E p50", "Quality: basics"]
    assert table.rows[-1][3].text.startswith("−2.00 [−5.00, 1.00]")


def test_what_differs_is_listed(page):
    section = next(s for s in page.sections if s.id == "differences")
    assert section.intro == "1 option of the server's configuration differs."
    assert section.blocks[0].rows == (("prefix_cache", "server configuration", "no", "yes"),)


def test_runs_that_cannot_be_compared(ladder_runs):
    run = stored(ladder_runs["static"], "a")
    nothing = Comparison(
        a="x",
        b="x",
        answer="not comparable",
        sentence="Not comparable: their SLOs differ.",
        reasons=("their SLOs differ",),
    )
    page = compare_page(nothing, run, run)
    assert page.answer is Answer.INVALID
    assert page.cautions == ()
    assert page.title == "B against A: B against A"
    page_html(page)


def test_why_requests_do_not_pair_is_a_caution(ladder_runs):
    run = stored(ladder_runs["static"], "a")
    page = compare_page(
        Comparison(a="x", b="x", answer="better", sentence=".", reasons=("the plans differ",)), run, run
    )
    assert [(w.code, w.sentence) for w in page.cautions] == [("not_paired", "The plans differ.")]


def test_names_of_figures():
    assert figure_name("ttft_p95") == ("TTFT p95", "s")
    assert figure_name("tokens_per_s") == ("Output tokens/s", "")
    assert figure_name("quality:gsm") == ("Quality: gsm", "share")
    assert figure_name("something_new") == ("something new", "")
