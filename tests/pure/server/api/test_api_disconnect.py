"""Clients that leave, read slowly or wait long: what happens to their requests, and to their neighbours."""

import asyncio
import json

import pytest
from tests.fakes.api_server import api_server, run, text_ids
from tests.fakes.raw_asgi import RawCall

from paceline.contracts.slo import Outcome, Slo
from paceline.server.api.answer import Answer
from paceline.server.api.sse import EventStream
from paceline.server.tenancy.classes import ServiceClass
from paceline.server.tenancy.tenants import Tenant, TenantBook

PATH = "/v1/completions"


def request(**fields):
    return {"prompt": "abcdefgh", "max_tokens": 100, "ignore_eos": True, **fields}


def shown(call):
    return "".join(json.loads(e)["choices"][0]["text"] for e in call.events if e.startswith(b"{"))


async def idle(server):
    """Wait until the engine has nothing to do any more."""
    while True:
        stats = server.engine.core.stats()
        if stats.num_running + stats.num_waiting == 0:
            return
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("steps", [0, 1, 3, 9])
@pytest.mark.parametrize("n", [1, 3])
def test_a_client_that_leaves_ends_its_request_wherever_it_is(stream, steps, n):
    """T34: in the queue, in prefill, in decode; blocks go back and no further token is computed for it."""

    async def body():
        async with api_server(prefill_chunk_tokens=4) as server:
            gate = server.new_gate()
            call = RawCall(server.app, PATH, request(stream=stream, n=n, cache_salt=f"{steps}"))
            while server.state.engine.num_open < n:
                await asyncio.sleep(0.001)
            for _ in range(steps):
                gate.release()
            while server.executor.num_steps < steps:
                await asyncio.sleep(0.001)
            call.leave()
            await call.end()
            await idle(server)  # the abort reaches the engine although a step is under way
            gate.open()
            await server.settled()
            assert server.executor.num_steps <= steps + 1  # the one under way
            assert [r.finish_reason for r in server.records] == ["abort"] * n
            assert {r.outcome for r in server.records} == {Outcome.CLIENT_CANCEL}
            assert all(r.reclaim_ms is not None for r in server.records)
            assert call.status is None or (stream and steps > 0)
            again = await server.complete("abcdefgh", max_tokens=3)
            assert again.status_code == 200

    run(body)


def test_a_client_that_leaves_while_its_request_is_handed_over():
    """The engine may have taken it by then: it is aborted as soon as that is known, and metered once."""

    async def body():
        async with api_server() as server:
            for _ in range(20):
                call = RawCall(server.app, PATH, request(prompt=["a", "b"]))
                for _ in range(3):
                    await asyncio.sleep(0)
                call.leave()
                await call.end()
                await server.settled()
            while server.state.engine.num_open:
                await asyncio.sleep(0.001)
            assert open_sequences(server) == 0

    run(body)


def open_sequences(server):
    return sum(use.open for use in server.state.tenants.usage_now().values())


def test_the_server_gives_up_a_request_when_its_own_task_is_cancelled():
    async def body():
        async with api_server(scripts={1: text_ids("0123456789" * 9)}) as server:
            gate = server.new_gate()
            call = RawCall(server.app, PATH, request(stream=True, seed=1))
            gate.release()
            await call.until(lambda c: c.parts)
            call.task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call.task
            gate.open()
            await server.settled()
            assert [r.finish_reason for r in server.records] == ["abort"]

    run(body)


def test_a_client_that_leaves_harms_no_other():
    async def body():
        async with api_server(scripts={1: text_ids("steady as she goes")}) as server:
            alone = (await server.complete("x", seed=1, max_tokens=40)).json()["choices"]
            others = [RawCall(server.app, PATH, request(stream=True, seed=7, n=2)) for _ in range(3)]
            steady = asyncio.create_task(server.complete("x", seed=1, max_tokens=40))
            for other in others:
                await other.until(lambda c: len(c.parts) > 2)
                other.leave()
                await other.end()
            assert (await steady).json()["choices"] == alone
            await server.settled()

    run(body)


def test_a_slow_reader_slows_itself_alone_and_gets_everything():
    async def body():
        async with api_server(scripts={1: text_ids("0123456789" * 6)}) as server:
            slow = RawCall(server.app, PATH, request(seed=1, stream=True))
            slow.reading.clear()
            fast = await server.complete("x", seed=1, max_tokens=100)
            assert fast.json()["choices"][0]["text"] == "0123456789" * 6
            while server.state.engine.num_open:
                await asyncio.sleep(0.001)
            assert (slow.num_waiting_sends, slow.parts) == (1, [])  # nothing piles up in writes
            slow.reading.set()
            await slow.end()
            assert shown(slow) == "0123456789" * 6
            assert slow.complete
            # what waited came in few events, with its tokens counted
            assert len(slow.events) < 10
            assert sum(json.loads(e)["paceline"]["num_tokens"] for e in slow.events if e.startswith(b"{")) == 100

    run(body)


