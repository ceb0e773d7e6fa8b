"""What a client and an engine in another process say to each other: msgpack values, nothing that runs code.

Two ZMQ PAIR sockets per engine, so that neither side shares one between threads. On `calls` the client asks and the
engine answers, one at a time; both are numbered, so that the reply to a call nobody waits for any more is known as one.
On `outputs` the engine speaks: `Phase` while it starts, then `Ready` or `Failed`, then one `Outputs` per step that has
any.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from paceline import errors
from paceline.contracts.request import Request, RequestOutput
from paceline.contracts.step import decode
from paceline.errors import EngineError, PacelineError, RequestError, TooLateError

CALLS_SUFFIX = ".calls"
OUTPUTS_SUFFIX = ".outputs"
_NUMBER_BYTES = 8


class WireError(msgspec.Struct, frozen=True, kw_only=True):
    """A PacelineError that travels. `seen` travels as text."""

    kind: str  # class name in paceline.errors
    message: str
    seen: str | None = None
    expected: str = ""
    fix: str = ""
    param: str | None = None
    retry_after_s: float | None = None  # of those that know it

    @staticmethod
    def of(error: Exception) -> WireError:
        if not isinstance(error, PacelineError):
            return WireError(kind="EngineError", message=f"{type(error).__name__}: {error}")
        return WireError(
            kind=type(error).__name__,
            message=error.message,
            seen=None if error.seen is None else str(error.seen),
            expected=error.expected,
            fix=error.fix,
            param=error.param if isinstance(error, RequestError) else None,
            retry_after_s=error.retry_after_s if isinstance(error, TooLateError) else None,
        )

    def rebuild(self) -> PacelineError:
        kind = getattr(errors, self.kind, EngineError)
        if not (isinstance(kind, type) and issubclass(kind, PacelineError)):
            kind = EngineError
        if issubclass(kind, TooLateError):
            return kind(
                self.message,
                retry_after_s=1.0 if self.retry_after_s is None else self.retry_after_s,
                param=self.param,
                seen=self.seen,
                expected=self.expected,
                fix=self.fix,
            )
        if issubclass(kind, RequestError):
            return kind(self.message, param=self.param, seen=self.seen, expected=self.expected, fix=self.fix)
        return kind(self.message, seen=self.seen, expected=self.expected, fix=self.fix)


# --- client to engine


class Submit(msgspec.Struct, frozen=True, kw_only=True, tag="submit"):
    """All of them or none."""

    requests: list[Request]


class PrepareGrammar(msgspec.Struct, frozen=True, kw_only=True, tag="prepare_grammar"):
    grammar: bytes


class Abort(msgspec.Struct, frozen=True, kw_only=True, tag="abort"):
    request_ids: list[int]


class AskStats(msgspec.Struct, frozen=True, kw_only=True, tag="stats"):
    pass


class AskDecisions(msgspec.Struct, frozen=True, kw_only=True, tag="decisions"):
    request_id: int


class ResetCache(msgspec.Struct, frozen=True, kw_only=True, tag="reset_cache"):
    pass


class TakeEvents(msgspec.Struct, frozen=True, kw_only=True, tag="kv_events"):
    pass


class StopIntake(msgspec.Struct, frozen=True, kw_only=True, tag="stop_intake"):
    pass


class Shutdown(msgspec.Struct, frozen=True, kw_only=True, tag="shutdown"):
    pass


Call: TypeAlias = (
    Submit | PrepareGrammar | Abort | AskStats | AskDecisions | ResetCache | TakeEvents | StopIntake | Shutdown
)


class Reply(msgspec.Struct, frozen=True, kw_only=True, tag="reply"):
    """The answer to one call: an error, or the encoded value that kind of call returns."""

    number: int  # of the call
    error: WireError | None = None
    value: bytes = b""


# --- engine to client, unasked


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """The engine is up. `info` is what its assembler wants its client to know (msgpack values)."""

    pid: int
    info: dict[str, Any] = {}


class Phase(msgspec.Struct, frozen=True, kw_only=True, tag="phase"):
    """A phase of the start-up begins. Only before `Ready`."""

    name: str


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """The engine did not come up, or has stopped for good."""

    error: WireError


class Outputs(msgspec.Struct, frozen=True, kw_only=True, tag="outputs"):
    """What one step brought, for all requests."""

    outputs: list[RequestOutput]


News: TypeAlias = Ready | Phase | Failed | Outputs


def frame_call(number: int, call: bytes) -> bytes:
    """A call's message. The number stands before the encoded call, so that one that does not decode can be answered."""
    return number.to_bytes(_NUMBER_BYTES, "little") + call


def split_call(data: bytes) -> tuple[int, bytes]:
    """Number and encoded call of a message."""
    return int.from_bytes(data[:_NUMBER_BYTES], "little"), data[_NUMBER_BYTES:]


def decode_call(data: bytes) -> Call:
    return decode(data, Call)  # type: ignore[arg-type]  # a union; type[T] cannot say so


def decode_news(data: bytes) -> News:
    return decode(data, News)  # type: ignore[arg-type]
