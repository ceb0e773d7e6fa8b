"""/v1/chat/completions: a conversation in, the assistant's turn out."""

from __future__ import annotations

import time
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response

from paceline.server.api.answer import ANSWERS, Answer
from paceline.server.api.calls import arrival_of, check_model, encode_messages, request_id_of
from paceline.server.api.choice import Choice, News
from paceline.server.api.deltas import message_delta, whole_message
from paceline.server.api.generation import Ask, Generation
from paceline.server.api.offered import calls_grammar, client_grammar, reading_of
from paceline.server.api.protocol import ChatRequest, read_body, request_schema
from paceline.server.api.protocol.logprobs import ChatLogprobs, prompt_entries
from paceline.server.api.sse import encode, event
from paceline.server.api.writer import BaseWriter, finish_reason, stop_reason
from paceline.server.errors import ERROR_RESPONSES
from paceline.server.state import ServerState, server_of
from paceline.server.tenancy.auth import tenant_of
from paceline.server.tenancy.tenants import Tenant

router = APIRouter(tags=["generation"], responses=ERROR_RESPONSES)


@router.post(
    "/v1/chat/completions", openapi_extra=request_schema(ChatRequest), response_class=Response, responses=ANSWERS
)
async def create_chat_completion(request: Request, tenant: Annotated[Tenant, Depends(tenant_of)]) -> Response:
    """Continue a conversation. Fields: docs/reference/api.md."""
    arrival = arrival_of(request)
    state = server_of(request)
    body = await read_body(request, ChatRequest, state.engine.text)
    model = check_model(state, body.model)
    request_id = f"chatcmpl-{request_id_of(request, body.request_id)}"
    generation = await prepare_chat(state, tenant, body, arrival=arrival, request_id=request_id)
    writer = ChatWriter(generation, body, ChatLogprobs(state.pipeline.tokenizer, as_ids=_as_ids(body)), model)
    return Answer(generation, writer, stream=bool(body.stream))


async def prepare_chat(
    state: ServerState,
    tenant: Tenant,
    body: ChatRequest,
    *,
    arrival: float,
    request_id: str,
    prompt_param: str = "messages",
) -> Generation:
    """All of a chat but its wording, ready to start. Other APIs whose requests are conversations come here too.
    `arrival`: on the monotonic clock. `prompt_param`: what the client calls its messages. Raises RequestError."""
    sampling = body.sampling()
    sampling.check_vocabulary(state.pipeline.tokenizer.vocab_size)
    grammar = client_grammar(body)
    ids = await encode_messages(state, body, add_special=bool(body.add_special_tokens))
    reading = reading_of(state, body, ids, constrained=grammar is not None)
    offer = body.offer()
    if offer is not None and offer.required:
        assert reading is not None, "tools are offered, so calls are looked for"
        room = state.model.max_model_len - len(ids)
        grammar = await calls_grammar(state, offer, reading, sampling.max_tokens or room)
    ask = Ask(
        body=body,
        prompts=[ids],
        sampling=sampling,
        grammar=grammar,
        reading=reading,
        arrival=arrival,
        request_id=request_id,
        prompt_param=prompt_param,
    )
    return Generation(state, tenant, ask)


def _as_ids(body: ChatRequest) -> bool:
    return bool(body.return_tokens_as_token_ids)


class ChatWriter(BaseWriter):
    object_name = "chat.completion"
    chunk_name = "chat.completion.chunk"

    def __init__(self, generation: Generation, body: ChatRequest, logprobs: ChatLogprobs, model: str) -> None:
        super().__init__(generation, response_id=generation.ask.request_id, created=int(time.time()), model=model)
        self._want_logprobs = bool(body.logprobs)
        self._want_prompt_logprobs = body.prompt_logprobs is not None
        self._logprobs = logprobs
        self._tokens = generation.tokenizer
        self._echo = _last_text(body) if body.echo else ""
        self._ends: dict[int, News] = {}

    # --- events

    def opening(self, choice: Choice, news: News) -> list[bytes]:
        """The role, and with `echo` the text that is continued."""
        first = self.wrap([self._delta_choice(choice.index, {"role": "assistant", "content": ""})])
        if self.want_ids:
            first["prompt_token_ids"] = choice.request.prompt.ids.tolist()
        parts = [event({**first, "paceline": {"num_tokens": 0}})]
        if self._echo:
            echoed = self.wrap([self.text_choice(choice.index, self._echo)])
            parts.append(event({**echoed, "paceline": {"num_tokens": 0}}))
        return parts

    def extra(self, choice: Choice, news: News) -> dict[str, Any]:
        extra: dict[str, Any] = {}
        if news.parsed and (delta := message_delta(news.parsed)).keys() - {"content"}:
            extra["delta"] = delta
        if self._want_logprobs and news.token_ids:
            extra["logprobs"] = {"content": self._logprobs.entries(news.logprobs), "refusal": None}
        if self.want_ids and news.token_ids:
            extra["token_ids"] = news.token_ids
        return extra

    def text_choice(self, index: int, text: str) -> dict[str, Any]:
        return self._delta_choice(index, {"content": text} if text else {})

    def _delta_choice(self, index: int, delta: dict[str, str]) -> dict[str, Any]:
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    # --- whole

    def collect(self, choice: Choice, news: News) -> None:
        if news.finish is not None:
            self._ends[choice.index] = news

    def whole(self) -> bytes:
        choices = sorted(self.generation.choices, key=lambda choice: choice.index)
        value = {
            "id": self._id,
            "object": self.object_name,
            "created": self._created,
            "model": self._model,
            "choices": [self._whole_choice(choice) for choice in choices],
            "usage": self.usage(),
        }
        prompt_logprobs = choices[0].text.prompt_logprobs
        if self._want_prompt_logprobs and prompt_logprobs is not None:
            value["prompt_logprobs"] = prompt_entries(self._tokens, prompt_logprobs)
        if self.want_ids:
            value["prompt_token_ids"] = choices[0].request.prompt.ids.tolist()
        value["paceline"] = self.about()
        return encode(value)

    def _whole_choice(self, choice: Choice) -> dict[str, Any]:
        end = self._ends[choice.index]
        content = self._logprobs.entries(choice.text.logprobs) if self._want_logprobs else None
        value: dict[str, Any] = {
            "index": choice.index,
            "message": whole_message(choice.message, self._echo),
            "logprobs": None if content is None else {"content": content, "refusal": None},
            "finish_reason": finish_reason(end),
            "stop_reason": stop_reason(end, self.sampling),
        }
        if self.want_ids:
            value["token_ids"] = choice.text.token_ids
        return value


def _last_text(body: ChatRequest) -> str:
    """The text that a continued answer goes on from; empty when the answer is a turn of its own."""
    last = body.messages[-1]
    if not body.continue_final_message and last["role"] != "assistant":
        return ""
    content = last.get("content") or ""
    return content if isinstance(content, str) else "".join(part["text"] for part in content)
