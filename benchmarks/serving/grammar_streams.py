"""What streams under a grammar cost the plain streams beside them: one real server, neighbours switched between rounds.

    python benchmarks/serving/grammar_streams.py [--streams 8] [--neighbours 8] [--rounds 6] [--seconds 8]

In each round `--streams` plain streams run beside `--neighbours` others, plain (A) or following a JSON schema (B);
rows, prompts and lengths are the same, so what differs is masks, and drawing with them. Rounds go A B B A A B ..., so a
slow drift of the machine cancels; read the ratios of neighbouring rounds. The inter-token latency (ITL) is that of the
plain streams, from the engine's own count of tokens while all of them run. `--new-schemas`: each neighbour brings a
schema nobody has seen, so that it is tried and compiled while the others stream.
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

from paceline.lab.experiment import Launch, OwnedServer, paceline_argv

ITEM = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "kind": {"enum": ["new", "paid", "sent", "returned"]},
        "email": {"type": "string", "pattern": "^[a-z]{3,12}@[a-z]{3,12}\\.(com|org)$"},
        "count": {"type": "integer", "minimum": 1, "maximum": 999},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 12}, "maxItems": 4},
    },
    "required": ["name", "kind", "email", "count", "tags"],
    "additionalProperties": False,
}
ENDLESS = {"type": "array", "items": ITEM, "minItems": 1000}
PLAIN = {"ignore_eos": True, "max_tokens": 4000, "stream": True, "temperature": 0.7}


def schema_field(number: int | None) -> dict[str, Any]:
    """Fields of a body under the schema; `number` makes it one of its own."""
    schema = ENDLESS if number is None else {**ENDLESS, "items": {**ITEM, "title": f"item {number}"}}
    return {"structured_outputs": {"json": schema}}


async def one_round(server: OwnedServer, model: str, how: argparse.Namespace, under: list[dict[str, Any]]) -> float:
    """Mean ITL of the plain streams, in ms. `under`: further fields of each neighbour."""
    running, everybody, counts = 0, asyncio.Event(), [0] * how.streams
    total = how.streams + how.neighbours

    async def read(client: httpx.AsyncClient, index: int) -> None:
        nonlocal running
        more = {} if index < how.streams else under[index - how.streams]
        text = f"Write down number {index} of all orders as JSON."
        body = {**PLAIN, **more, "model": model, "seed": index, "messages": [{"role": "user", "content": text}]}
        async with client.stream("POST", f"{server.url}/v1/chat/completions", json=body) as answer:
            assert answer.status_code == 200, await answer.aread()
            first = True
            async for line in answer.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                count = json.loads(line.removeprefix("data: "))["paceline"]["num_tokens"]
                if count and first:
                    first, running = False, running + 1
                    if running == total:
                        everybody.set()
                if index < how.streams:
                    counts[index] += count

    async with httpx.AsyncClient(timeout=600.0, limits=httpx.Limits(max_connections=None)) as client:
        tasks = [asyncio.create_task(read(client, i)) for i in range(total)]
        await everybody.wait()
        before, began = sum(counts), time.monotonic()
        await asyncio.sleep(how.seconds)
        after, took_s = sum(counts), time.monotonic() - began
        assert not any(task.done() for task in tasks), "a stream ended within the round: make rounds shorter"
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return took_s * 1000 * how.streams / (after - before)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--neighbours", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--new-schemas", action="store_true")
    how = parser.parse_args()
    argv = paceline_argv({"model": how.model, "max_num_seqs": how.streams + how.neighbours}, ("--no-access-log",))
    found: list[tuple[str, float]] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        OwnedServer(Launch(argv=argv, url=""), Path(folder) / "log") as server,
    ):
        server.wait_ready()
        model = server.get("/v1/models")["data"][0]["id"]
        plain: list[dict[str, Any]] = [{}] * how.neighbours
        for index in range(-1, how.rounds):
            kind = "AB"[index % 4 in (1, 2)]
            numbers = [index * how.neighbours + i if how.new_schemas else None for i in range(how.neighbours)]
            under = plain if kind == "A" else [schema_field(number) for number in numbers]
            itl_ms = asyncio.run(one_round(server, model, how, under))
            if index >= 0:  # the first is for warming up
                found.append((kind, itl_ms))
                print(f"{'plain' if kind == 'A' else 'grammar':8} neighbours: ITL {itl_ms:.3f} ms", flush=True)
    pairs = [dict(found[i : i + 2]) for i in range(0, len(found) - 1, 2)]
    ratios = [pair["B"] / pair["A"] for pair in pairs]
    load = os.getloadavg()[0]
    print(json.dumps({"ratios": ratios, "median": statistics.median(ratios), "load_average": load}))


if __name__ == "__main__":
    main()
