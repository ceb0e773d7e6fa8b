"""The page of a matrix: one row for each named workload, with a link to the page of its run."""

from __future__ import annotations

import statistics
from collections import Counter
from typing import TYPE_CHECKING, Literal
from urllib.parse import quote

from paceline.contracts.artefact import Answer
from paceline.lab.report.charts.base import SERIES, category_axis, plain_text
from paceline.lab.report.glossary import glossary
from paceline.lab.report.page import Block, Cell, Figure, KeyNumber, Page, Row, Section, Table, Warn
from paceline.lab.report.words import NOTHING, count, number, outcome, seconds, share

if TYPE_CHECKING:
    from paceline.lab.experiment.bench import MatrixResult, MatrixRow

_TONES: dict[Answer, Literal["good", "bad"]] = {Answer.PASS: "good", Answer.FAIL: "bad", Answer.INVALID: "bad"}
_COLUMNS = (
    "workload", "targets met", "requests", "offered (req/s)", "goodput (req/s)", "attainment", "TTFT p50", "TTFT p95",
    "TPOT p50", "TPOT p95", "output (tokens/s)", "prefix hits", "ended",
)  # fmt: skip


def matrix_page(result: MatrixResult, report: str = "report.html") -> Page:
    """`report`: name of the page in each run's folder."""
    answers = Counter(row.answer.value for row in result.rows if row.status != "failed")
    told = ", ".join(f"{num} {answer}" for answer, num in answers.most_common()) or "none was judged"
    return Page(
        kind="matrix",
        title=f"The workload matrix on {result.model}",
        answer=None,
        answer_word=f"{answers[Answer.PASS.value]} of {len(result.rows)} pass",
        sentence=f"{answers.total()} of {len(result.rows)} workloads were measured; targets of their classes: {told}.",
        subtitle=tuple(filter(None, (result.server, result.created, _partial(result)))),
        numbers=_numbers(result),
        cautions=_cautions(result),
        sections=(
            Section("workloads", "Every workload", (*_chart(result), matrix_table(result, report)), intro=_INTRO),
            glossary(),
        ),
    )


_INTRO = (
    "Sizes follow the server's context, rates its estimated capacity, targets its unloaded times. So rows show how one "
    "server takes different traffic; two servers are compared by runs of equal workloads. Times are of requests that "
    "ended well; the others are counted in the last column."
)


def _partial(result: MatrixResult) -> str:
    return "" if result.status == "complete" else "partial: the matrix was interrupted"


def matrix_table(result: MatrixResult, report: str) -> Table:
    rows: list[Row] = []
    for row in result.rows:
        name = Cell(row.name, row.description, href=quote(f"{row.path}/{report}") if row.path else "")
        why = row.reason or ("" if row.answer is Answer.PASS else row.sentence)
        answer = Cell("failed" if row.status == "failed" else row.answer.value, why, tone=_TONES.get(row.answer, ""))
        rows.append((name, answer, *_cells(row)))
    return Table(_COLUMNS, tuple(rows), num_words=2)


def _cells(row: MatrixRow) -> tuple[str, ...]:
    get = row.figures.get
    ended = ", ".join(f"{count(num)} {outcome(name)}" for name, num in get("outcomes", {}).items() if num)
    return (
        count(get("num_requests", 0)) if row.figures else NOTHING,
        number(get("offered_rps")),
        number(get("goodput_rps")),
        share(get("attainment")),
        *(seconds(get(f"{name}_{p}_s")) for name in ("ttft", "tpot") for p in ("p50", "p95")),
        number(get("output_tokens_per_s")),
        share(get("prefix_hit")),
        ended or NOTHING,
    )


def _chart(result: MatrixResult) -> list[Block]:
    """Attainment by workload."""
    rows = [row for row in result.rows if _figure(row, "attainment") is not None]
    if not rows:
        return []
    names = [plain_text(row.name) for row in rows]
    met = [_figure(row, "attainment") for row in rows]
    trace = {
        "type": "bar", "orientation": "h", "y": names, "x": met, "marker": {"color": SERIES[0]},
        "hovertemplate": "%{y}: %{x:.1%} of requests were good<extra></extra>",
    }  # fmt: skip
    layout = {
        "bargap": 0.35, "yaxis": category_axis(autorange="reversed"),
        "xaxis": {"title": {"text": "requests that met every target"}, "range": [0, 1.02], "tickformat": ".0%"},
    }  # fmt: skip
    table = Table(("workload", "attainment"), tuple((row.name, share(_figure(row, "attainment"))) for row in rows))
    figure = Figure("matrix", "Attainment by workload", [trace], layout, table, height=90 + 24 * len(rows), wide=True)
    return [figure]


def _numbers(result: MatrixResult) -> tuple[KeyNumber, ...]:
    met = [v for row in result.rows if (v := _figure(row, "attainment")) is not None]
    if not met:
        return ()
    num_requests = sum(row.figures.get("num_requests", 0) for row in result.rows)
    return (
        KeyNumber("Workloads", count(len(result.rows)), note=f"{count(len(met))} with a share of good requests"),
        KeyNumber("Requests measured", count(num_requests)),
        KeyNumber("Lowest attainment", share(min(met))),
        KeyNumber("Median attainment", share(statistics.median(met))),
    )


def _cautions(result: MatrixResult) -> tuple[Warn, ...]:
    """Each kind once, with the workloads it concerns."""
    found: dict[str, list[str]] = {}
    severe: dict[str, bool] = {}
    words: dict[str, str] = {}
    for row in result.rows:
        for caution in row.cautions:
            found.setdefault(caution.code, []).append(row.name)
            severe[caution.code] = severe.get(caution.code, False) or caution.invalidates
            words.setdefault(caution.code, caution.sentence)
    return tuple(Warn(code, _where(words[code], list(dict.fromkeys(found[code]))), severe[code]) for code in found)


def _where(sentence: str, names: list[str]) -> str:
    """The sentence holds the first one's numbers."""
    more = f" Of this kind in {', '.join(names[1:])} too." if len(names) > 1 else ""
    return f"In {names[0]}: {sentence}{more}"


def _figure(row: MatrixRow, name: str) -> float | None:
    value = row.figures.get(name)
    return float(value) if value is not None else None
