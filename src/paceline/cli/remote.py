"""A model behind an OpenAI-compatible server, as `paceline chat --url` talks to it: httpx and server-sent events."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paceline.errors import AuthError, RequestError

if TYPE_CHECKING:
    import httpx

    from paceline.contracts.request import SamplingParams

_READ_S = 600.0  # a queue may be long


class RemoteError(RequestError):
    """The server refused, broke off or is not there. The conversation can go on."""

    code = "remote"


@dataclass(frozen=True)
class Piece:
    text: str
    thought: str = ""  # reasoning, which is no part of the answer


class RemoteChat:
    """`url` with or without /v1. Raises RemoteError for a server that is not there or does not answer as one should,
    AuthError for a key it does not take."""

    def __init__(self, url: str, api_key: str | None = None, model: str | None = None) -> None:
        import httpx

        base = url.rstrip("/")
        if "://" not in base:
            raise RequestError("this is not a URL", param="url", seen=url, expected="http://HOST:PORT")
        self.base_url = base if base.endswith("/v1") else f"{base}/v1"
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._http = httpx.Client(headers=headers, timeout=httpx.Timeout(10.0, read=_READ_S))
        with self._asked():
            answer = self._http.get(f"{self.base_url}/models")
            self._check(answer)
            names: list[str] = [str(entry["id"]) for entry in answer.json()["data"]]
        if not names:
            raise RemoteError("the server has no model", seen=self.base_url)
        self.model = model if model is not None and model in names else names[0]

    def chat_stream(self, messages: Sequence[dict[str, str]], params: SamplingParams) -> Iterator[Piece]:
        """The answer as it comes."""
        body = {"model": self.model, "messages": list(messages), "stream": True, **_fields(params)}
        with self._asked(), self._http.stream("POST", f"{self.base_url}/chat/completions", json=body) as answer:
            if answer.status_code != 200:
                answer.read()
                self._check(answer)
            for line in answer.iter_lines():
                if not line.startswith("data:"):
                    continue
                data = line.removeprefix("data:").strip()
                if data == "[DONE]":
                    return
                event = json.loads(data)
                if "error" in event:
                    raise RemoteError(str(event["error"].get("message", "the server ended the answer")))
                for choice in event.get("choices", ()):
                    delta = choice["delta"]
                    yield Piece(delta.get("content") or "", delta.get("reasoning_content") or "")
            raise RemoteError("the answer broke off", fix="ask again")

    def close(self) -> None:
        self._http.close()

    def _check(self, answer: httpx.Response) -> None:
        if answer.status_code == 200:
            return
        try:
            message = str(answer.json()["error"]["message"])
        except (ValueError, KeyError, TypeError):
            message = answer.text[:200] or answer.reason_phrase
        if answer.status_code in (401, 403):
            raise AuthError(message, fix="give the server's key with --api-key")
        raise RemoteError(f"the server answered {answer.status_code}: {message}")

    @contextmanager
    def _asked(self) -> Iterator[None]:
        """Failures of the connection as errors with a fix."""
        import httpx

        try:
            yield
        except httpx.HTTPError as error:
            raise RemoteError(
                "the server cannot be reached", seen=f"{self.base_url}: {error}", fix="start it: paceline serve"
            ) from None
        except (ValueError, KeyError, TypeError) as error:
            raise RemoteError(
                "this does not answer as an OpenAI server does", seen=f"{self.base_url}: {error!r}", fix="check the URL"
            ) from None


def _fields(params: SamplingParams) -> dict[str, Any]:
    """Sampling as the API names it; neutral values are left out, for servers that do not know them."""
    fields: dict[str, Any] = {"temperature": params.temperature, "top_p": params.top_p}
    if params.max_tokens is not None:
        fields["max_tokens"] = params.max_tokens
    if params.stop:
        fields["stop"] = list(params.stop)
    for name, neutral in (("top_k", 0), ("min_p", 0.0), ("repetition_penalty", 1.0)):
        if getattr(params, name) != neutral:
            fields[name] = getattr(params, name)
    return fields
