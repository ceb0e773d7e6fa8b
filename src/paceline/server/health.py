"""Is the process alive, and is it worth sending requests to? Asked by people and by balancers, without a key.

`Gate` stands before the application. Until that is there it answers these questions itself and everything else with
503; later it turns away the API's calls while the server drains.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

import paceline
from paceline.errors import EngineError
from paceline.server.errors import error_response
from paceline.server.page import page_response
from paceline.server.state import server_of

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from paceline.server.session import EngineSession

router = APIRouter(tags=["health"])

API_PREFIXES = ("/v1/", "/tokenize", "/detokenize")
STAYS_OPEN = "/v1/internal/"  # operators may look while it drains


@router.get("/health", summary="The process is alive", response_class=Response)
async def health() -> Response:
    return Response(status_code=200)


@router.get("/ready", summary="Requests are welcome: the model is loaded, the engine alive, not stalled, not draining")
async def ready(request: Request) -> Response:
    return readiness(server_of(request).engine)


@router.get("/version", summary="The version that runs")
async def version() -> Response:
    return JSONResponse({"version": paceline.__version__})


def readiness(engine: EngineSession) -> Response:
    """200 or 503, and why."""
    why = engine.why_not_ready
    body: dict[str, Any] = {"ready": not why, "reason": why.splitlines()[0] if why else ""}
    kind, _, phase = body["reason"].partition(": ")
    body["phase"] = phase if kind == "loading" else ""
    body |= {"restarts": engine.restarts, "open_requests": engine.num_open, "phases_s": engine.phases}
    return JSONResponse(body, 503 if why else 200, {"Retry-After": "1"} if why else None)


class Gate:
    """ASGI: the application once `open` was called, answers of its own before."""

    def __init__(self, engine: EngineSession, *, show_page: bool = True) -> None:
        self._engine = engine
        self._show_page = show_page
        self._app: ASGIApp | None = None

    def open(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return None
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        if self._app is None:
            return await (await self._early(path))(scope, receive, send)
        if self._engine.draining and path.startswith(API_PREFIXES) and not path.startswith(STAYS_OPEN):
            return await error_response(self._away())(scope, receive, send)
        return await self._app(scope, receive, send)

    async def _early(self, path: str) -> Response:
        if path == "/health":
            return await health()
        if path == "/ready":
            return readiness(self._engine)
        if path == "/version":
            return await version()
        # the page may come first, and shows the phase it reads from /ready
        page = page_response(path) if self._show_page else None
        return page or error_response(self._away())

    def _away(self) -> EngineError:
        return EngineError("the server takes no requests now", seen=self._engine.why_not_ready, fix="try again later")
