"""Random requests against a live server: whatever comes, no 500, every valid answer is the serial one, nothing leaks.

A failing case prints its seed and request: `draw_call(seed, world)` makes it again.
"""

from __future__ import annotations

import asyncio
import gc
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import psutil
import pytest
from tests.fakes.http_traffic import LETTERS, Call, World, draw_call
from tests.fakes.raw_http import RawConnection, Reply, sse_events
from tests.fakes.serial_answers import Serial, compare
from tests.fakes.served_toy import Served, serial_tiny, serial_toy, serve_tiny, serve_toy

WORKERS = 24
PATIENCE_S = 120.0  # against hangs alone
MAX_BODY_BYTES = 1 << 18


@dataclass
class Client:
    """One of many at once: takes the next seed, keeps its connection while that is possible."""

    served: Served
    world: World
    connection: RawConnection | None = None

    async def perform(self, call: Call) -> Reply | None:
        """What came back; None when the client left before anything did."""
        slow = call.manner == "slow"
        if self.connection is None or slow:
            await self.leave()
            buffer = 4096 if slow else None
            self.connection = await RawConnection.open(self.served.host, self.served.port, receive_buffer_bytes=buffer)
        connection = self.connection
        try:
            await connection.send(call.method, call.path, call.body, headers=call.headers, pieces=call.pieces)
            if call.manner == "hang up early":
                for _ in range(call.leave_after):
                    await asyncio.sleep(0)
                connection.reset()
                self.connection = None
                return None
            return await self._read(connection, call, slow)
        except (ConnectionError, asyncio.IncompleteReadError):
            await self.leave()
            if call.wrong in ("body too large", "odd JSON") or call.method != "POST":
                return None  # hung up on while still sending
            raise

    async def _read(self, connection: RawConnection, call: Call, slow: bool) -> Reply:
        reply = await connection.head()
        seen = 0
        leaves = call.manner in ("leave", "reset")
        if not (leaves and call.leave_after == 0):
            async for _ in connection.parts(reply):
                seen += 1
                if slow:
                    await asyncio.sleep(0.002)
                if leaves and seen >= call.leave_after:
                    break
        if reply.streams:
            reply.events = sse_events(reply.body)
        if leaves and call.manner == "reset":
            connection.reset()
            self.connection = None
        elif not reply.whole or slow or reply.headers.get("connection") == "close":
            await self.leave()
        return reply

    async def leave(self) -> None:
        if self.connection is not None:
            await self.connection.close()
            self.connection = None


@dataclass
class Run:
    """What a batch of calls brought."""

    results: list[tuple[Call, Reply | None]] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)


async def drive(served: Served, world: World, seeds: Sequence[int], workers: int = WORKERS) -> Run:
    run, queue = Run(), list(seeds)[::-1]

    async def work() -> None:
        client = Client(served, world)
        while queue:
            call = draw_call(queue.pop(), world)
            try:
                reply = await asyncio.wait_for(client.perform(call), PATIENCE_S)
            except Exception as error:
                run.broken.append(f"{type(error).__name__}: {error}\n{call}")
                client.connection = None
                continue
            run.results.append((call, reply))
        await client.leave()

    await asyncio.gather(*(work() for _ in range(workers)))
    return run


def problems_of(call: Call, reply: Reply | None, serial: Serial, world: World) -> list[str]:
    if reply is None:
        return []
    if reply.status >= 500:
        return [f"status {reply.status}: {reply.body[:500]!r}"]
    if call.wrong:
        return _refusal_problems(call, reply)
    if call.kind in ("completion", "chat"):
        return compare(call, reply, serial)
    if reply.status != 200:
        return [f"status {reply.status}: {reply.body[:500]!r}"]
    assert call.fields is not None or call.kind == "models"
    if call.kind == "tokenize":
        right = [int(i) for i in serial.pipeline.encode_prompt(call.fields["prompt"])] if call.fields else []
        return [] if reply.json()["tokens"] == right else [f"tokens {reply.json()['tokens']}, rather {right}"]
    if call.kind == "detokenize":
        text = serial.pipeline.tokenizer.decode(call.fields["tokens"], skip_special=False) if call.fields else ""
        return [] if reply.json()["prompt"] == text else [f"text {reply.json()}, rather {text!r}"]
    return [] if reply.json()["data"][0]["id"] == world.model else [f"models {reply.body!r}"]


