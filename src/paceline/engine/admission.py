"""The edge of the engine: a request is checked once, completely, before anything is changed for it.

What passes here can run: its ids exist, its length fits the model and the cache, its features are there.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from paceline.contracts.ports import ExecutorCaps
from paceline.contracts.request import (
    MAX_STOP_BYTES,
    MAX_STOP_STRINGS,
    Request,
    TracePrompt,
    is_real,
    is_whole,
    may_share_prompt,
    shown,
)
from paceline.contracts.slo import Slo
from paceline.engine.kv_manager import KVManager
from paceline.engine.request_state import RequestState
from paceline.engine.settings import SchedulerSettings
from paceline.engine.stop import StopAutomata, StopMatcher, StopRules
from paceline.errors import QueueFullError, RequestError

_NO_TARGETS = Slo()
_NO_IDS: frozenset[int] = frozenset()
_MAX = sys.float_info.max


class Admission:
    """Turns a request into a `RequestState`, or refuses it.

    `longest` is the most known tokens a sequence may have here: the model's length, or what the whole cache can hold.
    """

    __slots__ = (
        "_automata",
        "_caps",
        "_eos_set",
        "_settings",
        "bounds_queue",
        "eos_token_ids",
        "longest",
        "token_bytes",
    )

    def __init__(
        self,
        settings: SchedulerSettings,
        caps: ExecutorCaps,
        kv: KVManager,
        *,
        token_bytes: Sequence[bytes] | None,
        eos_token_ids: Sequence[int],
    ) -> None:
        self._settings = settings
        self._caps = caps
        self.bounds_queue = settings.max_waiting_requests is not None or settings.max_waiting_tokens is not None
        self.token_bytes = token_bytes
        self.eos_token_ids = tuple(dict.fromkeys(eos_token_ids))
        self._eos_set = frozenset(self.eos_token_ids)
        self._automata = StopAutomata()
        self.longest = _most_that_fits(kv, settings.max_model_len)

    def check_queue(self, request: Request, *, num_waiting: int, waiting_tokens: int) -> None:
        """Raise QueueFullError when the queue's bounds, if there are any, leave no place for it."""
        settings = self._settings
        bound = settings.max_waiting_requests
        if bound is not None and num_waiting >= bound:
            raise QueueFullError(
                "the queue is full",
                seen=f"{num_waiting} requests waiting",
                expected=f"below {bound}",
                fix="retry later",
            )
        tokens = request.num_prompt + len(request.prior_output)
        bound = settings.max_waiting_tokens
        if bound is not None and waiting_tokens + tokens > bound:
            raise QueueFullError(
                "the queue is full",
                seen=f"{waiting_tokens} tokens waiting and {tokens} more",
                expected=f"at most {bound}",
                fix="retry later, or send a shorter prompt",
            )

    def check(self, request: Request, taken: Mapping[int, RequestState]) -> None:
        """Raise RequestError (with `param`) for a request that cannot run; `taken` are the open ones. Changes
        nothing."""
        sampling, vocab_size = request.sampling, self._caps.vocab_size
        if request.request_id in taken:
            raise RequestError("this request id is in use", param="request_id", seen=request.request_id)
        self._check_numbers(request)
        self._check_prompt(request, vocab_size)
        if request.leader is not None:
            self._check_leader(request, request.leader, taken)
        for token in request.prior_output:
            if not 0 <= token < vocab_size:
                raise RequestError(
                    "prior_output names a token id outside the vocabulary",
                    param="prior_output",
                    seen=token,
                    expected=f"0 to {vocab_size - 1}",
                )
        if sampling.logit_bias or sampling.stop_token_ids or sampling.logprob_token_ids:
            sampling.check_vocabulary(vocab_size)
        if request.grammar is not None and not self._caps.masks:
            raise RequestError(
                "this executor draws tokens without looking at a grammar", param="grammar", fix="leave it out"
            )
        try:
            request.tenant.encode()
        except (AttributeError, UnicodeEncodeError):  # keys of cached blocks hash it
            raise RequestError(
                "tenant is no text",
                param="tenant",
                seen=ascii(request.tenant),
                expected="a string that UTF-8 can encode",
            ) from None
        if request.adapter_digest:
            raise RequestError("adapters are not supported by this engine", param="adapter_digest", fix="leave it out")
        if request.stop_strings or sampling.stop:
            self._check_stops(request)
        if sampling.max_tokens is not None and len(request.prior_output) >= sampling.max_tokens:
            raise RequestError(
                "prior_output already has max_tokens tokens",
                param="max_tokens",
                seen=sampling.max_tokens,
                expected=f"more than {len(request.prior_output)}",
            )
        self._check_length(request)

    def _check_stops(self, request: Request) -> None:
        if self.token_bytes is None:
            raise RequestError(
                "stop strings need the bytes of tokens, which this engine was not given",
                param="stop",
                seen=list(request.sampling.stop),
                fix="use stop_token_ids, or build the engine with token_bytes",
            )
        if not all(request.stop_strings):
            raise RequestError("a stop string is empty", param="stop", fix="leave it out")
        if (
            len(request.stop_strings) > MAX_STOP_STRINGS
            or max(map(len, request.stop_strings), default=0) > MAX_STOP_BYTES
        ):
            raise RequestError(
                "there are too many stop strings, or one is too long",
                param="stop",
                seen=f"{len(request.stop_strings)} strings of up to {max(map(len, request.stop_strings))} bytes",
                expected=f"at most {MAX_STOP_STRINGS} strings of at most {MAX_STOP_BYTES} bytes",
            )

    def _check_numbers(self, request: Request) -> None:
        """Numbers that heaps are ordered by: one NaN among them would hide those behind it."""
        if not is_whole(request.priority):
            raise RequestError(
                "priority is out of range",
                param="priority",
                seen=shown(request.priority),
                expected="a whole number (int) within int32",
            )
        slo, arrival = request.slo, request.arrival
        plain = type(arrival) is float and -_MAX <= arrival <= _MAX  # as nearly all are: the long way is for the others
        if plain and request.deadline is None is request.queue_deadline and slo == _NO_TARGETS:
            return
        for param, value, optional in (
            ("arrival", request.arrival, False),
            ("deadline", request.deadline, True),
            ("queue_deadline", request.queue_deadline, True),
            ("slo", slo.ttft_s, True),
            ("slo", slo.tpot_s, True),
            ("slo", slo.e2e_s, True),
        ):
            if not ((optional and value is None) or (is_real(value) and abs(value or 0) <= _MAX)):
                raise RequestError(
                    f"{param} is not a finite number",
                    param=param,
                    seen=shown(value),
                    expected="finite seconds" + (", or None" if optional else ""),
                )

    def _check_leader(self, request: Request, leader_id: int, taken: Mapping[int, RequestState]) -> None:
        """A leader that is open must be the first choice of the same call, or its KV would be somebody else's. One
        that is gone is normal."""
        if leader_id == request.request_id:
            raise RequestError(
                "a request cannot be its own leader",
                param="leader",
                seen=leader_id,
                expected="the id of choice 0 of the same call, or None",
            )
        leader = taken.get(leader_id)
        if leader is not None and not may_share_prompt(request, leader.request):
            raise RequestError(
                "the leader is not the first choice of the same call",
                param="leader",
                seen=leader_id,
                expected="a choice 0 without a leader, with the same prompt, tenant, cache_salt and adapter",
                fix="leave leader out, or make the choices with expand_choices",
            )

    def _check_prompt(self, request: Request, vocab_size: int) -> None:
        prompt = request.prompt
        if prompt.num_tokens == 0:
            raise RequestError("the prompt is empty", param="prompt", seen="0 tokens", expected="at least 1 token")
        if isinstance(prompt, TracePrompt):
            if self._caps.needs_token_ids:
                raise RequestError(
                    "a trace prompt has no token ids, and this executor needs them",
                    param="prompt",
                    fix="replay traces in the simulator, or send token ids",
                )
            return
        if prompt.spans:
            raise RequestError("media in prompts is not supported by this engine", param="prompt", fix="send text only")
        if prompt.ids.ndim != 1 or prompt.ids.dtype.kind != "i":
            raise RequestError(
                "prompt ids are not one row of integers",
                param="prompt",
                seen=f"{prompt.ids.dtype} {prompt.ids.shape}",
                expected="int32 [num_tokens]",
            )
        low, high = int(prompt.ids.min()), int(prompt.ids.max())
        if low < 0 or high >= vocab_size:
            raise RequestError(
                "the prompt names a token id outside the vocabulary",
                param="prompt",
                seen=low if low < 0 else high,
                expected=f"0 to {vocab_size - 1}",
            )

    def _check_length(self, request: Request) -> None:
        known = request.prompt.num_tokens + len(request.prior_output)
        if known >= self._settings.max_model_len:
            raise RequestError(
                "the prompt leaves no room for an output token within the model's length",
                param="prompt",
                seen=f"{known} tokens",
                expected=f"at most {self._settings.max_model_len - 1}",
                fix="shorten the prompt, or raise max_model_len",
            )
        if known >= self.longest:
            raise RequestError(
                "the prompt does not fit the KV cache, even alone",
                param="prompt",
                seen=f"{known} tokens",
                expected=f"at most {self.longest - 1} tokens with {self._caps.layout.num_blocks} blocks",
                fix="shorten the prompt, or give the KV cache more memory",
            )

    def make_state(self, request: Request, now: float, answer: Sequence[int] | None = None) -> RequestState:
        """The state of a checked request."""
        sampling, policy = request.sampling, self._settings.policy
        limit = self.longest
        if sampling.max_tokens is not None:
            limit = min(limit, request.prompt.num_tokens + sampling.max_tokens)
        matcher = None
        if patterns := request.stop_strings or tuple([s.encode() for s in sampling.stop]):
            assert self.token_bytes is not None
            include = sampling.include_stop_str_in_output
            matcher = StopMatcher(self._automata.of(patterns), self.token_bytes, include_stop=include)
            for token in request.prior_output:
                matcher.push(token, None, may_stop=False)
            matcher.take(everything=True)  # its holder has them already
        if not sampling.stop_token_ids:
            stop_ids = _NO_IDS if sampling.ignore_eos else self._eos_set
        else:
            stop_ids = frozenset(self.stop_token_ids(request))
        shown = None if sampling.include_stop_str_in_output else self.token_bytes
        rules = StopRules(stop_ids, sampling.min_tokens, limit, matcher, shown)
        priority = 0 if policy == "fcfs" else request.priority
        return RequestState(request, rules, limit, priority, request.tenant if policy == "fair" else "", now, answer)

    def stop_token_ids(self, request: Request) -> tuple[int, ...]:
        """Ids that end this request: end of sequence (unless ignored), then its own, each once."""
        eos = () if request.sampling.ignore_eos else self.eos_token_ids
        return tuple(dict.fromkeys((*eos, *request.sampling.stop_token_ids)))


def _most_that_fits(kv: KVManager, most: int) -> int:
    """The longest sequence, up to `most` tokens, that the empty cache can hold (0: not even one token)."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if kv.never_fits(middle):
            high = middle - 1
        else:
            low = middle
    return low
