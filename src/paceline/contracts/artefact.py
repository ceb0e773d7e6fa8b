"""What a run leaves behind: raw records of each request, numbers with their uncertainty, verdicts.

All times are integer nanoseconds on the monotonic clock of the load's host, counted from the start of the load. -1
means "did not happen". Metrics are recomputed from records alone, so nothing that a metric needs lives elsewhere.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from paceline.contracts.slo import Outcome
from paceline.contracts.workload import SloClass

NEVER = -1


class ChunkKind(StrEnum):
    """What one server-sent event brought. Only the three kinds of TOKEN_KINDS with a payload count as tokens."""

    ROLE = "role"  # a role, or nothing at all
    REASONING = "reasoning"
    CONTENT = "content"
    TOOL = "tool"
    USAGE = "usage"
    ERROR = "error"
    DONE = "done"


TOKEN_KINDS = frozenset({ChunkKind.REASONING, ChunkKind.CONTENT, ChunkKind.TOOL})


class TokenSource(StrEnum):
    CHUNK_USAGE = "chunk_usage"  # the server says how many tokens each chunk brought
    FINAL_USAGE = "final_usage"  # only the total is known; a chunk counts as one token until it is scaled
    CHUNKS = "chunks"  # no usage at all: nothing that counts tokens is claimed
    NONE = "none"  # no token came


class Chunk(msgspec.Struct, frozen=True, array_like=True):
    t_ns: int
    kind: ChunkKind
    num_tokens: int = -1  # -1: the server did not say
    num_bytes: int = 0  # of payload text


class RequestRecord(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One attempt at one planned request: there are no hidden retries. Texts are kept where the run asks for it."""

    id: int  # PlannedRequest.id
    stream: str
    slo_class: str = "default"
    tenant: str | None = None
    session: int | None = None
    turn: int = 0
    streamed: bool = True
    worker: int = 0  # process of the load generator
    t_plan_ns: int = NEVER  # the schedule's; = t_send_ns in a closed loop
    t_send_ns: int = NEVER  # before the first byte is written
    t_headers_ns: int = NEVER
    t_close_ns: int = NEVER  # the response is over, or the client closed
    chunks: list[Chunk] = []
    outcome: Outcome = Outcome.NOT_SENT
    reason: str = ""  # finish_reason, or what went wrong: a code and the server's words, never a prompt
    http_status: int = 0
    num_input_asked: int = 0
    num_output_asked: int = 0
    num_prefix_asked: int = 0
    num_shared_asked: int = 0  # of passages that other requests quote too; what of them is a hit depends on the order
    prompt_tokens: int = -1  # usage; -1: the server did not say
    completion_tokens: int = -1
    cached_tokens: int = -1
    reasoning_tokens: int = -1
    token_source: TokenSource = TokenSource.NONE
    num_lost: int = 0  # events that could not be read
    valid: dict[str, bool] = {}  # validator -> passed
    server: dict[str, float] = {}  # paceline's timings, where asked for: queue_ms, prefill_ms, ...
    text: str | None = None  # the answer, where the run keeps it
    prompt_sha256: str = ""  # of the rendered prompt: equal prompts show


class ClientHealth(msgspec.Struct, kw_only=True):
    """How well the client kept its schedule: it decides whether a run says anything about the server."""

    num_processes: int = 1
    offered_rps: float = 0.0  # planned requests / planned span
    achieved_rps: float = 0.0  # sent requests / span of sending
    lag_p50_ms: float = 0.0  # t_send - t_plan
    lag_p99_ms: float = 0.0
    lag_max_ms: float = 0.0
    loop_lag_p99_ms: float = 0.0  # how late the event loop was for its own ticks
    cpu_share_max: float = 0.0  # of one core, busiest process
    cpu_us_per_chunk: float = 0.0
    connections_peak: int = 0
    calibrated_rps: float = 0.0  # what this client reached against the null server; 0: not calibrated
    calibrated_lag_p99_ms: float = 0.0


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """The measured part of a load, by planned time: warm-up lies before, draining after."""

    start_ns: int
    end_ns: int

    @property
    def seconds(self) -> float:
        return (self.end_ns - self.start_ns) / 1e9


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """A number with its uncertainty. `value` is None when there is none, and `reason` says why; it is never 0 then."""

    value: float | None = None
    lo: float | None = None
    hi: float | None = None
    n: int = 0  # samples
    n_eff: float = 0.0  # independent samples, where dependence was measured
    method: str = ""  # "order statistic 95 %", "block bootstrap 95 %", ...
    unit: str = ""
    reason: str = ""  # why refused, or a warning