def test_a_slow_reader_gets_what_came_in_time_also_after_the_limit(monkeypatch):
    """The time limit is the engine's: an answer that ended within it is not cut off while its reader takes it."""
    limited = []

    def far_away(answer):
        limited.append(answer)
        return asyncio.get_running_loop().time() + 1000.0

    monkeypatch.setattr(Answer, "_give_up_at", far_away)

    async def body():
        async with api_server(scripts={1: text_ids("0123456789" * 6)}) as server:
            for n in (1, 2):
                slow = RawCall(server.app, PATH, request(seed=1, stream=True, timeout=1000, n=n))
                slow.reading.clear()
                while not slow.num_waiting_sends or server.state.engine.num_open:
                    await asyncio.sleep(0.001)
                limited[-1]._give_up_s = 0.0
                slow.reading.set()
                await slow.end()
                assert slow.events[-1] == b"[DONE]"
                assert len(shown(slow)) == 60 * n

    run(body)


def test_a_slow_reader_that_leaves_is_let_go():
    async def body():
        async with api_server(scripts={1: text_ids("0123456789" * 9)}) as server:
            call = RawCall(server.app, PATH, request(stream=True, seed=1))
            await call.until(lambda c: len(c.parts) > 1)
            call.reading.clear()
            call.leave()
            await call.end()
            await server.settled()

    run(body)


@pytest.mark.parametrize("stream", [False, True])
def test_a_timeout_before_the_first_token_is_a_408(stream):
    async def body():
        async with api_server(max_num_seqs=1) as server:
            gate = server.new_gate()
            first = asyncio.create_task(server.complete("abc", max_tokens=5, ignore_eos=True))
            while server.engine.core.stats().num_running < 1:
                await asyncio.sleep(0.001)
            call = asyncio.create_task(server.complete("abc", timeout=1000, stream=stream))
            while server.state.engine.num_open < 2:
                await asyncio.sleep(0.001)
            server.clock.skipped_s = 2000.0
            gate.open()
            response = await call
            assert response.status_code == 408, response.text
            error = response.json()["error"]
            assert (error["type"], error["param"], error["code"]) == ("timeout_error", "timeout", "timeout")
            await server.settled()
            assert (await first).status_code == 200
            assert sorted(r.outcome for r in server.records) == [Outcome.OK, Outcome.TIMEOUT]

    run(body)


def test_a_class_may_shed_what_waits_too_long():
    shedding = ServiceClass(name="default", slo=Slo(ttft_s=1000.0), shed=True)
    tenant = Tenant(name="default", classes=("default",))

    async def body():
        book = TenantBook([tenant], classes={"default": shedding}, secret=b"s")
        async with api_server(max_num_seqs=1, tenants=book) as server:
            gate = server.new_gate()
            first = asyncio.create_task(server.complete("abc", max_tokens=5, ignore_eos=True))
            while server.engine.core.stats().num_running < 1:
                await asyncio.sleep(0.001)
            call = asyncio.create_task(server.complete("abc"))
            while server.state.engine.num_open < 2:
                await asyncio.sleep(0.001)
            server.clock.skipped_s = 2000.0
            gate.open()
            response = await call
            assert (response.status_code, response.json()["error"]["code"]) == (503, "shed")
            assert response.headers["retry-after"]
            assert (await first).status_code == 200  # begun in time

    run(body)


@pytest.mark.parametrize("stream", [False, True])
def test_a_timeout_after_the_first_token_keeps_what_came(stream):
    async def body():
        async with api_server(scripts={1: text_ids("0123456789" * 5)}) as server:
            gate = server.new_gate()
            call = RawCall(server.app, PATH, request(seed=1, timeout=1000, stream=stream))
            for _ in range(4):
                gate.release()
            while server.executor.num_steps < 4:
                await asyncio.sleep(0.001)
            server.clock.skipped_s = 2000.0
            gate.open()
            await call.end()
            assert call.status == 200
            if stream:
                assert call.events[-1] == b"[DONE]"
                choice = json.loads(call.events[-2])["choices"][0]
                text = shown(call)
            else:
                choice = json.loads(call.body)["choices"][0]
                text = choice["text"]
            # four steps, and the one that was under way
            assert text in ("0123", "01234")
            assert (choice["finish_reason"], choice["stop_reason"]) == ("length", "timeout")
            await server.settled()
            assert [(r.outcome, r.finish_reason) for r in server.records] == [(Outcome.TIMEOUT, "timeout")]

    run(body)


