"""A plan as one HTML page: memory as a bar, load against latency as a curve, every layout with its verdict."""

from __future__ import annotations

from pathlib import Path

from paceline.assemble.plan_words import (
    LAYOUT_COLUMNS,
    LAYOUT_LEGEND,
    SIMULATED_COLUMNS,
    draft_rows,
    facts,
    fleet_words,
    layout_rows,
    ledger_rows,
    rejected_rows,
    seconds,
    sentence,
    simulated_legend,
    simulated_rows,
    step_rows,
)
from paceline.lab.report.charts.base import SERIES, limit_line, y_axis
from paceline.lab.report.html import page_html
from paceline.lab.report.page import Block, Code, Facts, Figure, KeyNumber, Page, Section, Table, Words
from paceline.planner import Plan

GIB = 1 << 30


def write_plan_page(plan: Plan, path: Path, *, config: str = "") -> None:
    """Write the page. `config`: the file for `paceline serve`, shown to be copied. Raises OSError as files do."""
    path.write_text(page_html(plan_page(plan, config=config)), encoding="utf-8")


def plan_page(plan: Plan, *, config: str = "") -> Page:
    sections = [
        Section(
            id="walk",
            title="Why this layout",
            blocks=(Table(columns=("question", "in numbers", "", "why"), rows=tuple(step_rows(plan)), num_words=4),),
            intro="Each question in its order, with the inequality that answers it.",
        ),
        Section(
            id="layouts",
            title="Layouts",
            blocks=tuple(_layout_tables(plan)),
            intro=f"{plan.search.num_judged} layouts and chunk sizes judged; shown is the best chunk of each.",
        ),
    ]
    figures: list[Block] = [f for f in (memory_figure(plan), frontier_figure(plan)) if f is not None]
    if figures:
        sections.insert(0, Section(id="picture", title="Memory and load", blocks=tuple(figures)))
    if rows := draft_rows(plan):
        table = Table(columns=("rows", "drafts", "gain", "by number of drafts"), rows=tuple(rows), num_words=4)
        sections.append(Section(id="drafts", title="Speculation", blocks=(table,)))
    if config:
        block = Code(text=config, title="paceline serve --config FILE")
        sections.append(Section(id="configuration", title="Configuration", blocks=(block,)))
    taken: tuple[Block, ...] = (Facts(items=tuple(facts(plan))), *(Words(text=note) for note in plan.notes))
    sections.append(Section(id="basis", title="What it rests on", blocks=taken))
    return Page(
        kind="plan",
        title=f"{plan.question.spec.name} on {fleet_words(plan.question)}",
        answer=None,
        answer_word="plan" if plan.chosen is not None else "nothing fits",
        sentence=sentence(plan),
        numbers=_numbers(plan),
        sections=tuple(sections),
    )


def _layout_tables(plan: Plan) -> list[Block]:
    tables: list[Block] = []
    if rows := layout_rows(plan):
        tables.append(Table(columns=LAYOUT_COLUMNS, rows=tuple(rows), caption=LAYOUT_LEGEND))
    if rows := simulated_rows(plan):
        tables.append(Table(columns=SIMULATED_COLUMNS, rows=tuple(rows), caption=simulated_legend(plan)))
    if refused := rejected_rows(plan):
        tables.append(Table(columns=("layout", "why it does not fit"), rows=tuple(refused), num_words=2))
    return tables


def _numbers(plan: Plan) -> tuple[KeyNumber, ...]:
    chosen = plan.chosen
    if chosen is None or chosen.operating is None:
        return ()
    interval = f"{chosen.low_rps:.3g} to {chosen.high_rps:.3g} at most" if chosen.high_rps else ""
    found = [
        KeyNumber("goodput", f"{chosen.goodput_rps:.3g}", "req/s", interval, chosen.tier),
        KeyNumber("after one device fails", f"{chosen.goodput_after_loss_rps:.3g}", "req/s"),
        KeyNumber("TTFT p95", seconds(chosen.operating.ttft_p95_s)),
        KeyNumber("TPOT", f"{chosen.operating.step_ms:.3g}", "ms"),
    ]
    if chosen.cost_per_million is not None:
        found.append(KeyNumber("cost", f"{chosen.cost_per_million:.3g}", "per million good tokens"))
    return tuple(found)


def memory_figure(plan: Plan) -> Figure | None:
    """The fullest device as one bar."""
    if plan.memory is None:
        return None
    ledger = plan.memory.plan.ledger
    parts = [(e.name.replace("_", " "), e.predicted_bytes) for e in ledger.entries if e.predicted_bytes]
    parts.append(("left", ledger.left))
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "name": name,
            "y": ["memory"],
            "x": [num_bytes / GIB],
            "marker": {"color": "@shade" if name == "left" else SERIES[index % len(SERIES)]},
            "hovertemplate": f"{name}: %{{x:.2f}} GiB<extra></extra>",
        }
        for index, (name, num_bytes) in enumerate(parts)
    ]
    return Figure(
        id="memory",
        title="Memory of the fullest device",
        lead=f"{plan.memory.fit.num_seqs} running sequences of this traffic fit into the KV cache.",
        traces=traces,
        layout={"barmode": "stack", "xaxis": {"title": {"text": "GiB"}}},
        table=Table(columns=("part", "bytes", "how"), rows=tuple(ledger_rows(plan)), num_words=3),
        height=220,
        wide=True,
    )


def frontier_figure(plan: Plan) -> Figure | None:
    """Good requests per second against what each token costs, as load rises."""
    if len(plan.frontier) < 2:
        return None
    good = [point[0] for point in plan.frontier]
    rows = tuple(
        (f"{rate:.3g}", f"{tpot:.3g}", f"{1e3 * ttft:.3g}", f"{share:.1%}") for rate, tpot, ttft, share in plan.frontier
    )
    slo = plan.question.slo
    return Figure(
        id="frontier",
        title="What more load costs",
        lead="Along the curve load rises; where requests begin to miss their targets it turns back.",
        traces=[
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": str(plan.chosen.layout) if plan.chosen else "",
                "x": [point[1] for point in plan.frontier],
                "y": good,
                "line": {"color": "@a"},
                "hovertemplate": "TPOT %{x:.3g} ms, %{y:.3g} good requests/s<extra></extra>",
            }
        ],
        layout={
            "xaxis": {"title": {"text": "TPOT (ms)"}},
            "yaxis": y_axis("good requests per second"),
            "shapes": [] if slo.tpot_s is None else [limit_line(1e3 * slo.tpot_s, vertical=True)],
        },
        table=Table(columns=("good req/s", "TPOT ms", "TTFT p95 ms", "within targets"), rows=rows, num_words=0),
        wide=True,
    )
