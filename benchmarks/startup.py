"""Time to import and time to ready, each in fresh processes: `python benchmarks/startup.py [--model smollm2-135m]`.

    import   `import paceline`, interpreter start excluded                    limit 0.15 s
    ready    `LLM(model)` from nothing imported to ready, phases shown        limit 6 s

Medians over `--runs` processes; the model's file is in the page cache after the first.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys

IMPORT = "import time; t = time.perf_counter(); import paceline; print(time.perf_counter() - t)"
READY = """
import json, sys, time
began = time.perf_counter()
from paceline import LLM
imported = time.perf_counter()
with LLM(sys.argv[1]) as llm:
    done = time.perf_counter()
    print(json.dumps({"imports": imported - began, **llm.phases, "total": done - began}))
"""


def fresh(code: str, *args: str) -> str:
    done = subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, check=True)
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()
    seconds = statistics.median(float(fresh(IMPORT)) for _ in range(args.runs))
    print(f"import paceline  {seconds:.3f} s  ({seconds / 0.15:.2f} of the limit of 0.15 s)")
    runs = [json.loads(fresh(READY, args.model)) for _ in range(args.runs)]
    total = statistics.median(run["total"] for run in runs)
    print(f"{args.model} ready  {total:.2f} s  ({total / 6:.2f} of the limit of 6 s)")
    for name in runs[0]:
        print(f"  {name:10s} {statistics.median(run[name] for run in runs):.2f} s")


if __name__ == "__main__":
    main()
