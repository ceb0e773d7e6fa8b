"""A small client for scoring: whole answers, bounded concurrency, one attempt each, no retries hidden anywhere.

Latency is not measured here (`lab.load` does that); a failed call is a reply with an error, for the scorer to count.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx
import msgspec

from paceline.errors import LabError

T = TypeVar("T")
_SHOWN = 200  # characters of a server's words in an error


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """One answer. With `error` set nothing else counts."""

    text: str = ""
    tool_calls: list[dict[str, Any]] = []
    finish_reason: str | None = None
    completion_tokens: int = -1
    choice: dict[str, Any] = {}  # as the server sent it: logprobs stand there
    error: str = ""


class Caller:
    """Calls of one server. `url` is its base, with or without /v1; `model` None takes the first it lists.

    async with Caller(url) as caller:
        reply = await caller.chat([{"role": "user", "content": "Hello"}], max_tokens=16)
    """

    def __init__(
        self,
        url: str,
        *,
        model: str | None = None,
        api_key: str | None = None,
        max_concurrency: int = 8,
        timeout_s: float = 300.0,
    ) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        self.max_concurrency = max_concurrency
        self._model = model
        self._client = httpx.AsyncClient(
            base_url=self.url,
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            timeout=httpx.Timeout(timeout_s),
            limits=httpx.Limits(max_connections=max_concurrency, max_keepalive_connections=max_concurrency),
            trust_env=False,
        )
        self._free = asyncio.Semaphore(max_concurrency)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.aclose()

    async def model(self) -> str:
        """The model's name. Raises LabError if nobody answers."""
        if self._model is None:
            listed = (await self.get("/v1/models")).get("data") or []
            if not listed:
                raise LabError("the server lists no model", seen=self.url, fix="name one with --model")
            self._model = str(listed[0]["id"])
        return self._model

    async def get(self, path: str) -> dict[str, Any]:
        """JSON of a GET. Raises LabError."""
        return await self._json("GET", path, None)

    async def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """JSON of a POST. Raises LabError with the server's words."""
        async with self._free:
            return await self._json("POST", path, body)

    async def chat(self, messages: Sequence[Mapping[str, Any]], **fields: Any) -> Reply:
        """A greedy chat completion; `fields` go into the body."""
        return await self._reply("/v1/chat/completions", {"messages": list(messages)}, fields)

    async def complete(self, prompt: str | Sequence[int], **fields: Any) -> Reply:
        """A greedy completion of a text or of token ids."""
        return await self._reply("/v1/completions", {"prompt": prompt}, fields)

    async def tokenize(self, text: str) -> list[int] | None:
        """Token ids of a text as a prompt, or None where the server has no /tokenize. Raises LabError."""
        for body in ({"model": await self.model(), "prompt": text}, {"content": text, "add_special": True}):
            try:
                found = (await self.post("/tokenize", body)).get("tokens")
            except LabError:
                continue
            if isinstance(found, list) and found:
                return [int(each) for each in found]
        return None

    async def map(
        self, work: Callable[[T], Coroutine[Any, Any, Any]], values: Iterable[T], on_done: Callable[[], None] | None
    ) -> list[Any]:
        """`work` of each value, at most `max_concurrency` at once, results in order. The first exception ends all."""
        gate = asyncio.Semaphore(self.max_concurrency)

        async def one(value: T) -> Any:
            async with gate:
                result = await work(value)
            if on_done is not None:
                on_done()
            return result

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(value)) for value in values]
        except BaseExceptionGroup as several:
            raise several.exceptions[0] from None
        return [task.result() for task in tasks]

    async def _reply(self, path: str, body: dict[str, Any], fields: Mapping[str, Any]) -> Reply:
        whole = {"model": await self.model(), "temperature": 0.0, **body, **fields}
        try:
            answer = await self.post(path, whole)
            choice = answer["choices"][0]
            message = choice.get("message") or {}
            return Reply(
                text=message.get("content") or choice.get("text") or "",
                tool_calls=list(message.get("tool_calls") or ()),
                finish_reason=choice.get("finish_reason"),
                completion_tokens=int((answer.get("usage") or {}).get("completion_tokens", -1)),
                choice=choice,
            )
        except LabError as error:
            return Reply(error=str(error.seen or error.message)[:_SHOWN])
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            return Reply(error=f"an answer of an unknown form: {type(error).__name__}")

    async def _json(self, method: str, path: str, body: Mapping[str, Any] | None) -> dict[str, Any]:
        try:
            response = await self._client.request(method, path, json=body)
        except httpx.HTTPError as error:
            raise LabError(
                "the server did not answer",
                seen=f"{type(error).__name__} at {self.url}{path}",
                fix="check the URL, that the server runs, and the timeout",
            ) from None
        if response.status_code != 200:
            raise LabError(
                f"the server refused {path}", seen=f"HTTP {response.status_code}: {_words(response)}", expected="200"
            )
        try:
            value = response.json()
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise LabError(f"{path} did not answer with a JSON object", seen=self.url)
        return value


def _words(response: httpx.Response) -> str:
    """The error's message where there is one."""
    try:
        error = response.json().get("error", {})
        found = error.get("message") if isinstance(error, dict) else error
        return str(found or response.text)[:_SHOWN]
    except (ValueError, AttributeError):
        return response.text[:_SHOWN]
