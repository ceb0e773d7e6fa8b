"""A request as the engine takes it, and what comes back: values, immutable once submitted.

No text crosses this boundary except as bytes: stop strings arrive as UTF-8 and are matched against the bytes of tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
MAX_STOP_BYTES = 1024  # of one stop string, as UTF-8
MAX_STOP_TOKEN_IDS = 1024
MAX_LOGPROB_TOKEN_IDS = 128
MAX_LOGIT_BIAS = 4096  # entries
GREEDY_BELOW = 1e-5  # a lower temperature is greedy: in float32 it could only pick among all but equal logits
MIN_INT32 = -(2**31)
MAX_INT32 = 2**31 - 1
MAX_FLOAT32 = 3.4028234663852886e38

# field, least, most, may be None
_WHOLE = (
    ("n", 1, MAX_CHOICES, False),
    ("max_tokens", 1, MAX_INT32, True),
    ("min_tokens", 0, MAX_INT32, False),
    ("top_k", -1, MAX_INT32, False),
    ("seed", 0, 2**64 - 1, True),
    ("logprobs", 0, MAX_LOGPROBS, True),
    ("prompt_logprobs", 0, MAX_LOGPROBS, True),
)
# field, bounds, the same in words
_REAL: tuple[tuple[str, Callable[[float], bool], str], ...] = (
    ("temperature", lambda x: 0.0 <= x <= MAX_FLOAT32, "0 (greedy) or more, within float32"),
    ("top_p", lambda x: 0.0 < x <= 1.0, "above 0, at most 1"),
    ("min_p", lambda x: 0.0 <= x <= 1.0, "0 to 1"),
    ("typical_p", lambda x: 0.0 < x <= 1.0, "above 0, at most 1"),
    ("presence_penalty", lambda x: -2.0 <= x <= 2.0, "-2 to 2"),
    ("frequency_penalty", lambda x: -2.0 <= x <= 2.0, "-2 to 2"),
    ("repetition_penalty", lambda x: 0.0 < x <= MAX_FLOAT32, "above 0, within float32"),
)
_LISTS = (
    ("stop", MAX_STOP_STRINGS, "strings"),
    ("stop_token_ids", MAX_STOP_TOKEN_IDS, "token ids"),
    ("logprob_token_ids", MAX_LOGPROB_TOKEN_IDS, "token ids"),
)


def is_whole(value: object, least: int = MIN_INT32, most: int = MAX_INT32) -> bool:
    """An int (no bool, no number of another library) from `least` to `most`; int32 if not told otherwise."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def is_real(value: object) -> bool:
    """A float or an int (no bool), not NaN."""
    return isinstance(value, float | int) and not isinstance(value, bool) and value == value


