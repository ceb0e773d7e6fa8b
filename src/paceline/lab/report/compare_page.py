"""The page of two stored runs, B against A: the verdict, ratios with intervals, curves of both, and what differs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from paceline.contracts.artefact import Answer, Estimate
from paceline.lab.artefact.comparison import INCOMPARABLE, Comparison, Line
from paceline.lab.report.charts.latency import Series, latency_chart
from paceline.lab.report.charts.ratios import RatioRow, ratio_chart
from paceline.lab.report.glossary import glossary
from paceline.lab.report.page import Block, Cell, KeyNumber, Page, Row, Section, Table, Warn, Words
from paceline.lab.report.requests import requests_of
from paceline.lab.report.verdict import cautions_of, slo_words
from paceline.lab.report.words import count, exact, interval_of, number, plain, ratio, value_of

if TYPE_CHECKING:
    from paceline.lab.artefact import StoredRun

_NAMES = {
    "goodput": ("Goodput", ""), "attainment": ("Attainment", "share"), "tokens_per_s": ("Output tokens/s", ""),
    "good_tokens": ("Good tokens/s", ""), "ttft": ("TTFT", "s"), "tpot": ("TPOT", "s"), "e2e": ("E2E", "s"),
    "quality": ("Quality", "share"),
}  # fmt: skip
_ANSWERS = {
    "better": Answer.PASS,
    "worse": Answer.FAIL,
    "no difference shown": Answer.INCONCLUSIVE,
    "not comparable": Answer.INVALID,
}
_WHERE = {
    "config": "server configuration",
    "workload": "workload",
    "slo": "SLO",
    "target": "server",
    "cache": "cache protocol",
    "fingerprint": "machine and software",
}


def compare_page(comparison: Comparison, a: StoredRun, b: StoredRun) -> Page:
    names = _run_names(a, b)
    sections = [
        _ratio_section(comparison),
        _latency_section(a, b, names),
        _differences_section(comparison, names),
        glossary(),
    ]
    return Page(
        kind="comparison",
        title=f"B against A: {names[1]} against {names[0]}",
        answer=_ANSWERS.get(comparison.answer),
        answer_word=comparison.answer,
        sentence=comparison.sentence,
        subtitle=_subtitle(comparison, a, b, names),
        question=b.info.question if b.info.question == a.info.question else "",
        numbers=_key_numbers(comparison),
        cautions=(*_reasons(comparison), *cautions_of(comparison.cautions)),
        sections=tuple(section for section in sections if section is not None),
    )


def _reasons(comparison: Comparison) -> list[Warn]:
    """Why the runs do not pair. Why they cannot be compared is in the sentence."""
    if comparison.answer == INCOMPARABLE:
        return []
    return [
        Warn("not_paired", f"{reason[0].upper()}{reason[1:]}.".replace("..", "."))
        for reason in comparison.reasons
        if reason
    ]


def _run_names(a: StoredRun, b: StoredRun) -> tuple[str, str]:
    """The runs' own names; their folders' where those are equal, and A and B where that does not tell them apart."""
    for left, right in ((a.info.name, b.info.name), (a.path.name, b.path.name)):
        if left != right and left and right:
            return left, right
    return "A", "B"


def _subtitle(comparison: Comparison, a: StoredRun, b: StoredRun, names: tuple[str, str]) -> tuple[str, ...]:
    pairs = f"{count(comparison.num_pairs)} requests paired by id" if comparison.paired else "not paired"
    arms = zip("AB", names, (a, b), strict=True)
    told = [f"{letter}: {name}, {run.info.target.model}, {run.info.created}" for letter, name, run in arms]
    return (*told, pairs, slo_words(a.info.slo))


def _key_numbers(comparison: Comparison) -> tuple[KeyNumber, ...]:
    found = []
    for line in comparison.lines:
        if line.figure not in ("goodput", "attainment", "ttft_p95", "tpot_p95"):
            continue
        name, unit = figure_name(line.figure)
        note = f"{value_of(line.a, unit)} → {value_of(line.b, unit)}"
        found.append(
            KeyNumber(
                f"{name}, B over A", ratio(line.ratio.value), "", interval_of(line.ratio, "ratio"), note, _tone(line)
            )
        )
    return tuple(found)


def figure_name(figure: str) -> tuple[str, str]:
    """`ttft_p95` -> ("TTFT p95", "s")."""
    head, _, rest = figure.partition(":")
    if rest:
        name, unit = _NAMES.get(head, (head, ""))
        return f"{name}: {rest}", unit
    if figure in _NAMES:
        return _NAMES[figure]
    head, _, mark = figure.rpartition("_")
    name, unit = _NAMES.get(head, (figure.replace("_", " "), ""))
    return (f"{name} {mark}" if head in _NAMES else name), unit


def _is_ratio(line: Line) -> bool:
    return line.ratio.unit in ("x", "ratio", "×", "") and not line.figure.startswith("quality")


def _ratio_section(comparison: Comparison) -> Section:
    rows = []
    for line in comparison.lines:
        if _is_ratio(line):
            name, unit = figure_name(line.figure)
            rows.append(
                RatioRow(
                    name, value_of(line.a, unit), value_of(line.b, unit), line.ratio, line.higher_is_better, _tone(line)
                )
            )
    chart = ratio_chart(
        rows,
        lead="Where an interval crosses 1, no difference is shown. Better and worse are decided over all figures.",
    )
    blocks: list[Block] = [chart] if chart is not None else []
    if comparison.lines:
        blocks.append(_lines_table(comparison))
    return Section("ratios-section", "Difference", tuple(blocks) or (Words("The runs cannot be compared.", "missing"),))


def _tone(line: Line) -> Literal["", "good", "bad"]:
    return "good" if line.answer == "better" else "bad" if line.answer == "worse" else ""


def _lines_table(comparison: Comparison) -> Table:
    rows: list[Row] = []
    for line in comparison.lines:
        name, unit = figure_name(line.figure)
        if _is_ratio(line):
            difference = Cell(ratio(line.ratio.value), interval_of(line.ratio, "ratio"))
        else:
            difference = Cell(_points(line.ratio), "points")
        typical = "–" if line.typical is None else Cell(ratio(line.typical.value), interval_of(line.typical, "ratio"))
        rows.append(
            (
                name, *(Cell(value_of(e, unit), interval_of(e, unit)) for e in (line.a, line.b)), difference, typical,
                number(line.p), number(line.p_holm), Cell(line.answer, line.not_worse, _tone(line)),
            )
        )  # fmt: skip
    columns = ("figure", "A", "B", "B over A", "one request, typically", "p", "p of all figures", "answer")
    return Table(columns, tuple(rows), caption="Each figure with 95 % intervals")


def _points(difference: Estimate) -> str:
    """Of shares, in points."""
    if difference.value is None:
        return "–"
    scale = 1.0 if difference.unit == "points" else 100.0
    low, high = (number(None if v is None else v * scale) for v in (difference.lo, difference.hi))
    return f"{number(difference.value * scale)} [{low}, {high}]"


def _latency_section(a: StoredRun, b: StoredRun, names: tuple[str, str]) -> Section | None:
    left, right = requests_of(a.info, a.records), requests_of(b.info, b.records)
    charts = []
    for term, title in (("ttft", "TTFT"), ("tpot", "TPOT"), ("e2e", "End to end"), ("icl_max", "Longest gap")):
        series = [
            Series(f"A: {names[0]}", left.measured(getattr(left.times, term)), "@f", "dash"),
            Series(f"B: {names[1]}", right.measured(getattr(right.times, term)), "@a"),
        ]
        limits = sorted({limit for terms in a.info.slo if (limit := getattr(terms, f"{term}_s")) is not None})
        charts.append(
            latency_chart(
                term, title, title if term != "e2e" else "E2E", series, [(f"limit {exact(at)}", at) for at in limits]
            )
        )
    found = tuple(chart for chart in charts if chart is not None)
    return Section("latency", "Latency", found, "Requests of each window that ended well.") if found else None


def _differences_section(comparison: Comparison, names: tuple[str, str]) -> Section:
    if not comparison.differences:
        return Section(
            "differences", "What differs", (Words("Nothing that was stored differs, apart from the requests' times."),)
        )
    rows = tuple((d.key, _WHERE.get(d.where, d.where), plain(d.a), plain(d.b)) for d in comparison.differences)
    table = Table(("option", "of", f"A: {names[0]}", f"B: {names[1]}"), rows, num_words=4)
    changed = sum(d.where == "config" for d in comparison.differences)
    one = changed == 1
    intro = f"{changed} option{'' if one else 's'} of the server's configuration differ{'s' if one else ''}."
    return Section("differences", "What differs", (table,), intro)
