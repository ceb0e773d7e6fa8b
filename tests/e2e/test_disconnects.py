"""Clients that leave, on a real socket: while queued, in prefill, in decode, at the last step. Blocks come back each
time, and nobody else notices. (vLLM #54947 and PR #29987 tell what happens otherwise.)"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.fakes.raw_http import RawConnection
from tests.fakes.serial_answers import Serial
from tests.fakes.served_toy import Served, serial_toy, serve_toy

from paceline.contracts.request import SamplingParams

PATIENCE_S = 60.0
LONG = "a long prompt that takes more than one chunk. " * 4
SLOW = "slow 0.01"  # each step: every state lasts long enough to be seen
WHEN = ("queue", "prefill", "decode", "last step")


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """Two at once, a long prompt in several steps."""
    with serve_toy({"max_rows": 2, "max_tokens": 32}) as server:
        yield server


@pytest.fixture(scope="module")
def serial() -> Serial:
    return serial_toy()


async def post(served: Served, body: dict[str, Any], **headers: str) -> RawConnection:
    connection = await RawConnection.open(served.host, served.port)
    body = {"model": served.model, "temperature": 0, "ignore_eos": True, **body}
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    await connection.send("POST", "/v1/completions", json.dumps(body).encode(), headers=names)
    return connection


async def events(connection: RawConnection, count: int) -> None:
    """Read until `count` events of a stream have come."""
    reply = await connection.head()
    assert reply.status == 200, reply
    async for _ in connection.parts(reply):
        if reply.body.count(b"\n\n") >= count:
            return


async def until(served: Served, condition: Callable[[dict[str, Any]], bool]) -> None:
    await asyncio.to_thread(served.wait_until, condition)


async def leave(served: Served, when: str, *, stream: bool, politely: bool) -> None:
    """Be there at the moment `when`, and go. The engine is held at its next step, so that the moment lasts."""
    served.process.control(SLOW)
    before = served.stats()["output_tokens"]
    others = []
    body: dict[str, Any] = {"prompt": LONG + when, "max_tokens": 300, "stream": stream}
    if when == "queue":
        others = [await post(served, {"prompt": f"other {i}", "max_tokens": 300}) for i in range(2)]
        await until(served, lambda stats: stats["num_running"] == 2)
    if when in ("queue", "prefill"):
        served.process.control("hang")
    if when == "last step":
        served.process.control("slow 0.1")
        body |= {"prompt": "short", "max_tokens": 4}
    connection = await post(served, body)
    if when == "queue":
        await until(served, lambda stats: stats["num_waiting"] == 1)
    elif when == "prefill":
        await until(served, lambda stats: stats["num_running"] == 1)
    elif stream:
        await events(connection, 3)
    else:
        await until(served, lambda stats: stats["output_tokens"] >= before + 3)
    if politely:
        await connection.close()
    else:
        connection.reset()
        await asyncio.sleep(0)  # the transport closes its socket at the loop's next turn
    if when == "queue":
        await until(served, lambda stats: stats["num_waiting"] == 0 or stats["num_running"] < 2)
    served.process.control("")
    for other in others:
        reply = await other.read()
        assert reply.status == 200
        assert reply.json()["usage"]["completion_tokens"] == 300
        await other.close()


@pytest.mark.parametrize("politely", [True, False], ids=["FIN", "RST"])
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("when", WHEN)
def test_blocks_come_back(served: Served, serial: Serial, when: str, stream: bool, politely: bool) -> None:
    asyncio.run(asyncio.wait_for(leave(served, when, stream=stream, politely=politely), PATIENCE_S))
    served.wait_idle()

    async def next_one() -> str:
        connection = await post(served, {"prompt": "next", "max_tokens": 5})
        reply = await connection.read()
        await connection.close()
        assert reply.status == 200
        text: str = reply.json()["choices"][0]["text"]
        return text

    (right,) = serial.answers("next", SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True))
    assert asyncio.run(next_one()) == right.text


def test_what_a_client_left_is_not_computed_to_its_end(served: Served) -> None:
    """400 tokens at 10 ms were asked for; the engine must be idle after far fewer."""

    async def once() -> None:
        connection = await post(served, {"prompt": "leaves early", "max_tokens": 400, "stream": True})
        await events(connection, 2)
        connection.reset()
        await asyncio.sleep(0)

    served.process.control(SLOW)
    before = served.stats()["output_tokens"]
    asyncio.run(once())
    served.wait_idle()
    served.process.control("")
    assert served.stats()["output_tokens"] - before < 300


def test_two_requests_with_one_id_are_two_requests(served: Served, serial: Serial) -> None:
    """The abort of one hits only its own, whatever ids clients choose."""

    served.process.control(SLOW)

    async def pair() -> bytes:
        stays = await post(served, {"prompt": "twin", "max_tokens": 30, "stream": True}, X_Request_Id="same")
        leaves = await post(served, {"prompt": "twin", "max_tokens": 30, "stream": True}, X_Request_Id="same")
        await events(leaves, 2)
        leaves.reset()
        reply = await stays.read()
        await stays.close()
        assert reply.whole
        again = await post(served, {"prompt": "twin", "max_tokens": 30, "stream": True}, X_Request_Id="same")
        second = await again.read()
        await again.close()
        assert _text(second.events) == _text(reply.events)
        return _text(reply.events)

    (right,) = serial.answers("twin", SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True))
    assert asyncio.run(asyncio.wait_for(pair(), PATIENCE_S)) == right.text.encode()
    served.wait_idle()
    served.process.control("")


def _text(found: list[bytes]) -> bytes:
    assert found[-1] == b"[DONE]"
    parts = [choice["text"] for event in found[:-1] for choice in json.loads(event)["choices"]]
    return "".join(parts).encode()
