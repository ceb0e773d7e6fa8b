"""/v1/embeddings: refused, once the request is known to be right."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Depends, Request, Response

from paceline.server.api.calls import check_model
from paceline.server.api.protocol import EmbeddingsRequest, read_body, request_schema
from paceline.server.errors import ERROR_RESPONSES, NotServedError
from paceline.server.state import server_of
from paceline.server.tenancy.auth import tenant_of

_NOT_SERVED: dict[int | str, dict[str, Any]] = {
    501: {**ERROR_RESPONSES[400], "description": "There are no embeddings yet"}
}

router = APIRouter(tags=["embeddings"], dependencies=[Depends(tenant_of)], responses={**ERROR_RESPONSES, **_NOT_SERVED})


@router.post("/v1/embeddings", openapi_extra=request_schema(EmbeddingsRequest), response_class=Response)
async def create_embeddings(request: Request) -> Response:
    """501: the engine gives tokens and logprobs, no pooled hidden states."""
    state = server_of(request)
    body = await read_body(request, EmbeddingsRequest, state.engine.text)
    check_model(state, body.model)
    raise NotServedError(
        "there are no embeddings: the engine has no pooled output yet", fix="send such requests to a server that has it"
    )
