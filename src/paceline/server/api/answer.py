"""The ASGI response of a generation: runs it, writes it as JSON or as events, and lets go when the client does.

Two tasks per call, none per token: one runs the generation, one waits for the client to leave. Whichever ends first
ends the other, so an abort reaches the engine as soon as the connection is seen to be closed, streaming or not.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from starlette.responses import Response

from paceline.contracts.request import FinishReason
from paceline.server.api.sse import EventStream
from paceline.server.errors import error_response, log_unexpected

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from paceline.contracts.request import RequestOutput
    from paceline.server.api.choice import Choice, News
    from paceline.server.api.generation import Generation

ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "One JSON value, or events with `stream`",
        "content": {"application/json": {}, "text/event-stream": {}},
    }
}
"""`responses` of a route that gives an `Answer`."""
GRACE_S = 2.0  # a request that its engine does not end at its time limit is ended here so much later


class Writer(Protocol):
    """How one endpoint words an answer."""

    end_mark: bytes  # what a stream that went well ends with

    def events(self, choice: Choice, news: News) -> bytes:
        """Events for what came; may be none."""
        ...

    def last_events(self) -> bytes:
        """Those after every choice has ended, but for the final mark."""
        ...

    def error_event(self, error: Exception) -> bytes:
        """The last event of a stream that went wrong."""
        ...

    def collect(self, choice: Choice, news: News) -> None:
        """Keep what came, for `whole`."""
        ...

    def whole(self) -> bytes:
        """The answer as one JSON value."""
        ...


class Answer(Response):
    """`stream`: as server-sent events."""

    background = None

    def __init__(self, generation: Generation, writer: Writer, *, stream: bool) -> None:
        self.status_code = 200
        self._generation = generation
        self._writer = writer
        self._as_events = stream
        self._give_up_s: float | None = None  # on the loop's clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        work = asyncio.create_task(self._work(scope, receive, send))
        watch = asyncio.create_task(_disconnected(receive))
        try:
            await asyncio.wait((work, watch), return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                self._generation.leave()
                work.cancel()
                with suppress(asyncio.CancelledError):
                    await work
            else:
                await work
        finally:
            watch.cancel()
            work.cancel()
            self._generation.close()

    async def _work(self, scope: Scope, receive: Receive, send: Send) -> None:
        events: EventStream | None = None
        self._give_up_s = self._give_up_at()
        try:
            async with asyncio.timeout_at(self._give_up_s):
                await self._generation.start()
            headers = self._generation.headers()
            if self._as_events:
                events = EventStream(send, headers)
                await self._stream(events)
            else:
                await self._whole(scope, receive, send, headers)
        except TimeoutError:
            await self._fail(self._generation.timeout_error(), events, scope, receive, send)
        except Exception as error:
            await self._fail(error, events, scope, receive, send)
        finally:
            if events is not None:
                events.close()
            self._generation.close()

    def _give_up_at(self) -> float | None:
        deadline = self._generation.deadline
        if deadline is None:
            return None
        return asyncio.get_running_loop().time() + max(0.0, deadline - time.monotonic()) + GRACE_S

    async def _news(self) -> list[tuple[Choice, list[RequestOutput]]]:
        """The generation's. The limit is on waiting for the engine alone: what has come in time stays good, however
        long its reader takes."""
        if self._give_up_s is None:
            return await self._generation.news()
        async with asyncio.timeout_at(self._give_up_s):
            return await self._generation.news()

    async def _stream(self, events: EventStream) -> None:
        generation, writer = self._generation, self._writer
        while ready := await self._news():
            parts = []
            error: str | None = None
            for choice, outputs in ready:
                news = choice.take(outputs)
                if news.finish is FinishReason.TIMEOUT and not choice.num_tokens and not events.begun:
                    raise generation.timeout_error()
                if news.error is not None and not choice.num_tokens and not events.begun:
                    raise generation.failure(news.error)
                if news.error is not None:
                    error, news.finish = news.error, None  # an error is no way to finish
                parts.append(writer.events(choice, news))
            if data := b"".join(parts):
                await events.send(data)
            if error is not None:
                raise generation.failure(error)
        await events.end(writer.last_events() + writer.end_mark)

    async def _whole(self, scope: Scope, receive: Receive, send: Send, headers: Mapping[str, str]) -> None:
        generation, writer = self._generation, self._writer
        timed_out = False
        while ready := await self._news():
            for choice, outputs in ready:
                news = choice.take(outputs)
                if news.error is not None:
                    raise generation.failure(news.error)
                timed_out = timed_out or news.finish is FinishReason.TIMEOUT
                writer.collect(choice, news)
        if timed_out and not any(choice.num_tokens for choice in generation.choices):
            raise generation.timeout_error()
        response = Response(writer.whole(), 200, dict(headers), media_type="application/json")
        await response(scope, receive, send)

    async def _fail(
        self, error: Exception, events: EventStream | None, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """As an HTTP error while that can still be said; else as an event, without the mark of a good end."""
        if events is None or not events.begun:
            if events is not None:
                events.close()
            await error_response(error)(scope, receive, send)
            return
        log_unexpected(error)
        await events.end(self._writer.error_event(error))


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