class Answer(StrEnum):
    PASS = "pass"
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"  # the interval straddles the limit
    INVALID = "invalid"  # the measurement does not say anything: client bound, cache protocol broken
    NOT_MEASURED = "not measured"


class GateResult(msgspec.Struct, frozen=True, kw_only=True):
    """One gate's answer with what it rests on."""

    gate: str  # quality, ttft, tpot, goodput, stability, cold_start, cost, energy, safety
    answer: Answer
    sentence: str  # one sentence with the numbers
    subject: str = ""  # class, set or probe
    limit: float | None = None
    estimate: Estimate | None = None
    evidence: dict[str, Any] = {}


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """All gates together. A run passes when every gate that was asked for passes."""

    answer: Answer
    sentence: str
    gates: tuple[GateResult, ...] = ()


class Caution(msgspec.Struct, frozen=True, kw_only=True):
    """Something a reader must know before trusting a number."""

    code: str  # client_bound, thin_percentile, token_count_mismatch, prompt_length, unsteady, littles_law, ...
    sentence: str
    invalidates: bool = False  # the run's numbers do not speak about the server


class TargetInfo(msgspec.Struct, kw_only=True):
    """The server under test, as a probe found it."""

    url: str  # base, without /v1
    model: str
    kind: str = "openai"  # paceline, vllm, llama.cpp, sglang, or openai: unknown
    version: str = ""
    max_model_len: int | None = None
    tokenize: str = ""  # how it counts tokens: "prompt" (paceline, vLLM), "content" (llama.cpp), "" not at all
    token_ids: bool = False  # takes token ids as a prompt
    ignore_eos: bool = False  # can be made to answer with an exact length
    chunk_usage: bool = False  # says how many tokens each chunk brought
    final_usage: bool = False  # streams end with usage
    cached_tokens: bool = False  # usage says what came from the prefix cache
    reset_prefix_cache: str = ""  # path of the call that forgets cached prefixes; "" if there is none
    cache_salt: bool = False
    timings: bool = False  # paceline's split of TTFT


class RunInfo(msgspec.Struct, kw_only=True):
    """Everything about a run that is not a record: with the records, all that metrics are computed from."""

    name: str
    version: int = 1  # of the artefact's form
    question: str = ""
    created: str = ""  # ISO 8601, UTC
    status: str = "complete"  # complete, or partial: interrupted, and still valid as far as it goes
    problems: list[str] = []  # of the load itself: a process of the client that was lost
    seed: int = 0
    salt: str = ""  # in the content of every prompt of this run
    spec: dict[str, Any] = {}  # the resolved workload
    slo: list[SloClass] = []
    closed_loop: bool = False  # then nothing is claimed about an open one
    span_s: float = 0.0  # of the schedule, warm-up included
    window: Window = Window(start_ns=0, end_ns=0)
    target: TargetInfo
    client: ClientHealth = msgspec.field(default_factory=ClientHealth)
    config: dict[str, Any] = {}  # the server's resolved configuration, or what was declared
    config_source: str = "unknown"  # resolved, declared, unknown
    cache: dict[str, Any] = {}  # what the cache protocol did and found
    start: dict[str, Any] = {}  # cold and warm start by phase, where the lab owns the server
    energy: dict[str, Any] = {}  # source, joules over the window, idle watts; empty: not measured
    fingerprint: dict[str, Any] = {}
