"""What the demo measured, as plain data and as lines for people."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from paceline.contracts.slo import Outcome, Slo, Timeline, goodput, min_samples, percentile

if TYPE_CHECKING:
    from paceline.cli.demo_load import Job

TARGETS = Slo(ttft_s=2.0, tpot_s=0.2)


def summarise(
    jobs: Sequence[Job], timelines: Mapping[int, Sequence[Timeline]], engine: Mapping[str, Any]
) -> dict[str, Any]:
    """Everything the report shows. Cancelled calls are counted, and left out of the latencies; failed ones are in
    goodput and never good. `engine`: the server's last look at its engine."""
    lines = [t for found in timelines.values() for t in found]
    served = [t for t in lines if t.outcome is not Outcome.CLIENT_CANCEL]
    window_s = max(t.end for t in served) - min(t.planned for t in served)
    kinds = dict.fromkeys(job.kind for job in jobs if job.kind != "cancelled")
    kv = engine["kv"]
    return {
        "calls": len(jobs),
        "sequences": len(served),
        "cancelled": len(lines) - len(served),
        "failed": sum(t.outcome is not Outcome.OK for t in served),
        "window_s": window_s,
        "output_tokens_per_s": sum(t.num_tokens for t in served) / window_s,
        "goodput_per_s": goodput(served, TARGETS, window_s),
        "good_share": sum(t.is_good(TARGETS) for t in served) / len(served),
        "targets": {"ttft_s": TARGETS.ttft_s, "tpot_s": TARGETS.tpot_s},
        "all": _latencies(served),
        "by_kind": {
            kind: _latencies([t for i, job in enumerate(jobs) if job.kind == kind for t in timelines[i]])
            for kind in kinds
        },
        "prefix_hit_rate": kv["hit_tokens"] / kv["query_tokens"] if kv["query_tokens"] else 0.0,
        "prefix_hit_tokens": kv["hit_tokens"],
        "saved_prefill_s": engine["saved_prefill_ms"] / 1000,
        "prefix_misses": kv["miss_reasons"],
        "preemptions": engine["num_preemptions"],
        "kv_blocks": {name: kv[name] for name in ("total", "free", "cached", "held", "limbo")},
    }


def problems(summary: Mapping[str, Any]) -> list[str]:
    """What must not be in a demo that worked."""
    found = []
    if summary["failed"]:
        found.append(f"{summary['failed']} sequences failed")
    if not summary["cancelled"]:
        found.append("no call was cancelled")
    if not summary["prefix_hit_tokens"] and "disabled" not in summary["prefix_misses"]:
        found.append("no prompt found its prefix in the cache")
    if summary["kv_blocks"]["held"]:
        found.append(f"{summary['kv_blocks']['held']} KV blocks are still held")
    return found


def render(summary: Mapping[str, Any]) -> list[str]:
    targets = summary["targets"]
    lines = [
        f"{summary['calls']} calls, {summary['sequences']} sequences ended ({summary['failed']} failed), "
        f"{summary['cancelled']} cancelled, in {summary['window_s']:.1f} s; "
        f"{summary['output_tokens_per_s']:.0f} output tokens/s",
        "",
        "                     n  TTFT p50 ms  p95 ms   TPOT p50 ms  p95 ms",
    ]
    for name, part in [("all", summary["all"]), *summary["by_kind"].items()]:
        ttft, tpot = part["ttft_s"], part["tpot_s"]
        first, later = (_ms(found["p50"]) + _ms(found["p95"]) for found in (ttft, tpot))
        lines.append(f"{name:16s} {ttft['n']:5d}     {first}      {later}")
    return [
        *lines,
        "(as the client saw it, from the planned time; p95 only where at least 59 samples support it)",
        "",
        f"goodput {summary['goodput_per_s']:.2f}/s: {summary['good_share']:.0%} met TTFT <= {targets['ttft_s']:g} s "
        f"and TPOT <= {targets['tpot_s'] * 1000:g} ms",
        f"prefix cache: {summary['prefix_hit_rate']:.0%} of prompt tokens hit ({summary['prefix_hit_tokens']} tokens), "
        f"about {summary['saved_prefill_s']:.1f} s of prefill saved; misses: "
        + ", ".join(f"{reason} {count}" for reason, count in summary["prefix_misses"].items()),
        f"preemptions: {summary['preemptions']}; KV blocks now: "
        + ", ".join(f"{name} {value}" for name, value in summary["kv_blocks"].items()),
    ]


def memory_lines(ledger: Sequence[Sequence[str]]) -> list[str]:
    """The memory ledger of the server's engine."""
    lines = ["memory                  predicted    measured  how"]
    return lines + [f"{part:20s} {predicted:>12s}{measured:>12s}  {how}" for part, predicted, measured, how in ledger]


def _latencies(lines: Sequence[Timeline]) -> dict[str, Any]:
    return {
        "ttft_s": _spread([t.ttft_s for t in lines]),
        "tpot_s": _spread([t.tpot_s for t in lines if not math.isnan(t.tpot_s)]),
    }


def _spread(samples: Sequence[float]) -> dict[str, float | None]:
    return {
        "n": len(samples),
        "p50": percentile(samples, 0.5),
        "p95": percentile(samples, 0.95) if len(samples) >= min_samples(0.95) else None,
    }


def _ms(value: float | None) -> str:
    return f"{value * 1000:8.0f}" if value is not None else "       -"
