"""Every field that stock clients can send is one that its endpoint knows, and one that the page of the API lists.

For OpenAI's the list is the client's own types. The client of Anthropic is no dependency: its list is written here.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from openai.types import completion_create_params, embedding_create_params
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import response_create_params

from paceline.server.api.protocol import (
    ChatRequest,
    CompletionRequest,
    EmbeddingsRequest,
    MessagesRequest,
    ResponsesRequest,
)
from paceline.server.api.protocol.body import Body, names_of

PAGE = Path(__file__).parents[4] / "docs" / "reference" / "api.md"
BOTH = "Both ways of generating"
MESSAGES = (  # MessageCreateParams of anthropic-sdk-python
    *("max_tokens", "messages", "model", "cache_control", "container", "inference_geo", "metadata", "output_config"),
    *("service_tier", "stop_sequences", "system", "temperature", "thinking", "tool_choice", "tools", "top_k", "top_p"),
    *("stream", "speed", "diagnostics", "user_profile_id", "workspace_id"),
)
CLIENTS: dict[str, tuple[type[Body], set[str]]] = {
    "/v1/completions": (CompletionRequest, {*completion_create_params.CompletionCreateParamsStreaming.__annotations__}),
    "/v1/chat/completions": (ChatRequest, {*chat_create_params.CompletionCreateParamsStreaming.__annotations__}),
    "/v1/responses": (ResponsesRequest, {*response_create_params.ResponseCreateParamsStreaming.__annotations__}),
    "/v1/messages": (MessagesRequest, {*MESSAGES}),
    "/v1/embeddings": (EmbeddingsRequest, {*embedding_create_params.EmbeddingCreateParams.__annotations__}),
}


def section(heading: str) -> str:
    """The text below a heading of the second level."""
    parts = re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return next(part for part in parts if part.startswith(f"{heading}\n"))


@pytest.mark.parametrize("path", CLIENTS)
def test_every_field_of_the_clients_is_known_and_listed(path: str) -> None:
    model, fields = CLIENTS[path]
    assert len(fields) >= 5
    assert not sorted(fields - set(names_of(model))), "the endpoint takes these for misspelt"
    text = section(path) + (section(BOTH) if path in ("/v1/completions", "/v1/chat/completions") else "")
    assert not sorted(name for name in fields if f"`{name}`" not in text), "not on the page"


@pytest.mark.parametrize("path", CLIENTS)
def test_every_field_of_ours_is_listed_where_it_belongs(path: str) -> None:
    """Fields that both ways of generating share have one section."""
    model, _ = CLIENTS[path]
    text = section(path) + section(BOTH)
    assert not sorted(name for name in names_of(model) if f"`{name}`" not in text)
