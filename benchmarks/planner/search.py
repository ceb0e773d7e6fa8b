"""How long a plan takes: seconds of a core for the search alone, and with its best layouts simulated, against the goal
of 2 s for a search of 200.

python benchmarks/planner/search.py
"""

from __future__ import annotations

import time

import msgspec

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
        began = time.process_time()
        judged = plan(msgspec.structs.replace(asked, verify=0)).search.num_judged
        alone = time.process_time() - began
        began = time.process_time()
        found = plan(asked)
        whole = time.process_time() - began
        simulated = [c.simulated for c in found.search.candidates if c.simulated is not None]
        print(
            f"{asked.model} on {asked.devices}: {judged} layouts judged in {alone:.2f} s of a core, {whole:.2f} s with "
            f"{len(simulated)} of them simulated at {sum(len(s.loads) for s in simulated)} loads "
            f"(goal {GOAL_S:g} s for {GOAL_LAYOUTS})"
        )


if __name__ == "__main__":
    main()
