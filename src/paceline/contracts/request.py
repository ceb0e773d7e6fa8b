"""A request as the engine takes it, and what comes back: values, immutable once submitted.

No text crosses this boundary except as bytes: stop strings arrive as UTF-8 and are matched against the bytes of tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum
from typing import Literal, TypeAlias

import msgspec
import numpy as np

from paceline.contracts.kv import BlockKey, CacheDomain, chain_key, root_key
from paceline.contracts.slo import Slo, Timeline
from paceline.errors import RequestError

MAX_LOGPROBS = 20
MAX_CHOICES = 128
MAX_STOP_STRINGS = 16


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How to draw tokens. Names and neutral values are those of the OpenAI API and of vLLM.

    The draw at output position p of choice i is a pure function of (seed, i, p) and the logits; see runtime/sampler.py.
    """

    n: int = 1
    max_tokens: int | None = 16  # None: up to the model's length
    min_tokens: int = 0
    temperature: float = 1.0  # 0 = greedy; ties go to the lowest token id
    top_k: int = 0  # 0 or -1 = off
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = msgspec.field(default_factory=dict)
    seed: int | None = None  # None: one is drawn at submission and reported
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    logprobs: int | None = None  # alternatives per output token beside the drawn one; None = no logprobs
    prompt_logprobs: int | None = None
    logprob_token_ids: tuple[int, ...] = ()  # report these ids too

    def __post_init__(self) -> None:
        def need(ok: bool, param: str, expected: str) -> None:
            if not ok:
                raise RequestError(
                    f"{param} is out of range", param=param, seen=getattr(self, param), expected=expected
                )

        need(1 <= self.n <= MAX_CHOICES, "n", f"1 to {MAX_CHOICES}")
        need(self.max_tokens is None or self.max_tokens >= 1, "max_tokens", "at least 1, or None")
        need(self.min_tokens >= 0, "min_tokens", "0 or more")
        if self.max_tokens is not None:
            need(self.min_tokens <= self.max_tokens, "min_tokens", f"at most max_tokens ({self.max_tokens})")
        need(0.0 <= self.temperature < math.inf, "temperature", "0 (greedy) or more, finite")
        need(self.top_k >= -1, "top_k", "a positive count, or 0 or -1 for off")
        need(0.0 < self.top_p <= 1.0, "top_p", "above 0, at most 1")
        need(0.0 <= self.min_p <= 1.0, "min_p", "0 to 1")
        need(0.0 < self.typical_p <= 1.0, "typical_p", "above 0, at most 1")
        need(-2.0 <= self.presence_penalty <= 2.0, "presence_penalty", "-2 to 2")
        need(-2.0 <= self.frequency_penalty <= 2.0, "frequency_penalty", "-2 to 2")
        need(0.0 < self.repetition_penalty < math.inf, "repetition_penalty", "above 0, finite")
        need(len(self.stop) <= MAX_STOP_STRINGS, "stop", f"at most {MAX_STOP_STRINGS} strings")
        need(all(self.stop), "stop", "no empty string")
        need(self.seed is None or 0 <= self.seed < 2**64, "seed", "0 to 2**64 - 1")
        need(all(math.isfinite(b) for b in self.logit_bias.values()), "logit_bias", "finite numbers")
        for param in ("logprobs", "prompt_logprobs"):
            count = getattr(self, param)
            need(count is None or 0 <= count <= MAX_LOGPROBS, param, f"0 to {MAX_LOGPROBS}, or None")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    def check_vocabulary(self, vocab_size: int) -> None:
        """Refuse token ids outside the vocabulary before they reach an index into logits."""
        for param, ids in (
            ("logit_bias", self.logit_bias),
            ("stop_token_ids", self.stop_token_ids),
            ("logprob_token_ids", self.logprob_token_ids),
        ):
            for token in ids:
                if not 0 <= token < vocab_size:
                    raise RequestError(
                        f"{param} names a token id outside the vocabulary",
                        param=param,
                        seen=token,
                        expected=f"0 to {vocab_size - 1}",
                    )


class MediaSpan(msgspec.Struct, frozen=True, kw_only=True):
    """Prompt positions that stand for something other than text. Atomic: never cut by a chunk, cached by digest."""

    start: int
    length: int
    digest: bytes


class TokenPrompt(msgspec.Struct, frozen=True, kw_only=True, tag="tokens"):
    """A prompt backed by its token ids (int32)."""

    ids: np.ndarray
    spans: tuple[MediaSpan, ...] = ()

    @property
    def num_tokens(self) -> int:
        return len(self.ids)

    @property
    def num_keyed_tokens(self) -> int:
        """Leading positions whose content is known exactly, so that a block made of them may have a key."""
        return len(self.ids)

    def key_extras(self, begin: int, end: int) -> list[bytes]:
        """What positions [begin, end) depend on besides their ids: media, with its place in them."""
        return [
            (span.start - begin).to_bytes(8, "little", signed=True) + span.length.to_bytes(8, "little") + span.digest
            for span in self.spans
            if span.start < end and begin < span.start + span.length
        ]


