"""What streams under a grammar cost the plain streams beside them: one real server, neighbours switched between rounds.

    python benchmarks/serving/grammar_streams.py [--streams 8] [--neighbours 8] [--rounds 6] [--seconds 8]
        [--schemas FILE]    neighbours follow schemas of this sample (JSON lines with `schema`), others in each round
        [--new-schemas]     each neighbour brings a schema nobody has seen

In each round `--streams` plain streams run beside `--neighbours` others, plain (A) or following a JSON schema (B);
rows, prompts and lengths are the same, so what differs is masks, and drawing with them. Rounds go A B B A A B ..., so a
slow drift of the machine cancels; told is the median ratio of neighbouring rounds with the 95 % interval of its rank.

The inter-token latency (ITL) is that of the plain streams, from the counts of tokens in their chunks while all of them
run. Beside it stands the computing time of server and engine for one token of each stream: what masks cost in all, also
where a core was free for them; it holds on a busy machine too.

Without an option neighbours follow one schema made to be hard: texts with a largest length cost most when they come
near it. With `--schemas` it is an array without end of what each schema of the sample describes, for those that can be
put into an array. With `--new-schemas` each is tried and compiled while the others stream.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import httpx
import psutil

from paceline.lab.experiment import Launch, OwnedServer, paceline_argv
from paceline.lab.stats import interval_ranks

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
DEFS = ("definitions", "$defs")  # stay at the root, where references expect them
MOVED = [["#", key] for key in DEFS]
PLAIN = {"ignore_eos": True, "max_tokens": 4000, "stream": True, "temperature": 0.7}


def schema_field(number: int | None) -> dict[str, Any]:
    """Fields of a body under the schema; `number` makes it one of its own."""
    schema = ENDLESS if number is None else {**ENDLESS, "items": {**ITEM, "title": f"item {number}"}}
    return {"structured_outputs": {"json": schema}}


def endless(schema: Any) -> dict[str, Any] | None:
    """An array without end of it; None: it cannot stand in an array, since it refers to its own root."""
    if not isinstance(schema, dict) or any(ref.split("/")[:2] not in MOVED for ref in references(schema)):
        return None
    return {"type": "array", "items": schema, "minItems": 1000, **{key: schema[key] for key in DEFS if key in schema}}


def references(part: Any) -> Iterator[str]:
    for key, value in part.items() if isinstance(part, dict) else enumerate(part):
        if key == "$ref" and isinstance(value, str):
            yield value
        elif isinstance(value, dict | list):
            yield from references(value)


def sampled(server: OwnedServer, model: str, path: Path, num: int) -> list[dict[str, Any]]:
    """Fields of bodies for up to `num` schemas, spread over the sample, of those that the server takes."""
    schemas = [json.loads(line)["schema"] for line in path.read_text(encoding="utf-8").splitlines()]
    found: list[dict[str, Any]] = []
    for schema in schemas[:: max(1, len(schemas) // (2 * num))]:
        if len(found) < num and (array := endless(schema)):
            field = {"structured_outputs": {"json": array}}
            body = {"model": model, "prompt": "[", "max_tokens": 1, **field}
            if httpx.post(f"{server.url}/v1/completions", json=body, timeout=60.0).is_success:
                found.append(field)
    if not found:
        raise SystemExit(f"{path}: the server takes none of its schemas")
    print(f"{len(found)} schemas of {path.name}", flush=True)
    return found


def cpu_s(server: OwnedServer) -> float:
    """Of the server and the engine it started."""
    root = psutil.Process(server.pid)
    times = [each.cpu_times() for each in (root, *root.children(recursive=True))]
    return sum(each.user + each.system for each in times)


async def one_round(
    server: OwnedServer, model: str, how: argparse.Namespace, under: list[dict[str, Any]]
) -> tuple[float, float]:
    """Mean ITL of the plain streams, and computing time for a token of each, both in ms. `under`: further fields of
    each neighbour."""
    running, everybody, counts = 0, asyncio.Event(), [0] * how.streams
    total = how.streams + how.neighbours

    async def read(client: httpx.AsyncClient, index: int) -> None:
        more = {} if index < how.streams else under[index - how.streams]
        text = f"Write down number {index} of all orders as JSON."
        body = {**PLAIN, **more, "model": model, "seed": index, "messages": [{"role": "user", "content": text}]}
        first = True
        while first or index >= how.streams:  # a neighbour that came to an end begins again
            await stream(client, index, body, first)
            first = False

    async def stream(client: httpx.AsyncClient, index: int, body: dict[str, Any], first: bool) -> None:
        nonlocal running
        async with client.stream("POST", f"{server.url}/v1/chat/completions", json=body) as answer:
            assert answer.status_code == 200, await answer.aread()
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
        before, began, cpu_before = sum(counts), time.monotonic(), cpu_s(server)
        await asyncio.sleep(how.seconds)
        num_tokens, took_s = (sum(counts) - before) / how.streams, time.monotonic() - began
        computed_s = cpu_s(server) - cpu_before
        assert not any(task.done() for task in tasks), "a stream ended within the round: make rounds shorter"
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return took_s * 1000 / num_tokens, computed_s * 1000 / num_tokens


def interval(ordered: list[float]) -> list[float] | None:
    """Of the median, with 95 % or more; None: too few for one."""
    low, high = interval_ranks(len(ordered), 0.5)
    return None if low is None or high is None else [ordered[low - 1], ordered[high - 1]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--neighbours", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=8.0)
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--schemas", type=Path)
    kinds.add_argument("--new-schemas", action="store_true")
    how = parser.parse_args()
    argv = paceline_argv({"model": how.model, "max_num_seqs": how.streams + how.neighbours}, ("--no-access-log",))
    found: list[tuple[str, tuple[float, float]]] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        OwnedServer(Launch(argv=argv, url=""), Path(folder) / "log") as server,
    ):
        server.wait_ready()
        model = server.get("/v1/models")["data"][0]["id"]
        plain: list[dict[str, Any]] = [{}] * how.neighbours
        num_sampled = -(-how.rounds // 2) * how.neighbours
        sample = cycle(sampled(server, model, how.schemas, num_sampled) if how.schemas else ())
        for index in range(-1, how.rounds):
            kind = "AB"[index % 4 in (1, 2)]
            numbers = [index * how.neighbours + i if how.new_schemas else None for i in range(how.neighbours)]
            under = plain
            if kind == "B":
                under = list(islice(sample, how.neighbours)) if how.schemas else [schema_field(n) for n in numbers]
            itl_ms, cpu_ms = asyncio.run(one_round(server, model, how, under))
            if index >= 0:  # the first is for warming up
                found.append((kind, (itl_ms, cpu_ms)))
                name = "plain" if kind == "A" else "grammar"
                print(f"{name:8} neighbours: ITL {itl_ms:.3f} ms, computing {cpu_ms:.3f} ms", flush=True)
    pairs = [dict(found[i : i + 2]) for i in range(0, len(found) - 1, 2)]
    for at, name in enumerate(("itl", "computing")):
        ratios = [pair["B"][at] / pair["A"][at] for pair in pairs]
        each = sorted(round(ratio, 3) for ratio in ratios)
        median = round(statistics.median(each), 3)
        print(json.dumps({"ratios of": name, "each": each, "median": median, "95 %": interval(each)}))
    print(f"load average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
