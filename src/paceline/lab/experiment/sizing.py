"""How big and fast a server is, from a few requests while nothing else runs: what named workloads are scaled by."""

from __future__ import annotations

import asyncio
import math
import statistics
from collections.abc import Sequence

from paceline.contracts.artefact import RequestRecord
from paceline.contracts.slo import Outcome
from paceline.errors import LabError
from paceline.lab.experiment.counts import Counts, RememberingCounter
from paceline.lab.load import HttpTokenCounter, LoadOptions, Target, run_load
from paceline.lab.metrics.columns import columns_of
from paceline.lab.metrics.judge import times_of
from paceline.lab.workload import Content, TargetSize, load_spec, make_plan

PROMPT_TOKENS = 128
OUTPUT_TOKENS = 16
ALONE = 10  # requests one after the other, the first of which only warms up; fewer, and one hiccup moves every target
AT_ONCE = 8


def measure_size(
    target: Target, *, seed: int = 0, timeout_s: float = 120.0, counts: Counts | None = None
) -> TargetSize:
    """Unloaded TTFT and TPOT (medians), and how many answers decode in about the time of one. Some 40 requests of
    16 tokens. Raises LabError when none of them comes back."""
    counts = counts or Counts()
    most = target.info.max_model_len or 2048
    prompt = max(8, min(PROMPT_TOKENS, most // 4))
    alone = _ask(target, 1, ALONE, prompt, seed, timeout_s, counts)[1:]
    ttft_s, tpot_s = _median(alone, "ttft"), _median(alone, "tpot")
    if ttft_s is None:
        raise LabError("the server gave no answer that could be timed", seen=_reasons(alone), fix="look at its log")
    together = _ask(target, AT_ONCE, 2 * AT_ONCE, prompt, seed + 1, timeout_s, counts)
    slowed = _median(together, "tpot")
    parallel = 1.0
    if tpot_s and slowed:
        parallel = min(float(AT_ONCE), max(1.0, AT_ONCE * tpot_s / slowed))
    return TargetSize(
        max_model_len=most,
        ttft_s=ttft_s,
        ttft_tokens=prompt,
        tpot_s=tpot_s or ttft_s / prompt,  # not streamed token by token: then the prompt's pace has to do
        parallel=parallel,
    )


def _ask(
    target: Target, slots: int, num_requests: int, num_prompt: int, seed: int, timeout_s: float, counts: Counts
) -> list[RequestRecord]:
    spec = load_spec(
        {
            "name": "sizing",
            "num_requests": num_requests,
            "stream": [{"arrival": {"kind": "closed", "slots": slots}, "input": num_prompt, "output": OUTPUT_TOKENS}],
        }
    )
    plan = make_plan(spec, seed=seed, salt=f"size {seed}")

    async def prepared() -> Content:
        async with HttpTokenCounter(target) as asked:
            counter = RememberingCounter(asked, counts)
            content = Content(spec, seed=seed, salt=plan.salt, counter=counter)
            await content.prepare(plan.requests)
            return content

    return run_load(target, plan, asyncio.run(prepared()), LoadOptions(num_processes=1, timeout_s=timeout_s)).records


def _median(records: Sequence[RequestRecord], name: str) -> float | None:
    values = [float(v) for v in getattr(times_of(columns_of(records)), name) if not math.isnan(v)]
    return statistics.median(values) if values else None


def _reasons(records: Sequence[RequestRecord]) -> str:
    return "; ".join(sorted({f"{r.outcome}: {r.reason}" for r in records if r.outcome is not Outcome.OK}))[:300]
