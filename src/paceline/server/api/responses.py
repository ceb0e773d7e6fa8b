"""/v1/responses: items of a conversation in, items of an answer out. Nothing is stored between calls."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from paceline.server.api.answer import ANSWERS, Answer
from paceline.server.api.calls import check_model
from paceline.server.api.protocol import ResponsesRequest, read_body, request_schema
from paceline.server.api.response_writer import ResponseWriter
from paceline.server.api.translated import prepare_translated
from paceline.server.errors import ERROR_RESPONSES
from paceline.server.state import server_of
from paceline.server.tenancy.auth import tenant_of
from paceline.server.tenancy.tenants import Tenant

router = APIRouter(tags=["generation"], responses=ERROR_RESPONSES)


@router.post(
    "/v1/responses", openapi_extra=request_schema(ResponsesRequest), response_class=Response, responses=ANSWERS
)
async def create_response(request: Request, tenant: Annotated[Tenant, Depends(tenant_of)]) -> Response:
    """Answer a conversation, in the form of OpenAI's Responses. Fields: docs/reference/api.md."""
    state = server_of(request)
    body = await read_body(request, ResponsesRequest, state.engine.text)
    model = check_model(state, body.model)
    generation = await prepare_translated(request, tenant, body, prefix="resp_", prompt_param="input")
    return Answer(generation, ResponseWriter(generation, body, model), stream=bool(body.stream))
