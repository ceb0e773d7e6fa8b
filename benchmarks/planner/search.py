"""How long a search takes: layouts, seconds passed and seconds of a core, against the goal of 2 s for 200 of them.

python benchmarks/planner/search.py
"""

from __future__ import annotations

import time

from paceline.assemble.plan import Asked, plan

GOAL_S, GOAL_LAYOUTS = 2.0, 200
CASES = (
    Asked(model="llama-3.1-8b", device="h100-sxm", devices=8, input="p50=800,p99=6000,max=12000", output="200"),
    Asked(model="llama-3.1-70b", device="h100-sxm", devices=8, input="p50=800,p99=6000,max=12000", output="200"),
    Asked(
        model="deepseek-v3", device="h100-sxm", devices=16, nodes=2, input="p50=800,p99=6000,max=12000", output="200",
        slo="ttft=3s,tpot=100ms",
    ),
)  # fmt: skip


def main() -> None:
    plan(CASES[0])  # imports
    for asked in CASES:
        began, spent = time.perf_counter(), time.process_time()
        found = plan(asked)
        seconds, spent = time.perf_counter() - began, time.process_time() - spent
        judged = found.search.num_judged
        print(
            f"{asked.model} on {asked.devices}: {judged} layouts in {seconds:.2f} s, {spent:.2f} s of a core; "
            f"{spent / judged * GOAL_LAYOUTS:.2f} s of a core for {GOAL_LAYOUTS} (goal {GOAL_S:g} s)"
        )


if __name__ == "__main__":
    main()
