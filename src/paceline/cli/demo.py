"""`paceline demo`: a real mixed load on the embedded model, and what it measured."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli.options import EngineConfig, engine_options

if TYPE_CHECKING:
    from paceline.cli.demo_load import Job
    from paceline.contracts.slo import Timeline
    from paceline.llm import LLM

TTFT_TARGET_S, TPOT_TARGET_S = 2.0, 0.2
QUESTION = "In two sentences: why does a library lend books for four weeks only?"


@engine_options
def demo(
    report: Annotated[Path, typer.Option("--report", help="Folder of the report.")] = Path("out/demo"),
    load_seed: Annotated[int, typer.Option("--load-seed", help="Seed of the load.")] = 1,
    rate: Annotated[float, typer.Option("--rate", help="Calls per second (Poisson).")] = 1.0,
    *,
    config: EngineConfig,
) -> None:
    """Serve 64 mixed calls offline (short, long, shared prefix, sampled, one cancelled) and report what they saw."""
    from paceline.cli.demo_load import demo_load
    from paceline.cli.progress import loaded

    jobs = demo_load(load_seed, rate)
    with loaded(config, show_memory=True) as llm:
        llm.require_chat_template()
        print(f"running {len(jobs)} calls at {rate:g} calls/s ...", flush=True)
        results = run_load(llm, jobs)
        summary = summarise(llm, jobs, results)
        lines = render(summary)
        print("\n".join(lines))
        answer = llm.chat([{"role": "user", "content": QUESTION}], max_tokens=64, temperature=0.0)
        text = answer.outputs[0].text.strip()
        print(f"\n> {QUESTION}\n{text}\n")
        report.mkdir(parents=True, exist_ok=True)
        (report / "report.json").write_text(json.dumps(summary, indent=2))
        memory = [" | ".join(row) for row in llm.ledger.render()]
        body = [*lines, "", "## Memory (part | predicted | measured | how)", *memory, "", f"> {QUESTION}", "", text, ""]
        (report / "report.md").write_text("\n".join(["# paceline demo", "", *body]))
        print(f"report: {(report / 'report.md').resolve()}")


def run_load(llm: LLM, jobs: list[Job]) -> dict[int, list[Timeline]]:
    """Submit every job at its time while the engine steps; timelines by job index, one per choice."""
    import time

    timelines: dict[int, list[Timeline]] = {i: [] for i in range(len(jobs))}
    owner: dict[int, int] = {}
    seen: dict[int, int] = {}
    start = time.monotonic()
    waiting = list(enumerate(jobs))
    while waiting or owner:
        while waiting and waiting[0][1].at_s <= time.monotonic() - start:
            index, job = waiting.pop(0)
            requests = llm.prepare_chat(
                list(job.messages), n=job.n, max_tokens=job.max_tokens, temperature=job.temperature
            )
            for request in requests:
                owner[request.request_id] = index
                llm.client.submit(request)
        if not owner:
            time.sleep(max(0.0, waiting[0][1].at_s - (time.monotonic() - start)))
            continue
        for output in llm.client.outputs(timeout_s=0.0):
            index = owner[output.request_id]
            seen[output.request_id] = seen.get(output.request_id, 0) + len(output.token_ids)
            cancel = jobs[index].cancel_after
            if output.finish is not None:
                assert output.timeline is not None
                timelines[index].append(output.timeline)
                del owner[output.request_id]
            elif cancel is not None and seen[output.request_id] >= cancel:
                llm.client.abort(output.request_id)
    return timelines


def summarise(llm: LLM, jobs: list[Job], timelines: dict[int, list[Timeline]]) -> dict[str, Any]:
    """Everything the report shows, as plain data. Cancelled calls are listed, and left out of the latencies."""
    from paceline.contracts.slo import Outcome, Slo, goodput, min_samples, percentile

    slo = Slo(ttft_s=TTFT_TARGET_S, tpot_s=TPOT_TARGET_S)
    served = [t for lines in timelines.values() for t in lines if t.outcome is not Outcome.CLIENT_CANCEL]
    cancelled = sum(t.outcome is Outcome.CLIENT_CANCEL for lines in timelines.values() for t in lines)
    first, last = min(t.arrival for t in served), max(t.end for t in served)
    window_s = last - first

    def spread(samples: list[float]) -> dict[str, float | None]:
        p95 = percentile(samples, 0.95) if len(samples) >= min_samples(0.95) else None
        return {
            "n": len(samples),
            "p50": percentile(samples, 0.5),
            "p95": p95,
        }

    def latencies(lines: list[Timeline]) -> dict[str, Any]:
        return {
            "ttft_s": spread([t.ttft_s for t in lines]),
            "tpot_s": spread([t.tpot_s for t in lines if not math.isnan(t.tpot_s)]),
        }

    kinds = dict.fromkeys(job.kind for job in jobs if job.kind != "cancelled")
    stats = llm.stats()
    return {
        "calls": len(jobs),
        "sequences": len(served),
        "cancelled": cancelled,
        "window_s": window_s,
        "output_tokens_per_s": sum(t.num_tokens for t in served) / window_s,
        "goodput_per_s": goodput(served, slo, window_s),
        "good_share": sum(t.is_good(slo) for t in served) / len(served),
        "targets": {"ttft_s": TTFT_TARGET_S, "tpot_s": TPOT_TARGET_S},
        "all": latencies(served),
        "by_kind": {
            kind: latencies([t for i, job in enumerate(jobs) if job.kind == kind for t in timelines[i]])
            for kind in kinds
        },
        "prefix_hit_rate": stats.kv.hit_rate,
        "prefix_hit_tokens": stats.kv.hit_tokens,
        "saved_prefill_s": stats.saved_prefill_ms / 1000,
        "prefix_misses": stats.kv.miss_reasons,
        "preemptions": stats.num_preemptions,
        "kv_blocks": {name: getattr(stats.kv, name) for name in ("total", "free", "cached", "held", "limbo")},
        "load_phases_s": dict(llm.phases),
    }


def render(summary: dict[str, Any]) -> list[str]:
    def ms(value: float | None) -> str:
        return f"{value * 1000:8.0f}" if value is not None else "       -"

    targets = summary["targets"]
    lines = [
        f"{summary['calls']} calls, {summary['sequences']} sequences ended, {summary['cancelled']} cancelled, "
        f"in {summary['window_s']:.1f} s; {summary['output_tokens_per_s']:.0f} output tokens/s",
        "",
        "                     n  TTFT p50 ms  p95 ms   TPOT p50 ms  p95 ms",
    ]
    for name, part in [("all", summary["all"]), *summary["by_kind"].items()]:
        ttft, tpot = part["ttft_s"], part["tpot_s"]
        lines.append(
            f"{name:16s} {ttft['n']:5d}     {ms(ttft['p50'])}{ms(ttft['p95'])}      {ms(tpot['p50'])}{ms(tpot['p95'])}"
        )
    lines += [
        "(p95 is left out where fewer than 59 samples could not support it)",
        "",
        f"goodput {summary['goodput_per_s']:.2f}/s: {summary['good_share']:.0%} met TTFT <= {targets['ttft_s']:g} s "
        f"and TPOT <= {targets['tpot_s'] * 1000:g} ms",
        f"prefix cache: {summary['prefix_hit_rate']:.0%} of prompt tokens hit ({summary['prefix_hit_tokens']} tokens), "
        f"about {summary['saved_prefill_s']:.1f} s of prefill saved; misses: "
        + ", ".join(f"{reason} {count}" for reason, count in summary["prefix_misses"].items()),
        f"preemptions: {summary['preemptions']}; KV blocks now: "
        + ", ".join(f"{name} {value}" for name, value in summary["kv_blocks"].items()),
    ]
    return lines
