"""What every endpoint does first: who calls what, and the prompt as token ids (made in the text thread)."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from paceline.errors import RequestError
from paceline.server.api.continued import ContinuedTemplate
from paceline.server.api.offered import as_told, dialect_for, tools_in_prompt
from paceline.server.api.protocol.chat import template_options
from paceline.server.errors import ClientLeftError, ModelNotFoundError
from paceline.text import TextPipeline

if TYPE_CHECKING:
    from fastapi import Request

    from paceline.server.api.protocol import ChatRequest, CompletionRequest, TokenizeRequest
    from paceline.server.state import ServerState
    from paceline.text.dialect import Dialect


def arrival_of(request: Request) -> float:
    """When the request reached the server, on the monotonic clock; now, if nobody noted it."""
    noted = request.scope.get("state", {}).get("arrival")
    return noted if isinstance(noted, float) else time.monotonic()


def request_id_of(request: Request, given: str | None) -> str:
    """The id of the answer, without its prefix: the body's, that of the HTTP request, or a new one. Ids of clients are
    labels: two requests may have the same one."""
    noted = request.scope.get("state", {}).get("request_id")
    return given or (noted if isinstance(noted, str) else uuid.uuid4().hex)


def check_model(state: ServerState, name: str | None) -> str:
    """The model's name as the answer gives it. Raises ModelNotFoundError (404)."""
    card = state.model
    if name is None:
        return card.id
    if name not in card.names:
        raise ModelNotFoundError(
            "this server does not have that model",
            param="model",
            seen=f"{name!r:.200}",
            expected=f"one of {', '.join(card.names)}",
            fix="GET /v1/models lists them",
        )
    return name


async def encode_messages(
    state: ServerState, body: ChatRequest | TokenizeRequest, *, add_special: bool = False
) -> np.ndarray:
    """Token ids [num_tokens] int32 of a conversation, with the tools that are offered. Raises RequestError."""
    options = template_options(body)
    pipeline = state.pipeline
    if body.continue_final_message:
        pipeline = _continuing(pipeline, state.model.max_model_len)
    tools = tools_in_prompt(body)
    dialect = dialect_for(state, tools=bool(tools))
    ids: np.ndarray = await state.engine.text(_encode_chat, pipeline, body.messages, options, tools, dialect)
    bos = pipeline.tokenizer.bos_token_id
    if add_special and bos is not None and ids[0] != bos:
        ids = np.concatenate([np.asarray([bos], dtype=np.int32), ids])
    return ids


async def encode_prompts(
    request: Request, state: ServerState, body: CompletionRequest
) -> tuple[list[np.ndarray], list[str]]:
    """Token ids of each prompt, and each as text where `echo` will show it. Raises RequestError; ClientLeftError
    between two prompts, since hundreds of long ones take seconds of the text thread."""
    prompts: list[np.ndarray] = []
    texts: list[str] = []
    for index, prompt in enumerate(body.prompts):
        if index and await request.is_disconnected():
            raise ClientLeftError("the client has left")
        param = "prompt" if len(body.prompts) == 1 else f"prompt[{index}]"
        options = {"add_special": body.add_special_tokens is not False}
        ids = await state.engine.text(_encode, state.pipeline, prompt, param, options)
        prompts.append(ids)
        if body.echo:
            skip = body.skip_special_tokens is not False
            texts.append(
                prompt if isinstance(prompt, str) else await state.engine.text(_decode, state.pipeline, ids, skip)
            )
    return prompts, texts


async def encode_text(state: ServerState, text: str, *, add_special: bool) -> list[int]:
    """Token ids of a text, which may have none. Raises RequestError."""
    if not text:
        return state.pipeline.tokenizer.encode(text, add_special=add_special)
    ids = await state.engine.text(_encode, state.pipeline, text, "prompt", {"add_special": add_special})
    return [int(index) for index in ids]


def _encode(pipeline: TextPipeline, prompt: Any, param: str, options: Mapping[str, Any]) -> np.ndarray:
    """In the text thread. Errors name the field as the client wrote it."""
    try:
        return pipeline.encode_prompt(prompt, **options)
    except RequestError as error:
        where = param if error.param in (None, "prompt") else error.param
        raise type(error)(error.message, param=where, seen=error.seen, expected=error.expected, fix=error.fix) from None


def _encode_chat(
    pipeline: TextPipeline,
    messages: Sequence[Mapping[str, Any]],
    options: Mapping[str, Any],
    tools: list[dict[str, Any]],
    dialect: Dialect,
) -> np.ndarray:
    """In the text thread."""
    told, chat_options = as_told(messages, options, tools, dialect)
    return _encode(pipeline, told, "messages", {"chat_options": chat_options})


def _decode(pipeline: TextPipeline, ids: np.ndarray, skip_special: bool) -> str:
    """In the text thread."""
    return pipeline.tokenizer.decode(ids.tolist(), skip_special=skip_special)


@lru_cache(maxsize=2)
def _continuing(pipeline: TextPipeline, max_model_len: int) -> TextPipeline:
    return TextPipeline(pipeline.tokenizer, ContinuedTemplate(pipeline.template), max_model_len=max_model_len)


def token_texts(pipeline: TextPipeline, ids: Sequence[int]) -> list[str]:
    """Each token as text on its own."""
    return [pipeline.tokenizer.bytes_of(index).decode("utf-8", errors="replace") for index in ids]
