"""From a checked request to the engine and back: one `Generation` per HTTP call, with all its choices.

    generation = Generation(state, tenant, ask)
    await generation.start()                       # admits it at the tenant, submits every choice or none
    while news := await generation.news(): ...     # whatever is ready, by choice; empty when all have ended
    generation.leave()                             # the client is gone: aborts what has not ended

Times are `time.monotonic()`, which on Linux is one clock for all processes: the arrival stamped here is the engine's
`planned`.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from paceline.contracts.request import Request, RequestOutput, SamplingParams, TokenPrompt, expand_choices
from paceline.contracts.step import GRAMMAR_TOO_COMPLEX
from paceline.errors import ContextLengthError, EngineError, PacelineError, RequestError
from paceline.server.api.choice import Choice
from paceline.server.api.metering import Meter
from paceline.server.errors import (
    RETRY_QUEUE_S,
    HttpError,
    RequestTimeoutError,
    ShedError,
    retry_after,
)
from paceline.server.grammars import prepare_grammar
from paceline.text.tokenizer import utf8

if TYPE_CHECKING:
    from paceline.server.api.protocol.sampling import GenerationRequest
    from paceline.server.api.protocol.structured import StructuredOutput
    from paceline.server.session import OutputStream
    from paceline.server.state import ServerState
    from paceline.server.tenancy.classes import Terms
    from paceline.server.tenancy.tenants import Tenant
    from paceline.text import TextTokenizer
    from paceline.text.reading import Reading

UNTOLD_TOKENS = 1024  # reserved at the tenant for a sequence that names no limit; the rest is settled at its end


@dataclass(frozen=True, kw_only=True)
class Ask:
    """What a call wants of the engine."""

    body: GenerationRequest
    prompts: Sequence[np.ndarray]  # token ids of each, int32
    sampling: SamplingParams  # max_tokens None: as `default_max_tokens` says
    default_max_tokens: int | None = None  # None: what is left of the model's length
    grammar: StructuredOutput | None = None  # what answers must look like
    reading: Reading | None = None  # how they are told apart; None: they are text alone
    arrival: float  # of the HTTP request
    request_id: str  # as the client knows it
    prompt_param: str = "prompt"  # the field the prompts came from


class Generation:
    """One call at the engine. Used from the event loop alone."""

    def __init__(self, state: ServerState, tenant: Tenant, ask: Ask) -> None:
        """Raises RequestError for what the model, the class or the tenant's ceiling do not allow."""
        self.ask = ask
        self.choices: list[Choice] = []
        self.num_prompt_tokens = sum(len(ids) for ids in ask.prompts)
        self.num_sequences = len(ask.prompts) * ask.sampling.n
        self._state = state
        self._tenant = tenant
        self._skip_special = ask.body.skip_special_tokens is not False
        self._merged: asyncio.Queue[Choice] | None = None
        self._readers: list[asyncio.Task[None]] = []
        body = ask.body
        slo = None if body.slo is None else body.slo.value()
        self.terms: Terms = state.tenants.resolve(tenant, body.service_class, body.priority, slo)
        limits = [t for t in (body.timeout, state.settings.request_timeout_s) if t is not None]
        self.deadline, self._queue_deadline = self.terms.deadlines(ask.arrival, min(limits) if limits else None)
        self._salt = state.tenants.salt(tenant, body.cache_salt)
        self._sampling = [self._sampling_for(ids, index) for index, ids in enumerate(ask.prompts)]
        self._meter = Meter(
            state,
            tenant,
            self.terms,
            request_id=ask.request_id,
            arrival=ask.arrival,
            num_prompt_tokens=self.num_prompt_tokens,
            num_sequences=self.num_sequences,
        )

    @property
    def tokenizer(self) -> TextTokenizer:
        return self._state.pipeline.tokenizer

    def headers(self) -> dict[str, str]:
        """What a client may know about its limits; empty without limits."""
        return self._meter.headers()

    # --- running

    async def start(self) -> None:
        """Submit every choice of every prompt. Raises what the first refusal raises; nothing runs then."""
        try:
            self._meter.admit(self._reserve())
            if self.ask.grammar is not None:
                await prepare_grammar(self._state, self.ask.grammar)
            for index, sampling in enumerate(self._sampling):
                await self._submit(self._requests(index, sampling))
        except BaseException as error:
            self._meter.give_up(error, len(self.choices))
            self.close()
            raise

    async def news(self) -> list[tuple[Choice, list[RequestOutput]]]:
        """What is ready, waiting for the first; every choice's last output has `finish`. Empty when all have ended."""
        if len(self.choices) > 1:
            return await self._merged_news()
        (choice,) = self.choices
        if choice.done:
            return []
        if choice.early:
            outputs, choice.early = choice.early, []
        else:
            outputs = await choice.output.next()
        self._meter.first_token()
        return [(choice, outputs)]

    def leave(self) -> None:
        """The client is gone. Idempotent."""
        if self._meter.closed_at is None:
            self._meter.closed_at = time.monotonic()
        self.close()

    def close(self) -> None:
        """Nobody reads any more: what has not ended is aborted. Idempotent; to be called in the end in any case."""
        readers, self._readers = self._readers, []  # they hold this object, and the prompts with it
        for reader in readers:
            reader.cancel()
        for choice in self.choices:
            choice.output.close()

    def timeout_error(self) -> HttpError:
        """For a call that was ended by the clock before its first token."""
        waited = time.monotonic() - self.ask.arrival
        if self._queue_deadline is not None and (self.deadline is None or self._queue_deadline < self.deadline):
            return ShedError(
                "the request was not begun in time for its class's target, and its class sheds such requests",
                seen=f"{waited:.3f} s in the queue",
                fix="retry later, or ask for another service_class",
                headers={"Retry-After": retry_after(RETRY_QUEUE_S)},
            )
        return RequestTimeoutError(
            "the request timed out before its first token",
            param="timeout",
            seen=f"{waited:.3f} s",
            expected=f"a first token within {(self.deadline or 0.0) - self.ask.arrival:g} s",
            fix="raise timeout, or send less at once",
        )

    def failure(self, error: str) -> PacelineError:
        """For a sequence that the engine ended with `error`: a grammar that could not be followed is the client's."""
        code, _, what = error.partition(": ")
        if code != GRAMMAR_TOO_COMPLEX or self.ask.grammar is None:
            return EngineError(error)
        return RequestError(
            "the grammar is too complex for what was written under it",
            param=self.ask.grammar.param,
            seen=what,
            expected="a grammar within the limits at each token",
            fix="use smaller counts, no counts within counts, and fewer alternatives at one place",
        )

    # --- several choices: a task for each moves what it has into one queue

    async def _merged_news(self) -> list[tuple[Choice, list[RequestOutput]]]:
        if self._merged is None:
            self._merged = queue = asyncio.Queue[Choice]()
            self._readers = [asyncio.create_task(self._read(choice, queue)) for choice in self.choices]
        found: list[tuple[Choice, list[RequestOutput]]] = []
        while not found and not all(choice.done for choice in self.choices):
            ready = [await self._merged.get()]
            while not self._merged.empty():
                ready.append(self._merged.get_nowait())
            for choice in ready:
                outputs, choice.early = choice.early, []
                if outputs:
                    found.append((choice, outputs))
        return found

    async def _read(self, choice: Choice, queue: asyncio.Queue[Choice]) -> None:
        ended = bool(choice.early) and choice.early[-1].finish is not None
        if choice.early:
            queue.put_nowait(choice)
        while not ended:
            outputs = await choice.output.next()
            self._meter.first_token()
            choice.early += outputs
            queue.put_nowait(choice)
            ended = outputs[-1].finish is not None

    # --- what is asked of the engine

    def _sampling_for(self, ids: np.ndarray, index: int) -> SamplingParams:
        """Sampling with the limit on tokens that this prompt leaves room for."""
        sampling, most = self.ask.sampling, self._state.model.max_model_len
        param = self.ask.prompt_param if len(self.ask.prompts) == 1 else f"{self.ask.prompt_param}[{index}]"
        room = most - len(ids)
        if room < 1:
            raise ContextLengthError(
                "the prompt leaves no room for an answer within the model's length",
                param=param,
                seen=f"{len(ids)} tokens in the prompt",
                expected=f"at most {most - 1}: the model's length is {most} tokens",
                fix="shorten the prompt",
            )
        if sampling.max_tokens is not None:
            if sampling.max_tokens > room:
                raise ContextLengthError(
                    "the prompt and the tokens asked for are longer than the model",
                    param="max_tokens",
                    seen=f"{len(ids)} tokens in the prompt + {sampling.max_tokens} asked for",
                    expected=f"at most {most} tokens together, so {room} for the answer",
                    fix="lower max_tokens, leave it out, or shorten the prompt",
                )
            return sampling
        wish = self.ask.default_max_tokens
        return msgspec.structs.replace(sampling, max_tokens=room if wish is None else min(room, wish))

    def _requests(self, index: int, sampling: SamplingParams) -> list[Request]:
        """The choices of one prompt."""
        new_id = self._state.engine.next_id
        request = Request(
            request_id=new_id(),
            prompt=TokenPrompt(ids=self.ask.prompts[index]),
            sampling=sampling,
            stop_strings=tuple(utf8(text, "stop") for text in sampling.stop),
            arrival=self.ask.arrival,
            priority=self.terms.priority,
            latency_class=self.terms.service_class.name,
            tenant=self._tenant.name,
            slo=self.terms.scheduled_for,
            refuse_late=self.terms.service_class.refuse_late,
            deadline=self.deadline,
            queue_deadline=self._queue_deadline,
            cache_salt=self._salt,
            grammar=None if self.ask.grammar is None else self.ask.grammar.data,
        )
        return expand_choices(request, [new_id() for _ in range(sampling.n - 1)])

    def _reserve(self) -> int:
        """Output tokens to reserve at the tenant. A call that names no limit is not held to the model's length."""
        n = self.ask.sampling.n
        if self.ask.sampling.max_tokens is not None or self.ask.default_max_tokens is not None:
            return sum(n * (sampling.max_tokens or 0) for sampling in self._sampling)
        output = sum(n * min(sampling.max_tokens or 0, UNTOLD_TOKENS) for sampling in self._sampling)
        most = self._tenant.tokens_per_minute
        return output if most is None else max(1, min(output, most - self.num_prompt_tokens))

    async def _submit(self, call: list[Request]) -> None:
        """One prompt's choices. If the caller is cancelled meanwhile, what was submitted is aborted and metered."""
        self._state.calls.note(self.ask.request_id, [request.request_id for request in call])
        self._meter.handing_over(len(call))
        submitted = asyncio.ensure_future(self._state.engine.generate(call))
        try:
            streams = await asyncio.shield(submitted)
        except asyncio.CancelledError:
            task = asyncio.ensure_future(self._adopt_and_close(call, submitted))
            _kept.add(task)
            task.add_done_callback(_kept.discard)
            raise
        except BaseException:
            self._meter.came_back(len(call))
            raise
        await self._adopt(call, streams)

    async def _adopt(self, call: list[Request], streams: Sequence[OutputStream]) -> None:
        for request, stream in zip(call, streams, strict=True):
            reading, tokenizer = self.ask.reading, self.tokenizer
            shown = frozenset() if reading is None else reading.shown(tokenizer)
            text = self._state.pipeline.stream(skip_special=self._skip_special, shown=shown)
            reader = None if reading is None else reading.reader(tokenizer)
            choice = Choice(len(self.choices), request, text, stream, reader)
            self.choices.append(choice)
            if stream.ended:  # before anybody could be told
                choice.early = await stream.next()
                self._meter.last_word(choice, choice.early[-1])
            else:
                stream.on_finish = partial(self._meter.last_word, choice)

    async def _adopt_and_close(self, call: list[Request], submitted: asyncio.Future[list[OutputStream]]) -> None:
        try:
            streams = await submitted
        except (PacelineError, asyncio.CancelledError):
            self._meter.came_back(len(call))
            return
        await self._adopt(call, streams)
        self.leave()


_kept: set[asyncio.Future[None]] = set()  # tasks that outlive their call; the loop itself holds tasks weakly


def milliseconds(seconds: float) -> float | None:
    """For JSON: nan is null."""
    return round(1000.0 * seconds, 3) if math.isfinite(seconds) else None
