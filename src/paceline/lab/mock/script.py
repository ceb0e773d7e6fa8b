"""What a mock server does, as a value: which reply a request gets, when each chunk of it is sent, what goes wrong.

All delays are milliseconds. A reply is either written out (`Reply`) or made by a small model of a server (`Service`).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from paceline.contracts.artefact import ChunkKind
from paceline.errors import ConfigError


class Flavour(StrEnum):
    """Whose extensions the mock shows: endpoints, fields of chunks, names of metrics, what it refuses."""

    PACELINE = "paceline"  # tokens of each chunk, timings, usage on the way, /tokenize, /v1/internal
    VLLM = "vllm"  # usage on the way, /tokenize, /reset_prefix_cache
    LLAMA_CPP = "llama.cpp"  # llama-server: timings of its own, /props, /tokenize with `content`; any model name
    OPENAI = "openai"  # the plain API: unknown fields are refused, no other endpoint


class Base(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Common to all parts of a script: a name that is not there is an error."""


class ScriptChunk(Base, frozen=True):
    """One event of a stream. In an answer that is not streamed the texts are joined."""

    delay_ms: float = 0.0  # after the event before it; the first: after the reply began
    kind: ChunkKind = ChunkKind.CONTENT
    text: str = ""  # tool: a piece of the arguments; error: the message
    num_tokens: int | None = None  # None: one per word of `text`
    raw: str | None = None  # sent as it stands instead of the event, "data: " and blank line included
    at_ms: float | None = None  # after the reply began, instead of `delay_ms`
    tool: str | None = None  # kind tool: a call of this function begins here
    extra: dict[str, Any] = {}  # further fields of the choice: logprobs, ...


class Fault(Base, frozen=True, kw_only=True):
    """What goes wrong with a reply. Several may be set.

    Counts are of events that bring tokens; what should happen after more of them than there are does not happen.
    """

    never_answer: bool = False  # not even a status line; the connection stays open
    hang_after_chunks: int | None = None  # then nothing more; the connection stays open
    cut_after_chunks: int | None = None  # then the connection is closed in the middle of the body
    reset: bool = False  # with `cut_after_chunks`: by a TCP reset
    error_after_chunks: int | None = None  # then an error object within the stream, which ends
    error_message: str = "the engine failed"
    error_then_done: bool = False  # [DONE] follows the error, as some servers do
    malformed_after_chunks: int | None = None  # then one event that is no JSON; the rest follows
    no_usage: bool = False  # usage is not sent, though asked for
    no_done: bool = False  # no [DONE]
    comment_every_ms: float | None = None  # ": ping" whenever nothing was said for so long
    header_line_every_ms: float | None = None  # each line of the head comes so long after the one before
    split_bytes: tuple[int, ...] = ()  # all bytes are written in pieces so long, in turn
    split_gap_ms: float = 0.0  # between two such pieces


class Reply(Base, frozen=True, kw_only=True):
    """A reply written out. Usage that is not given is what was sent and what the mock counts."""

    chunks: tuple[ScriptChunk, ...] = ()
    finish_reason: str = "stop"
    prompt_tokens: int | None = None  # in usage
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    tail_ms: float = 0.0  # from the last chunk to usage and [DONE]
    headers_ms: float | None = None  # when the head is sent; None: with the first event
    status: int = 200  # another: an error object, after the delays of `chunks`
    message: str = "refused by the script"  # of that error
    code: str | None = None
    retry_after_s: float | None = None  # header Retry-After
    headers: dict[str, str] = {}
    body: str | None = None  # sent as the whole body, as it stands; not streamed
    fault: Fault = Fault()


