"""A flooding tenant beside a quiet one, on a real server: what the quiet one's first token costs.

The quiet tenant sends one request a second and waits for nobody. First alone, then beside a tenant that keeps 100
requests open, in the same run on the same server. Printed: p50 and p95 TTFT of both phases (client's clock, first byte
sent to first token), their ratio, the goal of 1.5, and what the flooding tenant got.

    python benchmarks/serving/tenants.py [--model smollm2-135m] [--requests 60] [--flood 100] [--policy fair]

`--model simulated` takes a device that sleeps (20 ms a step and 0.1 ms a token, 64 rows, at most `--step-tokens` of
them) instead of a model: what is left is what the scheduler and the server make of it.

60 requests in each phase, since a p95 of fewer than 59 has no upper bound. About 2.5 minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import random
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.fakes.raw_http import RawConnection
from tests.fakes.served_toy import Served, serve_model, serve_simulated

from paceline.contracts.slo import percentile

GOAL = 1.5
DEVICE = {"fixed_ms": 20.0, "token_ms": 0.1, "max_rows": 64, "num_blocks": 8192, "max_model_len": 2048}
KEYS = {"quiet": "sk-quiet", "flood": "sk-flood"}
WORDS = ("time", "river", "stone", "light", "winter", "garden", "letter", "window", "morning", "road", "music", "paper")


@dataclass
class Tally:
    ttft_s: list[float] = field(default_factory=list)
    tokens: int = 0
    errors: list[str] = field(default_factory=list)


def prompt(rng: random.Random, words: int) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(words))


async def stream(served: Served, tenant: str, text: str, max_tokens: int, tally: Tally, **fields: str) -> None:
    """One streamed completion, to its end."""
    body = {
        **fields,
        "model": served.model,
        "prompt": text,
        "max_tokens": max_tokens,
        "stream": True,
        "ignore_eos": True,
    }
    connection = await RawConnection.open(served.host, served.port)
    try:
        begin, first = time.monotonic(), None
        headers = {"Authorization": f"Bearer {KEYS[tenant]}"}
        await connection.send("POST", "/v1/completions", json.dumps(body).encode(), headers=headers)
        reply = await connection.head()
        async for part in connection.parts(reply):
            tally.tokens += part.count(b'"num_tokens"')
            if first is None and b'"num_tokens"' in part:
                first = time.monotonic() - begin
                tally.ttft_s.append(first)
        if reply.status != 200 or first is None or b"[DONE]" not in reply.body:
            tally.errors.append(f"{reply.status} {reply.body[-200:]!r}")
    except OSError as error:
        tally.errors.append(repr(error))
    finally:
        await connection.close()


async def quiet(served: Served, count: int, rng: random.Random, service_class: str) -> Tally:
    """`count` requests, one a second by the clock, whatever the answers do."""
    tally, tasks, begin = Tally(), [], time.monotonic()
    for index in range(count):
        await asyncio.sleep(max(0.0, begin + index - time.monotonic()))
        tasks.append(
            asyncio.create_task(stream(served, "quiet", prompt(rng, 24), 8, tally, service_class=service_class))
        )
    await asyncio.gather(*tasks)
    return tally


async def flood(served: Served, open_requests: int, stop: asyncio.Event, rng: random.Random, tally: Tally) -> None:
    """Keep so many requests open until told to stop."""

    async def keep_one_open() -> None:
        while not stop.is_set():
            await stream(served, "flood", prompt(rng, 100), 64, tally)

    tasks = [asyncio.create_task(keep_one_open()) for _ in range(open_requests)]
    await stop.wait()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def measure(served: Served, options: argparse.Namespace) -> None:
    rng = random.Random(1)
    await quiet(served, 3, rng, options.quiet_class)  # warm
    alone = await quiet(served, options.requests, rng, options.quiet_class)
    stop = asyncio.Event()
    flooding = Tally()
    task = asyncio.create_task(flood(served, options.flood, stop, rng, flooding))
    await asyncio.sleep(5)  # until the flood is what it stays
    begin, before = time.monotonic(), flooding.tokens
    beside = await quiet(served, options.requests, rng, options.quiet_class)
    rate = (flooding.tokens - before) / (time.monotonic() - begin)
    stop.set()
    await task
    for name, tally in (("quiet alone", alone), (f"beside {options.flood} open", beside)):
        p50, p95 = (1000 * percentile(tally.ttft_s, q) for q in (0.5, 0.95))
        print(f"{name:<18} n {len(tally.ttft_s):>3}   TTFT p50 {p50:8.1f} ms   p95 {p95:8.1f} ms   {_said(tally)}")
    ratio = percentile(beside.ttft_s, 0.95) / percentile(alone.ttft_s, 0.95)
    print(f"flooding tenant    {rate:.0f} tokens/s   {_said(flooding)}")
    print(f"p95 ratio {ratio:.2f}   goal {GOAL}   {'met' if ratio <= GOAL else 'MISSED'}")


def _said(tally: Tally) -> str:
    return f"errors {len(tally.errors)}" + (f": {tally.errors[0]}" if tally.errors else "")


def tenants_file(folder: Path) -> Path:
    path = folder / "tenants.toml"
    lines = []
    for name, key in KEYS.items():
        lines += [f"[tenants.{name}]", f'key_sha256 = ["{hashlib.sha256(key.encode()).hexdigest()}"]']
    path.write_text("\n".join(lines) + "\n")
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--flood", type=int, default=100)
    parser.add_argument("--policy", default="fair")
    parser.add_argument("--quiet-class", default="default", help="service class of the quiet tenant's requests")
    parser.add_argument("--step-tokens", type=int, default=512, help="of the simulated device")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = tenants_file(Path(folder))
        if options.model == "simulated":
            server = serve_simulated(
                {**DEVICE, "policy": options.policy, "max_tokens": options.step_tokens}, tenants=str(file)
            )
        else:
            server = serve_model(options.model, policy=options.policy, tenants=file)
        with server as served:
            asyncio.run(measure(served, options))


if __name__ == "__main__":
    main()
