"""Calls that are not load: asking a server what it is, counting tokens. One attempt each, no proxy, nothing logged."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

import httpx

from paceline.errors import LabError
from paceline.lab.load.events import error_words
from paceline.lab.load.target import Address, tls_context


class Reply:
    """Status and JSON of an answer; `value` is None where there is no JSON."""

    def __init__(self, status: int, headers: dict[str, str], content: bytes, value: Any) -> None:
        self.status = status
        self.headers = headers  # lower-case names
        self.content = content
        self.value = value

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    @property
    def object(self) -> dict[str, Any]:
        """The JSON object; empty if the answer is none, or an error."""
        return self.value if self.ok and isinstance(self.value, dict) else {}

    @property
    def words(self) -> str:
        """For a person: status and the server's message."""
        error = self.value.get("error", self.value) if isinstance(self.value, dict) else None
        return f"{self.status} {error_words(error) if error else ''}".rstrip()


class Control:
    """An HTTP client for one base address. `async with`."""

    def __init__(
        self,
        address: Address,
        *,
        api_key: str | None = None,
        headers: dict[str, str] | None = None,
        ca_file: str | None = None,
        verify_tls: bool = True,
        timeout_s: float = 60.0,
    ) -> None:
        self.address = address
        head = dict(headers or {})
        if api_key is not None:
            head["Authorization"] = f"Bearer {api_key}"
        self._client = httpx.AsyncClient(
            base_url=address.base_url,
            headers=head,
            timeout=timeout_s,
            trust_env=False,
            verify=tls_context(address, ca_file, verify_tls) or False,
        )

    async def get(self, path: str) -> Reply:
        """Raises LabError when there is no answer."""
        return await self._send("GET", path, None)

    async def post(self, path: str, body: dict[str, Any]) -> Reply:
        """Raises LabError when there is no answer."""
        return await self._send("POST", path, body)

    async def _send(self, method: str, path: str, body: dict[str, Any] | None) -> Reply:
        try:
            answer = await self._client.request(method, path, json=body)
        except httpx.TimeoutException as error:
            raise LabError(
                "the server gave no answer in time", seen=f"{method} {self.address.base_url}{path}"
            ) from error
        except httpx.HTTPError as error:
            raise LabError(
                "the server cannot be reached",
                seen=f"{self.address.base_url}: {type(error).__name__}",
                fix="is it running, and is the URL right?",
            ) from error
        try:
            value = answer.json()
        except ValueError:
            value = None
        return Reply(answer.status_code, {k.lower(): v for k, v in answer.headers.items()}, answer.content, value)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.aclose()