def _refusal_problems(call: Call, reply: Reply) -> list[str]:
    if not 400 <= reply.status < 500:
        return [f"a wrong call ({call.wrong}) got status {reply.status}: {reply.body[:300]!r}"]
    try:
        error = json.loads(reply.body)["error"]
    except (ValueError, KeyError, TypeError):
        return [f"status {reply.status} without OpenAI's error object: {reply.body[:300]!r}"]
    whole = set(error) == {"message", "type", "param", "code"} and error["message"]
    return [] if whole else [f"an error object of another form: {error}"]


def rss_bytes(served: Served) -> int:
    """Memory of the server and its engine."""
    return sum(psutil.Process(pid).memory_info().rss for pid in (served.pid, served.engine_pid()))


def fuzz(served: Served, serial: Serial, world: World, seeds: range, *, batch: int, slack_bytes: int) -> Counter[str]:
    """Drive all seeds in batches and check everything; what was called how often."""
    engine = served.engine_pid()
    counts: Counter[str] = Counter()
    memory = []
    for begin in range(seeds.start, seeds.stop, batch):
        part = range(begin, min(begin + batch, seeds.stop))
        run = asyncio.run(drive(served, world, part))
        served.wait_idle()
        memory.append(rss_bytes(served))
        assert not run.broken, "\n\n".join(run.broken[:5])
        wrong = []
        for call, reply in run.results:
            counts["valid" if call.valid else "invalid"] += 1
            counts[call.manner] += 1
            counts["streams"] += reply is not None and reply.streams
            counts["checked"] += call.valid and reply is not None
            if found := problems_of(call, reply, serial, world):
                wrong.append("\n".join([str(call), *found]))
        assert not wrong, f"{len(wrong)} of {len(run.results)}\n\n" + "\n\n".join(wrong[:5])
        gc.collect()
    assert served.engine_pid() == engine, "the engine was restarted"
    assert served.running(), served.log()
    assert "Traceback" not in served.log(), served.log()[-5000:]
    half = memory[len(memory) // 2 :]
    assert half[-1] - half[0] <= slack_bytes, f"memory grows: {memory}"
    total = counts["valid"] + counts["invalid"]
    assert total == len(seeds)
    assert counts["valid"] >= 0.6 * total
    return counts


@pytest.mark.parametrize(
    "seeds", [range(420), pytest.param(range(10_000), marks=pytest.mark.long)], ids=["short", "long"]
)
def test_random_calls_on_the_toy_engine(seeds: range) -> None:
    with serve_toy({"max_waiting_requests": 1000}, max_body_bytes=MAX_BODY_BYTES) as served:
        world = served.world(MAX_BODY_BYTES, LETTERS)
        counts = fuzz(served, serial_toy(), world, seeds, batch=max(120, len(seeds) // 20), slack_bytes=24 << 20)
    print(dict(counts))


@pytest.mark.parametrize(
    "seeds",
    [range(20_000, 20_036), pytest.param(range(20_000, 22_000), marks=pytest.mark.long)],
    ids=["short", "long"],
)
def test_random_calls_on_a_real_model(seeds: range, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The same over torch: here every sampling field changes the text."""
    folder = tmp_path_factory.mktemp("models")
    with serve_tiny(folder, max_body_bytes=MAX_BODY_BYTES, max_waiting_requests=1000) as served:
        world = served.world(MAX_BODY_BYTES, LETTERS)
        with serial_tiny(folder) as serial:
            fuzz(served, serial, world, seeds, batch=max(18, len(seeds) // 20), slack_bytes=48 << 20)
