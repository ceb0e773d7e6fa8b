"""A tiny language model behind an OpenAI-like server, of which every probability is known.

Tokens are words; the next one depends on the last alone. `noise` moves the logits, so two models have a KL that a test
can compute whole. `abilities` says which forms of log probabilities the server has.

    with ToyServer(ToyLm()) as server: ...  server.url
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from typing import Any

import numpy as np

WORDS = [f"w{i}" for i in range(40)]


class ToyLm:
    """Logits [vocab, vocab] from a seed; `noise` x another draw is added."""

    def __init__(self, *, noise: float = 0.0, seed: int = 7, sharpness: float = 2.0) -> None:
        rng = np.random.default_rng(seed)
        logits = sharpness * rng.normal(size=(len(WORDS), len(WORDS)))
        logits += noise * np.random.default_rng(seed + 1).normal(size=logits.shape)
        self.logprobs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))  # [last, next]

    def entry(self, last: int, own: int, num_top: int) -> dict[int, float]:
        row = self.logprobs[last]
        best = np.argsort(-row)[:num_top]
        return {int(i): float(row[i]) for i in (*best, own)}

    def continue_greedily(self, ids: Sequence[int], count: int) -> list[int]:
        made: list[int] = []
        last = ids[-1]
        for _ in range(count):
            last = int(np.argmax(self.logprobs[last]))
            made.append(last)
        return made

    def kl(self, other: ToyLm, last: int) -> float:
        """KL(self || other) of the token behind `last`, nats."""
        p = self.logprobs[last]
        return float((np.exp(p) * (p - other.logprobs[last])).sum())


def ids_of(text: str) -> list[int]:
    return [WORDS.index(word) for word in text.split()]


class ToyServer:
    """`chat`: (messages, body) -> text, or a dict for the whole message, or an int for an error status."""

    def __init__(
        self,
        model: ToyLm | None = None,
        *,
        abilities: Sequence[str] = ("tokenize", "prompt_logprobs", "echo", "logprobs"),
        chat: Callable[[list[dict[str, Any]], dict[str, Any]], str | int | dict[str, Any]] | None = None,
    ) -> None:
        self.model = model or ToyLm()
        self.abilities = abilities
        self.chat = chat
        self.bodies: list[dict[str, Any]] = []
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = 1 << 16  # an answer leaves in one piece

            def log_message(self, *_: object) -> None:
                pass

            def do_GET(self) -> None:
                self._send(200, {"data": [{"id": "toy"}]} if self.path == "/v1/models" else {"status": "ok"})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                owner.bodies.append(body)
                self._send(*owner.answer(self.path, body))

            def _send(self, status: int, value: object) -> None:
                data = json.dumps(value).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> ToyServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, object]:
        if path == "/tokenize" and "tokenize" in self.abilities:
            return 200, {"tokens": ids_of(body.get("prompt", body.get("content", "")))}
        if path == "/v1/completions":
            return 200, {"choices": [self._complete(body)], "usage": {"completion_tokens": body["max_tokens"]}}
        if path == "/v1/chat/completions" and self.chat is not None:
            said = self.chat(body["messages"], body)
            if isinstance(said, int):
                return said, {"error": {"message": f"no: {said}"}}
            message = said if isinstance(said, dict) else {"content": said}
            return 200, {"choices": [{"message": message, "finish_reason": "stop"}]}
        return 404, {"error": {"message": "unknown path"}}

    def _complete(self, body: dict[str, Any]) -> dict[str, Any]:
        prompt = body["prompt"]
        ids = ids_of(prompt) if isinstance(prompt, str) else prompt
        made = self.model.continue_greedily(ids, body["max_tokens"])
        choice: dict[str, Any] = {"index": 0, "text": _text(made), "finish_reason": "length", "logprobs": None}
        num_top = body.get("prompt_logprobs")
        if num_top is not None and "prompt_logprobs" in self.abilities:
            shown = [self.model.entry(a, b, num_top) for a, b in pairwise(ids)]
            choice["prompt_logprobs"] = [None] + [{str(t): {"logprob": v} for t, v in e.items()} for e in shown]
        if body.get("logprobs") is not None and "logprobs" in self.abilities:
            echo = bool(body.get("echo")) and "echo" in self.abilities
            choice["logprobs"] = self._text_logprobs([*ids, *made], 0 if echo else len(ids), body["logprobs"])
            choice["text"] = _text([*ids, *made]) if echo else choice["text"]
        return choice

    def _text_logprobs(self, ids: list[int], begin: int, num_top: int) -> dict[str, Any]:
        shown = {"tokens": [WORDS[i] for i in ids[begin:]], "token_logprobs": [], "top_logprobs": []}
        for place in range(begin, len(ids)):
            if place == 0:
                shown["token_logprobs"].append(None)
                shown["top_logprobs"].append(None)
                continue
            entry = self.model.entry(ids[place - 1], ids[place], num_top)
            shown["token_logprobs"].append(entry[ids[place]])
            shown["top_logprobs"].append({WORDS[t]: v for t, v in entry.items()})
        return shown


def _text(ids: Sequence[int]) -> str:
    return " ".join(WORDS[i] for i in ids)
