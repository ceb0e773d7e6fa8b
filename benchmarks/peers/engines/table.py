"""From what was measured to what is printed. Pure: records in, text out.

A record is one line of the results: {"kind": "load", "load": "W1", "round": 0, "column": name, "value": figure,
"memory_bytes": of W3 and W4}, {"kind": "online", "rate", "column", ...`online.summary`}, {"kind": "quality", "column",
"kl", "kl_p99", "first", "num_positions"}, {"kind": "limits", ...} or {"kind": "failed", "column", "part", "why"}.
Of two records that say the same thing the later counts.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.peers.engines.online import SHARE, best_rate
from benchmarks.peers.engines.workloads import UNIT, Load, speed

Record = dict[str, Any]
GOALS = {"W1": 1.5, "W2": 1.3, "W3": 1.5, "W4": 1.5}  # times as fast as the best peer
_KEYS = {
    "load": ("load", "round", "column"),
    "online": ("rate", "column"),
    "quality": ("column",),
    "limits": ("when",),
    "failed": ("column", "part"),
}


def key_of(record: Mapping[str, Any]) -> tuple[Any, ...]:
    return (record["kind"], *(record[name] for name in _KEYS[record["kind"]]))


def latest(records: Iterable[Record]) -> list[Record]:
    return list({key_of(record): record for record in records if record["kind"] in _KEYS}.values())


@dataclass(frozen=True)
class Spread:
    """Median, least and most."""

    middle: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values))

    def words(self, count: int) -> str:
        return short(self.middle) + (f" [{short(self.low)}-{short(self.high)}]" if count > 1 else "")


def short(value: float) -> str:
    """Three digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def by_round(records: Iterable[Record], load: str) -> dict[str, dict[int, float]]:
    """column -> round -> figure."""
    found: dict[str, dict[int, float]] = {}
    for record in records:
        if record["kind"] == "load" and record["load"] == load:
            found.setdefault(record["column"], {})[record["round"]] = record["value"]
    return found


def ratio(load: str, ours: Mapping[int, float], theirs: Mapping[int, float]) -> tuple[Spread, int] | None:
    """How many times as fast as they we are, from rounds that both ran; None without one."""
    common = sorted(ours.keys() & theirs.keys())
    if not common:
        return None
    return Spread.of([speed(load, ours[r]) / speed(load, theirs[r]) for r in common]), len(common)


def best_peer(load: str, found: Mapping[str, Mapping[int, float]], peers: Iterable[str]) -> str | None:
    """By its median."""
    there = [name for name in peers if found.get(name)]
    return max(there, key=lambda name: speed(load, statistics.median(found[name].values())), default=None)


def figure_rows(
    records: Sequence[Record], loads: Iterable[Load], names: Sequence[str], limits: Mapping[str, float]
) -> list[list[str]]:
    """What each column reached, median and extremes of its rounds, and the limit."""
    rows = []
    for load in loads:
        found = by_round(records, load.name)
        values = [list(found.get(name, {}).values()) for name in names]
        cells = [Spread.of(v).words(len(v)) if v else "-" for v in values]
        limit = short(limits[load.name]) if load.name in limits else "-"
        rows.append([f"{load.name} {load.words}, {UNIT[load.name]}", *cells, limit])
    return rows


def comparison_rows(
    records: Sequence[Record],
    loads: Iterable[Load],
    ours: Sequence[str],
    peers: Sequence[str],
    limits: Mapping[str, float],
) -> list[list[str]]:
    """The best peer of each load, how many times as fast as it each of ours is, and everyone's share of the limit."""
    rows = []
    for load in loads:
        found = by_round(records, load.name)
        best = best_peer(load.name, found, peers)
        cells = [load.name, best or "-", f"{GOALS[load.name]:g}"]
        for name in ours:
            against = ratio(load.name, found.get(name, {}), found[best]) if best else None
            cells.append(against[0].words(against[1]) if against else "-")
        for name in (*ours, best):
            values = list(found.get(name, {}).values()) if name else []
            cells.append(share_of_limit(load.name, values, limits.get(load.name)))
        rows.append(cells)
    return rows


def share_of_limit(load: str, values: Sequence[float], limit: float | None) -> str:
    return f"{speed(load, statistics.median(values)) / speed(load, limit):.0%}" if values and limit else "-"


