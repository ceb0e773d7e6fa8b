"""The application: every router of the API, the operator's calls and the page, behind the limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

import paceline
from paceline.config.server import ServerConfig
from paceline.server import health, page
from paceline.server.api import chat, completions, embeddings, messages, models, responses, tokens
from paceline.server.errors import install_error_handlers
from paceline.server.limits import BodyLimit
from paceline.server.request_log import RequestLog
from paceline.server.state import ServerState
from paceline.server.telemetry import internal, observe

if TYPE_CHECKING:
    from starlette.types import ASGIApp

API = (models, chat, completions, responses, messages, embeddings, tokens, internal, observe, health)


def build_app(state: ServerState) -> FastAPI:
    """All routes over a complete state. No middleware: see `wrap`."""
    settings = state.settings
    app = FastAPI(
        title="paceline",
        summary="The OpenAI API over the paceline engine",
        version=paceline.__version__,
        root_path=settings.root_path,
        docs_url=None,  # those pages load their scripts from elsewhere
        redoc_url=None,
    )
    app.state.server = state
    for part in API:
        app.include_router(part.router)
    if not settings.disable_page:
        app.include_router(page.router)
    install_error_handlers(app)
    return app


def limit(app: ASGIApp, settings: ServerConfig) -> ASGIApp:
    """Bodies are read within bounds before the application runs."""
    return BodyLimit(app, max_bytes=settings.max_body_bytes, timeout_s=settings.body_timeout_s)


def wrap(app: ASGIApp, settings: ServerConfig) -> RequestLog:
    """What every answer goes through, those given while the model loads too: request ids, the access log, CORS."""
    if settings.allowed_origins:
        app = CORSMiddleware(
            app,
            allow_origins=settings.allowed_origins,
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=["x-request-id", "retry-after"],
        )
    return RequestLog(app, access_log=settings.access_log)
