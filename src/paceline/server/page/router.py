"""`/`, `/static/*` and the live feed at `/v1/internal/live`."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, HTTPException, Request, Response
from fastapi.responses import StreamingResponse

from paceline.server.page.files import INDEX, page_files
from paceline.server.telemetry.live import LiveFeed
from paceline.server.tenancy.auth import admin_only

router = APIRouter()

# Scripts, styles and connections from this server alone; nothing inline; nobody may put the page into a frame.
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; connect-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",  # ask each time; the tag makes the answer short
}


def page_response(path: str, if_none_match: str = "") -> Response | None:
    """The page at `/` or one of its files at `/static/NAME`; None for any other path. Needs no application, so it can
    be shown while one loads."""
    found = page_files().get(INDEX if path == "/" else path.removeprefix("/static/"))
    if found is None:
        return None
    headers = {**_HEADERS, "ETag": found.etag}
    if found.etag in if_none_match:
        return Response(status_code=304, headers=headers)
    return Response(found.body, media_type=found.media_type, headers=headers)


def _file(path: str, request: Request) -> Response:
    answer = page_response(path, request.headers.get("if-none-match", ""))
    if answer is None:
        raise HTTPException(404, f"the page has no file {path}")
    return answer


@router.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
async def index(request: Request) -> Response:
    """The page."""
    return _file("/", request)


@router.api_route("/static/{name}", methods=["GET", "HEAD"], include_in_schema=False)
async def static(name: str, request: Request) -> Response:
    """One of its files."""
    return _file(f"/static/{name}", request)


@router.get("/v1/internal/live", include_in_schema=False)
async def live(request: Request, _: Annotated[None, Depends(admin_only)]) -> Response:
    """The live feed: `history`, then `sample` and `decisions` events (fields: `server.live_samples.Sample`)."""
    feed: LiveFeed = request.app.state.server.live
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no", "X-Content-Type-Options": "nosniff"}
    return StreamingResponse(feed.watch().__aiter__(), media_type="text/event-stream", headers=headers)


__all__ = ["page_response", "router"]
