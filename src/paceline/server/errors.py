"""Errors as the API shows them: every failure has a status and OpenAI's JSON form.

    {"error": {"message": "...", "type": "invalid_request_error", "param": "max_tokens", "code": "invalid_request"}}

`message` is the error's own text (what was seen, what was expected, the fix), `code` its stable name. Under
`/v1/messages` the form is Anthropic's, with the same words. What nobody foresaw becomes a 500 without details: those go
to the log, prompts never do.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from paceline.errors import (
    AuthError,
    ConfigError,
    EngineError,
    ForbiddenError,
    ModelError,
    PacelineError,
    QueueFullError,
    RateLimitError,
    RequestError,
    TooLateError,
)

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

_log = logging.getLogger("paceline.server")

RETRY_QUEUE_S = 1.0  # what a client is told to wait when the queue is full
RETRY_ENGINE_S = 5.0  # and when the engine is away: about the time of a restart

_STATUS: tuple[tuple[type[PacelineError], int], ...] = (  # the narrower first
    (QueueFullError, 429),
    (RateLimitError, 429),
    (RequestError, 400),
    (ForbiddenError, 403),
    (AuthError, 401),
    (EngineError, 503),
)
_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    429: "rate_limit_error",
    501: "not_implemented_error",
    503: "service_unavailable_error",
}
MESSAGES_PATH = "/v1/messages"  # errors below it have Anthropic's form
_MESSAGES_TYPES = {408: "timeout_error", 413: "request_too_large", 500: "api_error", 503: "overloaded_error"}


_INNER_SCHEMA = {
    "type": "object",
    "required": ["message", "type", "param", "code"],
    "properties": {
        "message": {"type": "string"},
        "type": {"type": "string"},
        "param": {"type": ["string", "null"]},
        "code": {"type": ["string", "null"]},
    },
}
_ERROR_SCHEMA = {"type": "object", "required": ["error"], "properties": {"error": _INNER_SCHEMA}}
_DESCRIPTIONS = {
    400: "The request is wrong; `param` names the field",
    401: "No API key, or an unknown one",
    403: "Not allowed for this key",
    404: "No such model",
    408: "The request's own time limit passed before its first token",
    413: "The body is too long",
    415: "The body is not declared as JSON",
    429: "A limit of the tenant or the queue; see Retry-After",
    503: "The engine is away, or shed the request; see Retry-After",
}
ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"description": words, "content": {"application/json": {"schema": _ERROR_SCHEMA}}}
    for status, words in _DESCRIPTIONS.items()
}
"""`responses` of a router: what can go wrong, for the OpenAPI description."""
_MESSAGES_SCHEMA = {
    "type": "object",
    "required": ["type", "error"],
    "properties": {
        "type": {"const": "error"},
        "error": _INNER_SCHEMA,
        "request_id": {"type": ["string", "null"]},
    },
}
MESSAGES_ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"description": words, "content": {"application/json": {"schema": _MESSAGES_SCHEMA}}}
    for status, words in _DESCRIPTIONS.items()
}
"""The same in Anthropic's form."""


class HttpError(PacelineError):
    """An error that knows its HTTP status. `headers` go with the answer."""

    status = 400
    code = "invalid_request"

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        seen: object = None,
        expected: str = "",
        fix: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message, seen=seen, expected=expected, fix=fix)
        self.param = param
        self.headers = dict(headers or {})


class MediaTypeError(HttpError):
    status = 415
    code = "unsupported_media_type"


class BodyTooLargeError(HttpError):
    status = 413
    code = "body_too_large"


class ModelNotFoundError(HttpError):
    status = 404
    code = "model_not_found"


class RequestTimeoutError(HttpError):
    """The request's own time limit passed before its first token."""

    status = 408
    code = "timeout"


class NotServedError(HttpError):
    """A part of the API that is not there. `x-should-retry` tells the stock clients that asking again is of no use."""

    status = 501
    code = "not_implemented"

    def __init__(self, message: str, *, fix: str = "") -> None:
        super().__init__(message, fix=fix, headers={"x-should-retry": "false"})


