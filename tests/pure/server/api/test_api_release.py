"""Nothing outlives its call: neither work for a client that has left, nor what the call held in memory."""

import asyncio
import gc

import pytest
from tests.fakes.api_server import api_server, run
from tests.fakes.raw_asgi import RawCall

from paceline.server.api.choice import Choice
from paceline.server.api.generation import Ask, Generation
from paceline.server.api.protocol import CompletionRequest

PATH = "/v1/completions"


def test_a_client_that_leaves_while_its_prompts_are_read_ends_that_work(monkeypatch):
    """Else abandoned calls would pile up before the text thread, with their bodies."""

    async def body():
        async with api_server() as server:
            num_texts = 0
            text = server.state.engine.text

            async def counted(run, *args):
                nonlocal num_texts
                num_texts += 1
                if num_texts == 3:
                    call.leave()
                return await text(run, *args)

            monkeypatch.setattr(server.state.engine, "text", counted)
            call = RawCall(server.app, PATH, {"prompt": ["a"] * 50, "max_tokens": 3})
            await call.end()
            assert num_texts == 3
            assert server.records == []
            assert sum(use.open for use in server.state.tenants.usage_now().values()) == 0

    run(body)


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("leaves", [False, True])
def test_what_a_call_held_is_free_as_soon_as_it_ends(n, leaves):
    """Prompts are large and the garbage collector comes seldom: no circle of references may keep them."""
    kinds = (Ask, Choice, CompletionRequest, Generation)

    async def body():
        async with api_server() as server:
            gc.collect()
            gc.disable()
            try:
                call = RawCall(
                    server.app, PATH, {"prompt": "abcd", "n": n, "stream": True, "max_tokens": 8, "ignore_eos": True}
                )
                if leaves:
                    await call.until(lambda c: c.parts)
                    call.leave()
                await call.end()
                await server.settled()
                del call
                for _ in range(200):  # tasks that were cancelled end in the loop's next rounds
                    left = [
                        type(o).__name__ for o in gc.get_objects() if type(o) in kinds
                    ]  # isinstance would wake lazy modules
                    if not left:
                        break
                    await asyncio.sleep(0.005)
                assert left == []
            finally:
                gc.enable()

    run(body)
