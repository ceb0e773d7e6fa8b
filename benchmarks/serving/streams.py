"""Many open streams over the simulated executor: what a token costs the server process.

The engine (a child process) invents tokens, the load is a third process. Three runs: one token for each stream, which
is what opening them costs; the device makes 5,000 tokens/s, and the server should pass them on as they come; the device
makes all it can, and the server is the bottleneck. With two cores or more the server is pinned to one and the others
share the rest. CPU seconds are the server process's own, the opening of the streams included, so they hold on a busy
machine too; tokens per second is what came through.

    python benchmarks/serving/streams.py [--streams 1000] [--tokens 100] [--no-pin]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from typing import Any

import psutil
from tests.fakes.served_toy import serve_simulated

from paceline.contracts.slo import percentile

GOAL = 5000.0  # tokens/s through server-sent events on one core


def cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def measure(options: argparse.Namespace, rate: float) -> None:
    """One run. `rate`: tokens/s that the simulated device makes with every stream in its batch; 0 = all it can."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    pin = len(cores) >= 2 and not options.no_pin
    engine_options = {
        "max_rows": options.streams,
        "max_tokens": 4 * options.streams + 256,
        "max_waiting_requests": 2 * options.streams,
        "num_blocks": options.streams * (options.tokens // 16 + 3),
        "max_model_len": options.tokens + 64,
        "fixed_ms": 1000 * options.streams / rate if rate else 0.0,
    }
    with serve_simulated(engine_options) as served:
        server, engine = psutil.Process(served.pid), psutil.Process(served.engine_pid())
        if pin:
            for thread in server.threads():
                os.sched_setaffinity(thread.id, {cores[0]})
            for thread in engine.threads():
                os.sched_setaffinity(thread.id, set(cores[1:]))
        body = {"model": served.model, "prompt": "stream {i}", "max_tokens": options.tokens}
        load = {
            "host": served.host,
            "port": served.port,
            "path": "/v1/completions",
            "streams": options.streams,
            "core": cores[1] if pin else None,
            "body": {**body, "stream": True, "ignore_eos": True},
        }
        before, engine_before, begin = cpu_s(server), cpu_s(engine), time.monotonic()
        command = [sys.executable, "-m", "tests.fakes.sse_load", json.dumps(load)]
        found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        wall_s = time.monotonic() - begin
        server_s, engine_s = cpu_s(server) - before, cpu_s(engine) - engine_before
    report(options, rate, found, server_s, engine_s, wall_s)


def report(
    options: argparse.Namespace, rate: float, found: dict[str, Any], server_s: float, engine_s: float, wall_s: float
) -> None:
    tokens, events, span_s = sum(found["tokens"]), found["events"], found["token_wall_s"]
    made = f"{rate:.0f} tokens/s" if rate else "all it can"
    print(f"\n{options.streams} streams of {options.tokens} tokens, the device makes {made}")
    print(f"  errors            {found['num_errors']} {found['errors'][:1]}")
    print(f"  received          {tokens} of {options.streams * options.tokens} tokens in {events} events")
    print(f"  through SSE       {tokens / span_s:.0f} tokens/s over {span_s:.2f} s")
    per_token, per_event = 1e6 * server_s / tokens, 1e6 * server_s / events
    print(f"  server CPU        {server_s:.2f} s: {per_token:.1f} us per token, {per_event:.1f} us per event")
    print(f"  engine CPU        {engine_s:.2f} s; whole run {wall_s:.2f} s")
    ttft_s, tpot_s = (percentile(found[name], 0.5) for name in ("ttft_s", "tpot_s"))
    print(f"  median stream     TTFT {ttft_s:.2f} s, TPOT {1e3 * tpot_s:.1f} ms")
    # Random bytes are often no whole character yet, and a busy server puts the tokens of several steps into one event.
    # Ordinary text before a server that keeps up has an event for each token.
    print(f"  a core carries    {tokens / server_s:.0f} tokens/s or {events / server_s:.0f} events/s   goal {GOAL:.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--no-pin", action="store_true", help="leave the placing to the system")
    options = parser.parse_args()
    opening = argparse.Namespace(**{**vars(options), "tokens": 1})
    for what, rate in ((opening, 0.0), (options, GOAL), (options, 0.0)):
        measure(what, rate)


if __name__ == "__main__":
    main()