class Service(Base, frozen=True, kw_only=True):
    """A model of a server: every request gets as many tokens as it asks for, at known times.

    Service begins when a slot is free. The first chunk comes `ttft_ms + prefill_ms_per_token * computed prompt tokens`
    later; each further chunk `tpot_ms` times its own tokens after the one before. So TTFT counted from the beginning
    of service and TPOT are exactly these, whatever the chunks hold.
    """

    ttft_ms: float = 0.0
    tpot_ms: float = 0.0
    tokens_per_chunk: int | tuple[int, ...] = 1  # several: in turn
    slots: int | None = None  # at most so many requests at once, first come, first served; None: no limit
    prefill_ms_per_token: float = 0.0  # of each prompt token that the prefix cache does not have
    prefix_cache: bool = False
    block_tokens: int = 16  # size of a block of the prefix cache
    cache_blocks: int | None = None  # how many it keeps, the least recently used go first; None: all
    jitter: float = 0.0  # relative spread of the first delay and of each gap (log-normal, mean kept)
    seed: int = 0
    num_tokens: int = 16  # where the request does not say
    stop_after_tokens: int | None = None  # the model's own end, unless ignore_eos or min_tokens forbid it
    role_ms: float | None = None  # when the chunk with the role is sent; None: with the first tokens
    headers_ms: float | None = None  # when the head is sent; None: with the first event
    tail_ms: float = 0.0  # from the last chunk to usage and [DONE]
    usage_offset_tokens: int = 0  # usage claims so many tokens more than were sent
    reclaim_ms: float = 0.0  # from the client's leaving to the slot being free
    ignores_close: bool = False  # works on to the end when the client has left
    fault: Fault = Fault()

    @property
    def bundles(self) -> tuple[int, ...]:
        """Tokens of the chunks, in turn."""
        each = self.tokens_per_chunk
        return (each,) if isinstance(each, int) else each


class Match(Base, frozen=True, kw_only=True):
    """Which requests a rule is for: those that meet every condition given. Requests are counted from 0."""

    path: str | None = None
    model: str | None = None
    contains: str | None = None  # in the prompt's text
    regex: str | None = None  # found in the prompt's text
    header: dict[str, str] = {}  # name -> value
    streamed: bool | None = None
    nth: tuple[int, ...] = ()  # numbers of requests for text, all paths together
    every: int | None = None  # each so many: numbers every-1, 2*every-1, ...


class Rule(Base, frozen=True, kw_only=True):
    """The first rule that matches decides. `times`: it is used so often, then it is as if it were not there."""

    match: Match = Match()
    times: int | None = None
    reply: Reply | None = None  # this or `service`
    service: Service | None = None


class Script(Base, frozen=True, kw_only=True):
    """A whole mock server."""

    flavour: Flavour = Flavour.PACELINE
    models: tuple[str, ...] = ("mock",)
    reply: Reply | None = None  # for requests that no rule takes; this or `service`
    service: Service | None = None  # neither: a `Service` with no delays
    rules: tuple[Rule, ...] = ()
    max_model_len: int = 8192  # tokens, prompt and answer
    template_tokens: int = 0  # the chat template puts so many before each message, and before the answer
    reasoning_field: str = "reasoning_content"  # of a delta
    keep_alive_s: float | None = None  # a connection that was idle for so long is closed; None: never
    api_keys: tuple[str, ...] = ()  # if there are any, one of them is asked for
    absent: tuple[str, ...] = ()  # paths that this server does not have
    version: str = "0.0.0-mock"
    kv_blocks: int = 1024  # of `Service.block_tokens`: what /metrics speaks about
    config: dict[str, Any] = {}  # the answer of /v1/internal/config
    metrics: dict[str, float] = {}  # further series of /metrics: name -> value
    log_chunks: bool = True  # the log has the time of every chunk
    log_bodies: bool = False  # the log has the bodies of requests
    log_size: int = 200_000  # entries; older ones go first

    def __post_init__(self) -> None:
        if type(self.flavour) is not Flavour:  # made in Python, where nothing converts: a plain "vllm" is as good
            known = [flavour.value for flavour in Flavour]
            if self.flavour not in known:
                raise ConfigError("the mock has no such flavour", seen=self.flavour, expected=" or ".join(known))
            msgspec.structs.force_setattr(self, "flavour", Flavour(self.flavour))

    @property
    def takes_no_time(self) -> bool:
        """No reply has a delay."""
        service = self.fallback
        if self.rules or not isinstance(service, Service) or service.fault != Fault():
            return False
        delays = (service.ttft_ms, service.tpot_ms, service.prefill_ms_per_token, service.tail_ms, service.reclaim_ms)
        return not any(delays) and not service.role_ms and not service.headers_ms

    @property
    def fallback(self) -> Reply | Service:
        """What a request gets that no rule takes."""
        return self.reply or self.service or Service()


def null_script(*, model: str = "mock", flavour: Flavour = Flavour.PACELINE) -> Script:
    """A server that takes no time: what a client reaches against it is the client's own limit."""
    return Script(models=(model,), flavour=flavour, service=Service(), log_chunks=False)
