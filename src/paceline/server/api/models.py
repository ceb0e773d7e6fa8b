"""/v1/models: the one model of this server, under each of its names."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Depends, Request, Response

from paceline.server.api.calls import check_model
from paceline.server.api.sse import encode
from paceline.server.errors import ERROR_RESPONSES
from paceline.server.state import ModelCard, server_of
from paceline.server.tenancy.auth import tenant_of

router = APIRouter(tags=["models"], dependencies=[Depends(tenant_of)], responses=ERROR_RESPONSES)


def _shown(card: ModelCard, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": card.created,
        "owned_by": card.owned_by,
        "root": card.root or card.id,
        "parent": None,
        "max_model_len": card.max_model_len,
    }


@router.get("/v1/models", response_class=Response)
async def list_models(request: Request) -> Response:
    """Names to call the model by; `max_model_len` is prompt and output together, in tokens."""
    card = server_of(request).model
    value = {"object": "list", "data": [_shown(card, name) for name in card.names]}
    return Response(encode(value), media_type="application/json")


@router.get("/v1/models/{model_id:path}", response_class=Response)
async def get_model(request: Request, model_id: str) -> Response:
    """One of the names. 404 for any other, naming those there are."""
    state = server_of(request)
    name = check_model(state, model_id)
    return Response(encode(_shown(state.model, name)), media_type="application/json")
