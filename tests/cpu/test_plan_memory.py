"""What a plan for this machine says of memory, against the engine that is then started from it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

# Targets are loose: whatever else the machine does, the plan exists
SCRIPT = """
import json, sys
from paceline import LLM
from paceline.assemble.plan import Asked, plan

found = plan(Asked(model=sys.argv[1], input="200", output="50", slo="ttft=1000s,tpot=100s", verify=0))
planned = found.memory.plan.ledger
with LLM(config=found.memory.config) as llm:
    engine = llm.ledger
parts = {e.name: (e.predicted_bytes, f.predicted_bytes) for e, f in zip(planned.entries, engine.entries)}
print(json.dumps({"parts": parts, "peak": (planned.predicted_peak, engine.predicted_peak)}))
"""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("smollm2-135m", marks=pytest.mark.model("smollm2-135m")),
        pytest.param("gemma3-270m", marks=[pytest.mark.model("gemma3-270m"), pytest.mark.long]),
    ],
)
def test_planned_memory_is_the_engines_within_five_per_cent(name: str) -> None:
    """In a process of its own: what else it holds is part of the ledger."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, name], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    for part in ("weights", "kv", "state", "communication"):
        planned, engine = found["parts"][part]
        assert planned == engine, part
    planned, engine = found["peak"]
    assert planned == pytest.approx(engine, rel=0.05), found