class ClientLeftError(HttpError):
    """Nobody reads this answer. It ends the work, and shows in the access log."""

    status = 499
    code = "client_closed_request"


class ShedError(HttpError):
    """It waited too long to be worth beginning, and its class says such requests are dropped."""

    status = 503
    code = "shed"


def retry_after(seconds: float) -> str:
    """A Retry-After header: whole seconds, at least 1."""
    return str(max(1, math.ceil(seconds)))


def status_of(error: BaseException) -> int:
    """The HTTP status an error stands for."""
    if isinstance(error, HttpError):
        return error.status
    if isinstance(error, HTTPException):
        return error.status_code
    for kind, status in _STATUS:
        if isinstance(error, kind):
            return status
    return 500


def error_object(error: BaseException) -> dict[str, Any]:
    """The JSON value for an error; its parts are those of OpenAI's."""
    status = status_of(error)
    kind = _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    param, code = getattr(error, "param", None), getattr(error, "code", None)
    if isinstance(error, HTTPException):
        message = str(error.detail)
        code = {404: "not_found", 405: "method_not_allowed"}.get(status)
    elif isinstance(error, (ConfigError, ModelError)):
        message = f"the server is not set up for this request: {error}"
    elif isinstance(error, PacelineError):
        message = str(error)
    else:
        message, code, param = "an unexpected error; the server's log has the details", "internal", None
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def messages_error(error: BaseException, request_id: str | None) -> dict[str, Any]:
    """The same in Anthropic's form."""
    inner = error_object(error)["error"]
    inner["type"] = _MESSAGES_TYPES.get(status_of(error), inner["type"])
    return {"type": "error", "error": inner, "request_id": request_id}


def error_bytes(error: BaseException) -> bytes:
    return msgspec.json.encode(error_object(error))


def error_headers(error: BaseException) -> dict[str, str]:
    """Headers that belong to the status, Retry-After where a client may try again."""
    headers = dict(getattr(error, "headers", None) or {})
    if isinstance(error, TooLateError):
        headers.setdefault("Retry-After", retry_after(error.retry_after_s))
    elif isinstance(error, QueueFullError):
        headers.setdefault("Retry-After", retry_after(RETRY_QUEUE_S))
    elif isinstance(error, RateLimitError):
        headers.setdefault("Retry-After", retry_after(error.retry_after_s))
    elif isinstance(error, EngineError):
        headers.setdefault("Retry-After", retry_after(RETRY_ENGINE_S))
    elif status_of(error) == 401:
        headers.setdefault("WWW-Authenticate", "Bearer")
    return headers


def error_response(error: BaseException) -> Response:
    """The whole answer. Unexpected errors are logged here, once."""
    log_unexpected(error)
    return _ErrorResponse(error)


class _ErrorResponse(Response):
    """In the form of the API whose path was called."""

    media_type = "application/json"

    def __init__(self, error: BaseException) -> None:
        super().__init__(error_bytes(error), status_of(error), error_headers(error))
        self._error = error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "").removeprefix(scope.get("root_path", ""))
        if path == MESSAGES_PATH or path.startswith(MESSAGES_PATH + "/"):
            request_id = scope.get("state", {}).get("request_id")
            self.body = msgspec.json.encode(messages_error(self._error, request_id))
            self.init_headers(error_headers(self._error))
        await super().__call__(scope, receive, send)


def log_unexpected(error: BaseException) -> None:
    """The one trace of an error whose answer says nothing about it."""
    if status_of(error) == 500:
        _log.error("unexpected error", exc_info=error)


def install_error_handlers(app: FastAPI) -> None:
    """All errors of an app in OpenAI's form, those of the framework too."""

    async def handle(_request: Request, error: Exception) -> Response:
        return error_response(error)

    async def handle_validation(_request: Request, error: Exception) -> Response:
        where = [str(part) for part in getattr(error, "errors", list)()[0]["loc"]]
        return error_response(RequestError("a parameter of the path or query is wrong", param=".".join(where)))

    for kind in (PacelineError, HTTPException, Exception):
        app.add_exception_handler(kind, handle)
    app.add_exception_handler(RequestValidationError, handle_validation)
