"""The words of the API: what a request body may hold, checked field by field, and what answers look like.

Bodies are JSON objects parsed by `read_body` and checked by the models here. Fields we do not know are refused with the
nearest name; fields of OpenAI's or vLLM's API that we know and cannot serve are refused with the reason, unless their
value asks for nothing; a few that only describe the caller are taken and not used. Everything wrong is a RequestError
that names the field. Bounds of sampling values are those of `contracts.request.SamplingParams`, checked there.

May import contracts, errors, `server.errors` and the values of `text.grammar.spec` and `text.tools`; knows nothing of
engines, tenants or sockets.
"""

from paceline.server.api.protocol.anthropic import CountRequest, MessagesRequest
from paceline.server.api.protocol.body import parse_json, read_body, request_schema
from paceline.server.api.protocol.chat import ChatRequest
from paceline.server.api.protocol.completions import CompletionRequest
from paceline.server.api.protocol.embeddings import EmbeddingsRequest
from paceline.server.api.protocol.responses import ResponsesRequest
from paceline.server.api.protocol.tokens import DetokenizeRequest, TokenizeRequest

__all__ = [
    "ChatRequest",
    "CompletionRequest",
    "CountRequest",
    "DetokenizeRequest",
    "EmbeddingsRequest",
    "MessagesRequest",
    "ResponsesRequest",
    "TokenizeRequest",
    "parse_json",
    "read_body",
    "request_schema",
]