class TracePrompt(msgspec.Struct, frozen=True, kw_only=True, tag="trace"):
    """A prompt of a recorded trace: its length and the identities of its prefix blocks, without text.

    Equal `block_hashes[: i + 1]` means an equal prefix up to block i. Only executors that need no ids can run it.
    """

    num_tokens: int
    block_hashes: tuple[int, ...]
    hash_block_size: int  # tokens per entry of block_hashes

    @property
    def ids(self) -> np.ndarray:
        """Stand-in ids, equal where the trace says the prefix is equal; unhashed tail tokens are -1."""
        ids = np.full(self.num_tokens, -1, dtype=np.int32)
        for index, value in enumerate(self.block_hashes):
            begin = index * self.hash_block_size
            ids[begin : begin + self.hash_block_size] = value & 0x7FFFFFFF
        return ids

    @property
    def spans(self) -> tuple[MediaSpan, ...]:
        return ()

    @property
    def num_keyed_tokens(self) -> int:
        """Tokens behind the last hash are unknown: equal stand-in ids do not make them equal."""
        return min(self.num_tokens, len(self.block_hashes) * self.hash_block_size)

    def key_extras(self, begin: int, end: int) -> list[bytes]:
        """The whole hashes that cover [begin, end); stand-in ids carry only 31 bits of them."""
        hashes = self.block_hashes[begin // self.hash_block_size : -(-end // self.hash_block_size)]
        return [value.to_bytes(16, "little", signed=True) for value in hashes]


Prompt: TypeAlias = TokenPrompt | TracePrompt


def prompt_keys(prompt: Prompt, domain: CacheDomain, block_size: int) -> list[BlockKey]:
    """Chained keys of the prompt's full blocks, as far as its content is known exactly."""
    keys: list[BlockKey] = []
    parent = root_key(domain)
    data = np.ascontiguousarray(prompt.ids, dtype="<i4").tobytes()
    for begin in range(0, prompt.num_keyed_tokens - block_size + 1, block_size):
        end = begin + block_size
        parent = chain_key(parent, data[4 * begin : 4 * end], prompt.key_extras(begin, end))
        keys.append(parent)
    return keys


def block_keys(ids: np.ndarray, spans: Sequence[MediaSpan], domain: CacheDomain, block_size: int) -> list[BlockKey]:
    """The same for a prompt given by its ids and media spans."""
    return prompt_keys(TokenPrompt(ids=ids, spans=tuple(spans)), domain, block_size)


PersistClass = Literal["never", "local", "any"]


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One sequence to generate. `n` choices become `n` requests (see `expand_choices`)."""

    request_id: int  # ours, unique in this engine
    prompt: Prompt
    sampling: SamplingParams = SamplingParams()
    choice: int = 0
    leader: int | None = None  # request_id of choice 0 of the same call, whose prompt blocks this one may share
    prior_output: tuple[int, ...] = ()  # tokens emitted elsewhere; they count for positions, penalties and limits
    arrival: float = 0.0  # engine clock
    priority: int = 0  # lower is served first, as in vLLM; strictly lower may preempt
    latency_class: str = "default"
    tenant: str = "default"
    slo: Slo = Slo()
    deadline: float | None = None  # engine clock; the request is ended then, wherever it is
    queue_deadline: float | None = None  # ended then if it was never admitted
    adapter_digest: bytes = b""
    cache_salt: bytes = b""
    persist: PersistClass = "any"
    stop_strings: tuple[bytes, ...] = ()  # sampling.stop as UTF-8
    grammar: bytes | None = None

    @property
    def num_prompt(self) -> int:
        return self.prompt.num_tokens

    def initial_ids(self) -> np.ndarray:
        """Prompt and prior output, int32."""
        if not self.prior_output:
            return self.prompt.ids
        return np.concatenate([self.prompt.ids, np.asarray(self.prior_output, dtype=np.int32)])


def expand_choices(request: Request, new_ids: Sequence[int]) -> list[Request]:
    """The `n` requests of one call; `new_ids` names choices 1 to n - 1. Seeds are equal, choice indices differ."""
    replace = msgspec.structs.replace
    siblings = [
        replace(request, request_id=request_id, choice=index, leader=request.request_id)
        for index, request_id in enumerate(new_ids, start=request.choice + 1)
    ]
    return [request, *siblings]


class FinishReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"
    TIMEOUT = "timeout"


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """Natural-log probability of one token under the raw logits, with the best alternatives (descending)."""

    token_id: int
    logprob: float
    rank: int  # 1 = the most likely token
    top: tuple[tuple[int, float], ...] = ()
    extra: tuple[tuple[int, float], ...] = ()  # logprob_token_ids, in the request's order


class Usage(msgspec.Struct, kw_only=True):
    """What one request used, in token positions. Emitted once, with the terminal output."""

    prompt_tokens: int = 0
    cached_tokens: int = 0  # prompt tokens hit at first admission
    restored_tokens: int = 0  # brought back from a lower tier
    computed_tokens: int = 0  # positions that went through the model, wasted ones included
    wasted_tokens: int = 0  # recomputed after preemption, rejected drafts, past a stop, abandoned
    output_tokens: int = 0
    kv_block_seconds: float = 0.0
    preemptions: int = 0


class RequestOutput(msgspec.Struct, kw_only=True):
    """News about one request: tokens that are final (never taken back), and the end if it came.

    With stop strings, a token that may still turn out to belong to a stop is not emitted until that is decided.
    """

    request_id: int
    token_ids: list[int]
    logprobs: list[TokenLogprob] | None = None
    prompt_logprobs: list[TokenLogprob | None] | None = None  # with the first output; entry 0 is None
    finish: FinishReason | None = None
    stop_reason: int | str | None = None  # token id or string that stopped it
    cut_bytes: int = 0  # drop so many bytes from the end of the text of all tokens (a stop began inside a token)
    hold_bytes: int = 0  # so many trailing bytes of emitted text may still become part of a stop
    error: str | None = None
    usage: Usage | None = None
    timeline: Timeline | None = None
