"""A run's results as a page of Markdown and a roofline chart."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from pathlib import Path

from benchmarks.peers.engines import chart, roofline, table
from benchmarks.peers.engines.comparison import Comparison
from benchmarks.peers.engines.workloads import Load, seconds_of


class Shown:
    def __init__(self, comparison: Comparison) -> None:
        self.of = comparison
        self.records = comparison.results.records
        self.rates = rates_of([record for record in self.records if record["kind"] == "limits"])

    def names(self, *, ours: bool) -> list[str]:
        return [column.name for column in self.of.columns if column.ours == ours]

    def page(self) -> str:
        loads, limits = self.of.loads, {}
        if self.rates is not None:
            limits = {name: roofline.limit(load, self.of.sizes, self.rates) for name, load in loads.items()}
        ours, peers = self.names(ours=True), self.names(ours=False)
        same = [c.name for c in self.of.columns if not c.ours and c.model == self.of.file]
        return f"{self.heading()}\n\n{table.page(self.records, list(loads.values()), ours, peers, limits, same)}"

    def heading(self) -> str:
        sessions = self.of.results.sessions()
        before = ", ".join(f"{session['load_average']:.1f}" for session in sessions)
        words = f"{processor()}, {self.of.machine.threads} threads; {self.of.file.name}; {len(sessions)} session(s)"
        lines = [f"{words}, load average before: {before}"]
        if self.rates is not None:
            lines.append(
                f"limits measured in the run: reading {self.rates.bytes_per_s / 1e9:.1f} GB/s, int8 "
                f"{self.rates.int8_ops / 1e9:,.0f} and bfloat16 {self.rates.bf16_ops / 1e9:,.0f} G operations/s"
            )
        versions = {record["column"]: record["version"] for record in self.records if record.get("version")}
        for column in self.of.columns:
            lines.append(f"{column.name}: {versions.get(column.name, '?')}; {column.model.name}; {column.notes}")
        return "\n".join(f"- {line}" for line in lines)

    def chart(self) -> str | None:
        """None where there is nothing to draw."""
        points = [point for load in self.of.loads.values() for point in self.points(load)]
        if self.rates is None or not points:
            return None
        title = f"{self.of.file.name} on {processor()}"
        return chart.svg(points, self.rates, [*self.names(ours=True), *self.names(ours=False)], title)

    def points(self, load: Load) -> list[chart.Point]:
        """What each engine made of a load; operations and bytes are those that the load needs at least."""
        work = roofline.total(load, self.of.sizes)
        ops = work.linear_ops + work.attention_ops
        found = []
        for name, rounds in table.by_round(self.records, load.name).items():
            seconds = seconds_of(load, table.Spread.of(list(rounds.values())).middle)
            found.append(chart.Point(name, load.name, ops / work.num_bytes, ops / seconds))
        return found


def rates_of(records: Sequence[table.Record]) -> roofline.Rates | None:
    """The best of what was measured before and after: whatever disturbs makes it less."""
    if not records:
        return None
    read = [record["read_gb_s"][str(record["weights_mib"])] * 1e9 for record in records]
    int8, bf16 = ([record["ops_per_s"][name] for record in records] for name in ("int8", "bf16"))
    return roofline.Rates(max(read), max(int8), max(bf16))


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
