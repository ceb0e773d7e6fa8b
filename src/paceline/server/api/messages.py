"""/v1/messages: a conversation in Anthropic's form, and what its prompt would count."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from paceline.server.api.answer import ANSWERS, Answer
from paceline.server.api.calls import check_model, encode_messages
from paceline.server.api.message_writer import MessageWriter
from paceline.server.api.protocol import CountRequest, MessagesRequest, read_body, request_schema
from paceline.server.api.protocol.renamed import in_words_of
from paceline.server.api.sse import encode
from paceline.server.api.translated import prepare_translated
from paceline.server.errors import MESSAGES_ERROR_RESPONSES, MESSAGES_PATH
from paceline.server.state import server_of
from paceline.server.tenancy.auth import tenant_of
from paceline.server.tenancy.tenants import Tenant

router = APIRouter(responses=MESSAGES_ERROR_RESPONSES)


@router.post(
    MESSAGES_PATH,
    tags=["generation"],
    openapi_extra=request_schema(MessagesRequest),
    response_class=Response,
    responses=ANSWERS,
)
async def create_message(request: Request, tenant: Annotated[Tenant, Depends(tenant_of)]) -> Response:
    """Answer a conversation, in Anthropic's form. Fields: docs/reference/api.md."""
    state = server_of(request)
    body = await read_body(request, MessagesRequest, state.engine.text)
    model = check_model(state, body.model)
    generation = await prepare_translated(request, tenant, body, prefix="msg_", prompt_param="messages")
    return Answer(generation, MessageWriter(generation, body, model), stream=bool(body.stream))


@router.post(
    f"{MESSAGES_PATH}/count_tokens",
    tags=["tokens"],
    dependencies=[Depends(tenant_of)],
    openapi_extra=request_schema(CountRequest),
    response_class=Response,
)
async def count_tokens(request: Request) -> Response:
    """Tokens of the prompt that a message with the same fields would have."""
    state = server_of(request)
    body = await read_body(request, CountRequest, state.engine.text)
    check_model(state, body.model)
    with in_words_of(body.NAMES):
        ids = await encode_messages(state, body.chat)
    return Response(encode({"input_tokens": len(ids)}), media_type="application/json")
