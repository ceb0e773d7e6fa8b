"""Every error paceline raises on purpose. Each says what was seen, what was expected and how to fix it.

    PacelineError
    ├── ConfigError          an option, a profile or a combination of features that cannot be
    │   └── UnsupportedError a known feature that this version, device or model does not have
    ├── ModelError           a model that cannot be found or read
    ├── RequestError         one request is wrong; nothing else is touched (HTTP 400)
    │   ├── ContextLengthError  the prompt, or it and the tokens asked for, are longer than the model
    │   ├── QueueFullError   the request is fine, the queue is not (HTTP 429)
    │   │   └── TooLateError  its first token would miss its target, and its class refuses such requests (HTTP 429)
    │   └── RateLimitError   the request is fine, its tenant has used up its share for now (HTTP 429)
    ├── AuthError            nobody we know: no key, or a wrong one (HTTP 401)
    │   └── ForbiddenError   known, or not asked for, but not allowed (HTTP 403)
    ├── CapacityError        the machine is too small for what was asked
    ├── LabError             a measurement that cannot be made: no server, a broken artefact
    └── EngineError          the engine itself is in trouble
        ├── StallError       a step could do nothing although work was waiting
        └── EngineDeadError  the engine process is gone

`assert` is only for paceline's own invariants.
"""

from __future__ import annotations


class PacelineError(Exception):
    """Base of the tree.

    `seen` is the offending value as met, `expected` what would have been right, `fix` the next thing to try.
    `code` is stable and machine readable.
    """

    code = "error"

    def __init__(self, message: str, *, seen: object = None, expected: str = "", fix: str = "") -> None:
        self.message = message
        self.seen = seen
        self.expected = expected
        self.fix = fix
        super().__init__(message)

    def __str__(self) -> str:
        parts = [self.message]
        if self.seen is not None:
            parts.append(f"seen: {self.seen}")
        if self.expected:
            parts.append(f"expected: {self.expected}")
        if self.fix:
            parts.append(f"fix: {self.fix}")
        return "; ".join(parts)


class ConfigError(PacelineError):
    code = "config"


class UnsupportedError(ConfigError):
    code = "unsupported"


class ModelError(PacelineError):
    code = "model"


class RequestError(PacelineError):
    code = "invalid_request"

    def __init__(
        self, message: str, *, param: str | None = None, seen: object = None, expected: str = "", fix: str = ""
    ) -> None:
        super().__init__(message, seen=seen, expected=expected, fix=fix)
        self.param = param


class ContextLengthError(RequestError):
    code = "context_length_exceeded"


class QueueFullError(RequestError):
    code = "queue_full"


class TooLateError(QueueFullError):
    """`retry_after_s`: how long its first token would have to wait for those before it, as predicted."""

    code = "too_late"

    def __init__(
        self,
        message: str,
        *,
        retry_after_s: float = 1.0,
        param: str | None = None,
        seen: object = None,
        expected: str = "",
        fix: str = "",
    ) -> None:
        super().__init__(message, param=param, seen=seen, expected=expected, fix=fix)
        self.retry_after_s = retry_after_s


class RateLimitError(RequestError):
    """`retry_after_s`: after so long the same request is let in, if its tenant sends nothing else; for `limit`
    "concurrency" and "waiting", where that depends on other requests' ends, it is an estimate."""

    code = "rate_limit_exceeded"

    def __init__(
        self,
        message: str,
        *,
        limit: str = "requests",
        retry_after_s: float = 1.0,
        headers: dict[str, str] | None = None,
        param: str | None = None,
        seen: object = None,
        expected: str = "",
        fix: str = "",
    ) -> None:
        super().__init__(message, param=param, seen=seen, expected=expected, fix=fix)
        self.limit = limit  # requests, tokens, concurrency or waiting
        self.retry_after_s = retry_after_s
        self.headers = dict(headers or {})  # x-ratelimit-*, for the response


class AuthError(PacelineError):
    code = "invalid_api_key"


class ForbiddenError(AuthError):
    code = "forbidden"


class CapacityError(PacelineError):
    code = "capacity"


class LabError(PacelineError):
    code = "lab"


class EngineError(PacelineError):
    code = "engine"


class StallError(EngineError):
    code = "stall"


class EngineDeadError(EngineError):
    code = "engine_dead"
