"""The page of a matrix: one row for each named workload, with a link to the page of its run."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from paceline.contracts.artefact import Answer
from paceline.lab.report.charts.base import SERIES, category_axis, plain_text
from paceline.lab.report.glossary import glossary
from paceline.lab.report.page import Block, Cell, Figure, KeyNumber, Page, Row, Section, Table, Warn
from paceline.lab.report.words import count, number, seconds, share

if TYPE_CHECKING:
    from paceline.lab.experiment.bench import MatrixResult, MatrixRow

_TONES = {Answer.PASS: "good", Answer.FAIL: "bad", Answer.INVALID: "bad"}
_COLUMNS = (
    "workload", "targets met", "requests", "offered", "goodput", "attainment", "TTFT p50", "p95", "TPOT p50", "p95",
    "output", "prefix hits", "ended",
)  # fmt: skip


def matrix_page(result: MatrixResult, report: str = "report.html") -> Page:
    """`report`: name of the page in each run's folder."""
    answers = Counter(row.answer for row in result.rows)
    told = ", ".join(f"{number} {answer}" for answer, number in answers.most_common())
    good = sum(_figure(row, "goodput_rps") is not None for row in result.rows)
    return Page(
        kind="matrix",
        title=f"The workload matrix on {result.model}",
        answer=None,
        sentence=f"{len(result.rows)} workloads, {good} of them measured; targets of their classes: {told}.",
        subtitle=tuple(filter(None, (result.server, result.created, "" if result.status == "complete" else "partial"))),
        numbers=_numbers(result),
        cautions=_cautions(result),
        sections=(
            Section("workloads", "Every workload", (*_chart(result), _table(result, report)), intro=_INTRO),
            glossary(),
        ),
    )


_INTRO = (
    "Sizes follow the server's context, rates its estimated capacity, targets its unloaded times. So rows show how one "
    "server takes different traffic; two servers are compared by runs of equal workloads."
)


def _table(result: MatrixResult, report: str) -> Table:
    rows: list[Row] = []
    for row in result.rows:
        name = Cell(row.name, row.description, href=f"{row.path}/{report}" if row.path else "")
        answer = Cell(row.answer, row.reason or ("" if row.answer == Answer.PASS else row.sentence), tone=_tone(row))
        rows.append((name, answer, *_cells(row)))
    return Table(_COLUMNS, tuple(rows), num_words=2)


def _tone(row: MatrixRow) -> Any:
    return _TONES.get(Answer(row.answer), "")


def _cells(row: MatrixRow) -> tuple[str, ...]:
    get = row.figures.get
    ended = ", ".join(f"{num} {name}" for name, num in get("outcomes", {}).items() if num)
    return (
        count(get("num_requests", 0)),
        f"{number(get('offered_rps'))} req/s",
        f"{number(get('goodput_rps'))} req/s",
        share(get("attainment")),
        *(seconds(get(f"{name}_{p}_s")) for name in ("ttft", "tpot") for p in ("p50", "p95")),
        f"{number(get('output_tokens_per_s'))} tokens/s",
        share(get("prefix_hit")),
        ended,
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
        KeyNumber("Workloads", count(len(result.rows))),
        KeyNumber("Requests measured", count(num_requests)),
        KeyNumber("Lowest attainment", share(min(met))),
        KeyNumber("Median attainment", share(sorted(met)[len(met) // 2])),
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
    return tuple(
        Warn(code, f"{words[code]} (so in {', '.join(dict.fromkeys(names))})", severe[code])
        for code, names in found.items()
    )


def _figure(row: MatrixRow, name: str) -> float | None:
    value = row.figures.get(name)
    return float(value) if value is not None else None
