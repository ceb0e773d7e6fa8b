"""`GET /metrics` for Prometheus.

Open like the field's, but where tenants of a file would see each other's numbers: then it is the operator's.
"""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request, Response

from paceline.contracts.ports import EngineStats
from paceline.errors import EngineError
from paceline.server.state import ServerState, server_of
from paceline.server.tenancy.auth import check_admin

router = APIRouter()

_PATIENCE_S = 2.0  # a scrape is answered within this time, with or without the engine


@router.get("/metrics", response_class=Response, summary="Metrics in the Prometheus text format")
async def metrics(request: Request) -> Response:
    state = server_of(request)
    if state.tenants.from_file:
        check_admin(request, state)
    state.metrics.on_stats(await engine_stats(state), state.engine.restarts)
    state.metrics.on_tenants(state.tenants.usage_now())
    body, content_type = state.metrics.render()
    return Response(body, media_type=content_type)


async def engine_stats(state: ServerState) -> EngineStats | None:
    """A look at the engine, or None when it is gone or does not answer in time."""
    try:
        return await asyncio.wait_for(state.engine.stats(), _PATIENCE_S)
    except (EngineError, TimeoutError):
        return None