def test_usage_comes_once_at_the_end_also_where_the_clock_ended_the_stream():
    """T33, cancelled."""

    async def body():
        async with api_server(scripts={1: text_ids("0123456789" * 5)}) as server:
            gate = server.new_gate()
            options = {"include_usage": True}
            call = RawCall(server.app, PATH, request(seed=1, timeout=1000, stream=True, stream_options=options))
            for _ in range(4):
                gate.release()
            while server.executor.num_steps < 4:
                await asyncio.sleep(0.001)
            server.clock.skipped_s = 2000.0
            gate.open()
            await call.end()
            *chunks, last = [json.loads(event) for event in call.events[:-1]]
            assert call.events[-1] == b"[DONE]"
            assert all(chunk["usage"] is None for chunk in chunks)
            assert chunks[-1]["choices"][0]["stop_reason"] == "timeout"
            assert last["choices"] == []
            assert last["usage"]["completion_tokens"] == sum(chunk["paceline"]["num_tokens"] for chunk in chunks) >= 4
            await server.settled()

    run(body)


def test_when_the_engine_dies_a_stream_gets_an_error_event_and_no_done():
    async def body():
        async with api_server(scripts={1: text_ids("0123456789" * 9)}) as server:
            gate = server.new_gate()
            streams = [RawCall(server.app, PATH, request(stream=True, seed=1, n=n)) for n in (1, 2)]
            whole = RawCall(server.app, PATH, request(seed=1))
            while server.state.engine.num_open < 4:
                await asyncio.sleep(0.001)
            while not all(call.parts for call in streams):  # how many steps that takes depends on who came first
                if gate.num_passed == gate.num_released:
                    gate.release()
                await asyncio.sleep(0.001)
            gate.open()
            await asyncio.to_thread(server.engine.close)
            for call in streams:
                await call.end()
                assert call.complete
                error = json.loads(call.events[-1])["error"]
                assert error["type"] == "service_unavailable_error"
                assert b"[DONE]" not in call.body
            await whole.end()
            assert whole.status == 503
            assert whole.headers["retry-after"]
            assert [r.outcome for r in server.records] == [Outcome.STREAM_ERROR] * 4
            assert open_sequences(server) == 0
            refused = await server.complete("x")
            assert refused.status_code == 503
            assert server.records[-1].outcome is Outcome.HTTP_ERROR

    run(body)


class Written:
    """An ASGI `send` that keeps what it got."""

    def __init__(self):
        self.messages = []

    async def __call__(self, message):
        self.messages.append(message)

    @property
    def body(self):
        return b"".join(m.get("body", b"") for m in self.messages)


def test_long_silence_is_broken_by_comments_and_the_status_line_comes_with_the_first():
    async def body():
        sent = Written()
        events = EventStream(sent, {"X-A": "b"}, ping_s=0.02)
        assert not events.begun
        while sent.body.count(b": ping\n\n") < 2:
            await asyncio.sleep(0.005)
        assert events.begun
        assert [m["type"] for m in sent.messages][:2] == ["http.response.start", "http.response.body"]
        assert (b"x-a", b"b") in sent.messages[0]["headers"]
        await events.send(b"data: 1\n\n")
        await events.end(b"data: [DONE]\n\n")
        size = len(sent.messages)
        await asyncio.sleep(0.1)
        assert len(sent.messages) == size  # none after the end
        assert sent.messages[-1]["more_body"] is False
        assert sent.body.replace(b": ping\n\n", b"") == b"data: 1\n\ndata: [DONE]\n\n"

    run(body)


def test_a_busy_stream_gets_no_comments():
    async def body():
        sent = Written()
        events = EventStream(sent, ping_s=30.0)
        for _ in range(20):
            await events.send(b"data: 1\n\n")
        await events.end()
        assert b": ping" not in sent.body

    run(body)


def test_errors_before_the_first_event_keep_their_status_in_a_stream_too():
    async def body():
        async with api_server(max_model_len=64, num_blocks=8) as server:
            response = await server.complete([97] * 60, stream=True)
            assert response.status_code == 400
            assert response.headers["content-type"] == "application/json"

    run(body)
