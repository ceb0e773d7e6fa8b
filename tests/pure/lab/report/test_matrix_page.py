"""The page and the summary of a matrix: one row for each workload, what failed among them, links that stay inside."""

from __future__ import annotations

import io

import msgspec
import pytest
from rich.console import Console
from tests.fakes.lab.sample_matrix import FAILED, sample_matrix, sample_row
from tests.fakes.lab.sample_runs import EVIL, SampleRun

from paceline.errors import LabError
from paceline.lab.artefact import canonical, write_run
from paceline.lab.report import render_report
from paceline.lab.report.html import page_html
from paceline.lab.report.matrix_page import matrix_page, matrix_table
from paceline.lab.report.page import Cell, Table
from paceline.lab.report.stored import stored_summary
from paceline.lab.report.summary import matrix_summary, print_summary

RESULT = sample_matrix()


def texts(cells):
    return [cell.text if isinstance(cell, Cell) else cell for cell in cells]


def test_each_workload_is_a_row_and_what_failed_shows_no_numbers():
    table = matrix_table(RESULT, "report.html")
    steady, _, tools = table.rows
    assert all(len(cells) == len(table.columns) for cells in table.rows)
    assert (steady[0].href, steady[0].note, steady[1].tone) == ("steady/report.html", "the steady one", "good")
    assert texts(steady)[2:6] == ["60", "2.00", "1.90", "95\u00a0%"]
    assert texts(steady)[7] == "–", "a percentile that was refused"
    assert texts(steady)[-1] == "58 ended well, 2 HTTP error"
    assert (tools[0].href, tools[1].text, tools[1].note, tools[1].tone) == ("", "failed", "no tools: 400", "bad")
    assert set(texts(tools)[2:]) == {"–"}


def test_the_sentence_and_the_numbers_leave_out_what_was_not_measured():
    page = matrix_page(RESULT)
    assert page.sentence == "2 of 3 workloads were measured; targets of their classes: 1 pass, 1 fail."
    assert (page.answer, page.answer_word) == (None, "1 of 3 pass")
    numbers = {item.label: item.value.replace("\u00a0", " ") for item in page.numbers}
    assert numbers == {
        "Workloads": "3", "Requests measured": "120", "Lowest attainment": "40 %", "Median attainment": "67.5 %",
    }  # fmt: skip
    assert [warn.code for warn in page.cautions] == ["thin_percentile", "client_bound"]
    assert page.cautions[0].sentence == "In steady: p99 refused. Of this kind in burst too."
    assert page.cautions[1].severe


def test_a_matrix_in_which_nothing_could_be_measured_has_a_page_too():
    page = matrix_page(msgspec.structs.replace(RESULT, rows=(FAILED,), status="partial"))
    assert page.sentence == "0 of 1 workloads were measured; targets of their classes: none was judged."
    assert "interrupted" in page.subtitle[-1]
    assert page_html(page)


def test_the_chart_has_a_bar_for_each_measured_workload():
    (section, _) = matrix_page(RESULT).sections
    (figure,) = section.figures
    assert (figure.traces[0]["y"], figure.traces[0]["x"]) == (["steady", "burst"], [0.95, 0.4])
    assert isinstance(figure.table, Table)


def test_names_from_outside_are_escaped_and_no_link_leaves_the_folder():
    rows = (
        sample_row(EVIL, path="../elsewhere"),
        sample_row("b", path="javascript:alert(1)//"),
        sample_row("c", path="a b"),
    )
    html = page_html(matrix_page(msgspec.structs.replace(RESULT, rows=rows, model=EVIL)))
    assert EVIL not in html
    assert 'href="../elsewhere' not in html
    assert 'href="javascript:' not in html
    assert 'href="a%20b/report.html"' in html


def test_the_summary_is_a_line_for_each_workload():
    out = io.StringIO()
    print_summary(matrix_summary(RESULT, "m/report.html"), Console(file=out, width=140))
    for words in ("2 of 3 workloads", "steady", "burst", "failed", "tools was not measured: no tools: 400",
                  "The client was late.", "m/report.html"):  # fmt: skip
        assert words in out.getvalue()


def test_a_stored_matrix_is_rendered_with_the_pages_of_its_runs(tmp_path, run: SampleRun):
    write_run(tmp_path / "steady", run.info, run.records)
    outside = sample_row("other", path="../other")
    rows = (sample_row("steady"), outside, FAILED)
    (tmp_path / "matrix.json").write_bytes(canonical(msgspec.structs.replace(RESULT, rows=rows)))
    page = render_report(tmp_path)
    assert page == tmp_path / "report.html"
    assert "steady/report.html" in page.read_text("utf-8")
    assert (tmp_path / "steady" / "report.html").is_file()
    out = io.StringIO()
    print_summary(stored_summary(tmp_path, report=page), Console(file=out, width=140))
    assert "2 of 3 workloads" in out.getvalue()
    with pytest.raises(LabError, match="nothing to report"):
        render_report(tmp_path / "no")
