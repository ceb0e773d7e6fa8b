"""Does the engine gain when the server process is nicer? One server, one engine, niceness switched between rounds.

    sudo .venv/bin/python benchmarks/serving/niceness.py --rounds 6 --streams 16

Each round holds `--streams` streams open for `--seconds` and counts the engine's steps and output tokens by its own
counters. Rounds go 0, n, n, 0, 0, n ..., so that a slow drift of the machine cancels; read the ratios of neighbours.
Lowering niceness again needs the right to (root). The clients run in this process, nicer than both.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
import psutil

from paceline.lab.experiment import Launch, OwnedServer, paceline_argv

BODY = {"model": "bench", "prompt": "Once upon a time", "max_tokens": 4000, "ignore_eos": True, "stream": True}


def set_niceness(pid: int, niceness: int) -> None:
    """Of all threads of a process."""
    for thread in psutil.Process(pid).threads():
        os.setpriority(os.PRIO_PROCESS, thread.id, niceness)


def look(server: OwnedServer) -> dict[str, Any]:
    found: dict[str, Any] = server.get("/v1/internal/stats")["engine"]
    return found


async def one_round(server: OwnedServer, model: str, streams: int, seconds: float) -> dict[str, float]:
    """Steps and tokens a second while all streams run, and the server's CPU seconds for them."""
    begun = 0
    everybody = asyncio.Event()

    async def read(client: httpx.AsyncClient, index: int) -> None:
        nonlocal begun
        body = {**BODY, "model": model, "prompt": f"{BODY['prompt']} number {index}"}
        async with client.stream("POST", f"{server.url}/v1/completions", json=body) as answer:
            first = True
            async for _ in answer.aiter_raw():
                if first:
                    first, begun = False, begun + 1
                    if begun == streams:
                        everybody.set()

    async with httpx.AsyncClient(timeout=600.0, limits=httpx.Limits(max_connections=None)) as client:
        tasks = [asyncio.create_task(read(client, i)) for i in range(streams)]
        await everybody.wait()
        process = psutil.Process(server.pid)
        before, cpu_before, began = look(server), sum(process.cpu_times()[:2]), time.monotonic()
        await asyncio.sleep(seconds)
        after, cpu_after, took_s = look(server), sum(process.cpu_times()[:2]), time.monotonic() - began
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    tokens = after["output_tokens"] - before["output_tokens"]
    return {
        "steps_per_s": (after["step"] - before["step"]) / took_s,
        "tokens_per_s": tokens / took_s,
        "server_cpu_ms_per_token": (cpu_after - cpu_before) * 1000 / tokens,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--nice", type=int, default=5)
    given = parser.parse_args()
    argv = paceline_argv({"model": given.model, "max_num_seqs": given.streams}, ("--no-access-log",))
    rounds: list[tuple[int, dict[str, float]]] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        OwnedServer(Launch(argv=argv, url=""), Path(folder) / "log") as server,
    ):
        server.wait_ready()
        assert server.pid is not None
        os.setpriority(os.PRIO_PROCESS, 0, 10)
        model = server.get("/v1/models")["data"][0]["id"]
        asyncio.run(one_round(server, model, given.streams, 2.0))  # warm
        for index in range(given.rounds):
            niceness = given.nice if index % 4 in (1, 2) else 0
            set_niceness(server.pid, niceness)
            found = asyncio.run(one_round(server, model, given.streams, given.seconds))
            rounds.append((niceness, found))
            print(f"nice {niceness}: " + ", ".join(f"{k} {v:.3f}" for k, v in found.items()), flush=True)
    pairs = [rounds[i : i + 2] for i in range(0, len(rounds) - 1, 2)]
    ratios = [dict(pair)[given.nice]["steps_per_s"] / dict(pair)[0]["steps_per_s"] for pair in pairs]
    load = os.getloadavg()[0]
    print(json.dumps({"ratios": ratios, "median": statistics.median(ratios), "load_average": load}))


if __name__ == "__main__":
    main()