def memory_rows(
    records: Iterable[Record], names: Sequence[str], same_file: Sequence[str], load: str = "W3"
) -> list[list[str]]:
    """Most memory of each column in a load, MB, and how much more that is than that of each peer on the same file: one
    that holds fewer requests at once needs less for keys and values."""
    most: dict[str, float] = {}
    for record in records:
        if record["kind"] == "load" and record["load"] == load and record.get("memory_bytes"):
            most[record["column"]] = max(most.get(record["column"], 0.0), record["memory_bytes"] / 1e6)
    if not most:
        return []
    rows = [[f"{load} most memory, MB", *(f"{most[n]:,.0f}" if n in most else "-" for n in names)]]
    for peer in (name for name in same_file if name in most):
        more = [f"{most[n] - most[peer]:+,.0f}" if n in most else "-" for n in names]
        rows.append([f"{load} memory, MB more than {peer}", *more])
    return rows


def online_rows(records: Sequence[Record], names: Sequence[str]) -> list[list[str]]:
    """A row for each rate: good share, lower bound, TTFT and TPOT; then the highest rate that held."""
    found = [record for record in records if record["kind"] == "online"]
    cells = {(r["rate"], r["column"]): r for r in found}
    rows = []
    for rate in sorted({r["rate"] for r in found}):
        row = [f"W5 at {rate:g}/s: good (at least), TTFT p95, TPOT p95"]
        for name in names:
            one = cells.get((rate, name))
            row.append(online_cell(one) if one else "-")
        rows.append(row)
    if rows:
        held = {name: {r: c["share"] >= SHARE for (r, n), c in cells.items() if n == name} for name in names}
        rates = {name: best_rate(of) for name, of in held.items()}
        words = {name: f"{rate:g}" if rate is not None else "none" for name, rate in rates.items()}
        rows.append([f"W5 highest rate with {SHARE:.0%} good", *(words[n] if held[n] else "-" for n in names)])
    return rows


def online_cell(one: Mapping[str, Any]) -> str:
    ttft, tpot = one["ttft_s"][1], one["tpot_ms"][1]
    times = ", ".join(f"{short(v)} {unit}" if v < 1e9 else "none" for v, unit in ((ttft, "s"), (tpot, "ms")))
    stopped = f" of the first {one['num_requests']}" if one["num_requests"] < one["num_planned"] else ""
    return f"{one['share']:.1%}{stopped} ({one['share_low']:.1%}), {times}"


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def made_up(records: Iterable[Record], failed: Record) -> bool:
    """Whether a later try brought what is missing."""
    return any(
        record["column"] == failed["column"] and failed["part"] == record.get("load", "W5")
        for record in records
        if record["kind"] in ("load", "online")
    )


def page(
    records: Iterable[Record],
    loads: Sequence[Load],
    ours: Sequence[str],
    peers: Sequence[str],
    limits: Mapping[str, float],
    same_file: Sequence[str] = (),
) -> str:
    """All tables, as Markdown. `same_file`: the peers that run the very file that ours do."""
    known = latest(records)
    names = [*ours, *peers]
    loads = [load for load in loads if by_round(known, load.name)]
    others = [*memory_rows(known, names, same_file), *online_rows(known, names)]
    rows = [*figure_rows(known, loads, names, limits), *([*row, ""] for row in others)]
    head = [
        "",
        "best peer",
        "goal",
        *(f"{name} / it" for name in ours),
        *(f"{name} of limit" for name in ours),
        "it of limit",
    ]
    parts = [markdown(["", *names, "limit"], rows)] if rows else []
    if loads:
        parts.append(markdown(head, comparison_rows(known, loads, ours, peers, limits)))
    quality = [r for r in known if r["kind"] == "quality"]
    if quality:
        rows = [
            [r["column"], f"{r['num_positions']:,}", f"{r['kl']:.5f}", f"{r['kl_p99']:.4f}", f"{r['first']:.1%}"]
            for r in quality
        ]
        parts.append(markdown(["quality", "positions", "mean KL to float32, nats", "p99", "same first token"], rows))
    failed = [
        f"- {r['column']}, {r['part']}: {r['why']}" for r in known if r["kind"] == "failed" and not made_up(known, r)
    ]
    return "\n\n".join([*parts, *(["\n".join(failed)] if failed else [])])