def shown(value: object) -> object:
    """A refused value as an error may show it: short, and never a number too long to be written."""
    if isinstance(value, int):
        return value if value.bit_length() <= 128 else f"a number of {value.bit_length()} bits"
    if isinstance(value, float | str):
        return f"{value!r:.80}"
    return "None" if value is None else f"a value of type {type(value).__name__}"


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How to draw tokens. Names and neutral values are those of the OpenAI API and of vLLM.

    The draw at output position p of choice i is a pure function of (seed, i, p) and the logits; see runtime/sampler.py.
    """

    n: int = 1
    max_tokens: int | None = 16  # None: up to the model's length
    min_tokens: int = 0
    temperature: float = 1.0  # 0, or below GREEDY_BELOW: greedy; ties go to the lowest token id
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
        """Types and bounds, once: what passes fits the columns of a plan and the tensors of an executor."""
        for param, least, most, optional in _WHOLE:
            value = getattr(self, param)
            if not (is_whole(value, least, most) or (optional and value is None)):
                expected = f"a whole number (int), {least} to {most}" + (", or None" if optional else "")
                raise _refusal(param, value, expected)
        for param, inside, words in _REAL:
            value = getattr(self, param)
            if not (is_real(value) and inside(value)):
                raise _refusal(param, value, f"a number, {words}")
        for param in ("include_stop_str_in_output", "ignore_eos"):
            if not isinstance(value := getattr(self, param), bool):
                raise _refusal(param, value, "True or False")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise _refusal("min_tokens", self.min_tokens, f"at most max_tokens ({self.max_tokens})")
        self._check_lists()

    def _check_lists(self) -> None:
        for param, most, what in _LISTS:
            values = getattr(self, param)
            if isinstance(values, list):
                values = tuple(values)
                msgspec.structs.force_setattr(self, param, values)
            if not isinstance(values, tuple):
                raise _refusal(param, values, f"a tuple or list of {what}", fix="put a single one in a tuple: (x,)")
            if len(values) > most:
                raise _refusal(param, len(values), f"at most {most} {what}")
            if param == "stop":
                for text in values:
                    _check_stop(text)
            elif not all(map(is_whole, values)):
                bad = next(v for v in values if not is_whole(v))
                raise _refusal(param, bad, "token ids: whole numbers (int) within int32")
        bias = self.logit_bias
        if not isinstance(bias, dict):
            raise _refusal("logit_bias", bias, "a dict from token id to number")
        if len(bias) > MAX_LOGIT_BIAS:
            raise _refusal("logit_bias", len(bias), f"at most {MAX_LOGIT_BIAS} entries")
        for token, value in bias.items():
            if not is_whole(token):
                raise _refusal("logit_bias", token, "token ids as keys: whole numbers (int) within int32")
            if not (is_real(value) and -MAX_FLOAT32 <= value <= MAX_FLOAT32):
                raise _refusal("logit_bias", value, "finite numbers within float32")

    @property
    def greedy(self) -> bool:
        """The largest logit wins. Ask this, never whether the temperature is 0."""
        return self.temperature < GREEDY_BELOW

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


def _refusal(param: str, value: object, expected: str, fix: str = "") -> RequestError:
    return RequestError(f"{param} is out of range", param=param, seen=shown(value), expected=expected, fix=fix)


def _check_stop(text: object) -> None:
    expected = f"non-empty strings of at most {MAX_STOP_BYTES} bytes"
    if not isinstance(text, str) or not text:
        raise _refusal("stop", text, expected)
    try:
        size = len(text.encode()) if len(text) <= MAX_STOP_BYTES else len(text)
    except UnicodeEncodeError as error:
        raise RequestError(
            "stop is not valid Unicode text: it holds half of a surrogate pair",
            param="stop",
            seen=f"U+{ord(text[error.start]):04X} at character {error.start}",
            expected="text that can be written as UTF-8",
        ) from None
    if size > MAX_STOP_BYTES:
        raise _refusal("stop", text, expected)


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
    slo: Slo = Slo()  # what it is scheduled for: its class's targets, or later ones. No client can ask for sooner
    refuse_late: bool = False  # do not take it in if its TTFT target would surely be missed
    deadline: float | None = None  # engine clock; the request is ended then, wherever it is
    queue_deadline: float | None = None  # ended then if it was never admitted
    adapter_digest: bytes = b""
    cache_salt: bytes = b""
    persist: PersistClass = "any"
    stop_strings: tuple[bytes, ...] = ()  # sampling.stop as UTF-8
    grammar: bytes | None = None  # what the output must look like: a value of text.grammar, opaque to the engine

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


def may_share_prompt(request: Request, leader: Request) -> bool:
    """Is `leader` a first choice whose prompt's KV is also that of `request`: same prompt, tenant, salt and adapter?"""
    return (
        leader.request_id != request.request_id
        and leader.choice == 0
        and leader.leader is None
        and leader.tenant == request.tenant
        and leader.cache_salt == request.cache_salt
        and leader.adapter_digest == request.adapter_digest
        and _same_prompt(request.prompt, leader.prompt)
    )


def _same_prompt(one: Prompt, other: Prompt) -> bool:
    if one is other:
        return True
    if isinstance(one, TokenPrompt) and isinstance(other, TokenPrompt):
        return one.spans == other.spans and np.array_equal(one.ids, other.ids)
    return isinstance(one, TracePrompt) and isinstance(other, TracePrompt) and one == other


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
