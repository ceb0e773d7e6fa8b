"""The offline face: a model in this process, prompts in, text out.

    with LLM("smollm2-135m") as llm:
        for result in llm.generate(["Once upon a time", "The sea"], SamplingParams(max_tokens=32)):
            print(result.outputs[0].text)

The engine steps in the caller's thread while results are pulled. One thread at a time may use an `LLM`.
"""

from __future__ import annotations

import difflib
import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from paceline.assemble import Engine, build_engine
from paceline.config import EngineConfig, load_config
from paceline.contracts.ports import EngineStats
from paceline.contracts.request import (
    FinishReason,
    Request,
    RequestOutput,
    SamplingParams,
    TokenLogprob,
    Usage,
    expand_choices,
)
from paceline.contracts.slo import Timeline
from paceline.errors import EngineError, QueueFullError, RequestError
from paceline.text import TextDelta, TextStream

if TYPE_CHECKING:
    from paceline.config import Knobs
    from paceline.contracts.specs import ModelSpec
    from paceline.cost.memory import MemoryLedger
    from paceline.text.pipeline import TextPrompt

Messages = Sequence[Mapping[str, Any]]


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """One choice of one prompt."""

    index: int
    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    stop_reason: int | str | None = None  # the token id or string that ended it
    logprobs: list[TokenLogprob] | None = None
    usage: Usage
    timeline: Timeline


class GenerationResult(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one prompt. `error` is set, and `outputs` empty, when the engine refused it."""

    prompt_token_ids: list[int]
    outputs: list[Completion]
    prompt_logprobs: list[TokenLogprob | None] | None = None
    error: str | None = None


def _without_waiting(config: EngineConfig) -> EngineConfig:
    """A profile may hold requests back for company; here all that will come is there when the engine steps."""
    if config.scheduling.max_wait_ms is not None:
        return config
    return msgspec.structs.replace(config, scheduling=msgspec.structs.replace(config.scheduling, max_wait_ms=0.0))


class LLM:
    """One model, ready.

    `model` and further keywords are engine options (docs/reference/config.md), e.g. `LLM("smollm2-135m",
    dtype="float32", max_model_len=2048)`; or pass a whole `config`. `on_phase` is told the name of each start-up phase.

    Raises ConfigError for an unknown or impossible option, ModelError for a model that cannot be read, CapacityError
    when it does not fit this machine.
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        config: EngineConfig | None = None,
        on_phase: Callable[[str], None] | None = None,
        **options: Any,
    ) -> None:
        if config is None:
            config = load_config(flags=({} if model is None else {"model": model}) | options)
        elif model is not None or options:
            raise RequestError("give a config or options, not both", param="config", seen=sorted(options) or model)
        self._engine: Engine = build_engine(_without_waiting(config), on_phase=on_phase)
        self.client = self._engine.client
        self._ids = itertools.count(1)
        self._takers: dict[int, Callable[[RequestOutput], None]] = {}  # by request id, those not ended

    # --- what it is

    @property
    def spec(self) -> ModelSpec:
        return self._engine.built.spec

    @property
    def knobs(self) -> Knobs:
        """Derived options with their reasons."""
        return self._engine.built.knobs

    @property
    def ledger(self) -> MemoryLedger:
        return self._engine.built.memory.ledger

    @property
    def phases(self) -> dict[str, float]:
        """Seconds of each start-up phase, in order."""
        return self._engine.built.phases

    @property
    def notes(self) -> tuple[str, ...]:
        """What was lowered or capped at start, in words."""
        return self._engine.built.memory.notes

    @property
    def model_path(self) -> Path:
        return self._engine.built.files.path

    @property
    def vocab_size(self) -> int:
        return self.spec.vocab_size

    @property
    def max_model_len(self) -> int:
        return self._engine.built.memory.max_model_len

    def stats(self) -> EngineStats:
        return self.client.stats()

    def encode(self, text: str) -> list[int]:
        return [int(i) for i in self._engine.pipeline.encode_prompt(text)]

    def decode(self, token_ids: Sequence[int]) -> str:
        return self._engine.pipeline.tokenizer.decode(token_ids)

    def require_chat_template(self) -> None:
        """Raise ConfigError that names --chat-template when the model has none."""
        self._engine.pipeline.template.require()

    # --- generating

    def generate(
        self,
        prompts: TextPrompt | Sequence[TextPrompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priority: int = 0,
        **sampling: Any,
    ) -> list[GenerationResult]:
        """Continue one or many prompts (text or token ids), all at once; results in the order of the prompts.

        `params` is for all prompts, or one for each; loose keywords make one: `generate("a", max_tokens=8)`. When one
        prompt is wrong, RequestError is raised and the others are not continued. More prompts than the engine's queue
        holds are fed to it as it takes them.
        """
        many = _as_many(prompts)
        chosen = _params_for(len(many), params, sampling)
        calls = [self.prepare(p, s, priority=priority) for p, s in zip(many, chosen, strict=True)]
        return self._run(calls)

    def chat(
        self, messages: Messages, params: SamplingParams | None = None, *, priority: int = 0, **sampling: Any
    ) -> GenerationResult:
        """Answer a conversation: `[{"role": "user", "content": "..."}]`. Raises ConfigError without a chat template."""
        self.require_chat_template()
        return self._run([self.prepare(messages, _one(params, sampling), priority=priority)])[0]

    def stream(self, prompt: TextPrompt, params: SamplingParams | None = None, **sampling: Any) -> Iterator[TextDelta]:
        """The text of one prompt as it comes; the last delta has `finish`. Leaving early aborts the request."""
        (request, *more) = self.prepare(prompt, _one(params, sampling))
        if more:
            raise RequestError("a stream has one choice", param="n", seen=request.sampling.n, fix="use generate()")
        return self._stream(request)

    def chat_stream(
        self, messages: Messages, params: SamplingParams | None = None, **sampling: Any
    ) -> Iterator[TextDelta]:
        """Like `stream`, for a conversation."""
        self.require_chat_template()
        return self.stream(messages, params, **sampling)

    def prepare(
        self, prompt: TextPrompt | Messages, params: SamplingParams | None = None, *, priority: int = 0, **fields: Any
    ) -> list[Request]:
        """Requests for one prompt, one per choice, ready for `client.submit`. `fields` are fields of `Request`."""
        request = self._engine.pipeline.request(
            next(self._ids), prompt, params, arrival=time.monotonic(), priority=priority, **fields
        )
        return expand_choices(request, [next(self._ids) for _ in range(request.sampling.n - 1)])

    def prepare_chat(self, messages: Messages, **sampling: Any) -> list[Request]:
        return self.prepare(messages, SamplingParams(**sampling))

    def close(self) -> None:
        self.client.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # --- inside

    def _run(self, calls: list[list[Request]]) -> list[GenerationResult]:
        """Submit all choices of all calls, as fast as the queue takes them, and pull until every one has ended."""
        requests = [request for call in calls for request in call]
        streams = {r.request_id: self._engine.pipeline.stream() for r in requests}
        left, open_ids = deque(requests), set[int]()

        def take(output: RequestOutput) -> None:
            streams[output.request_id].push(output)
            if output.finish is not None:
                open_ids.discard(output.request_id)

        try:
            while left or open_ids:
                while left:
                    try:
                        self._submit(left[0], take)
                    except QueueFullError:
                        if not open_ids:
                            raise
                        break
                    open_ids.add(left.popleft().request_id)
                self._pull()
        finally:
            for request_id in sorted(open_ids):
                self._give_up(request_id)
        return [_result(call, [streams[r.request_id] for r in call]) for call in calls]

    def _stream(self, request: Request) -> Iterator[TextDelta]:
        stream = self._engine.pipeline.stream()
        news: deque[RequestOutput] = deque()
        self._submit(request, news.append)
        try:
            while stream.last is None:
                while not news:
                    self._pull()
                delta = stream.push(news.popleft())
                if delta.finish is FinishReason.ERROR:
                    raise EngineError(delta.error or "the request failed")
                yield delta
        finally:
            self._give_up(request.request_id)

    def _submit(self, request: Request, take: Callable[[RequestOutput], None]) -> None:
        self.client.submit(request)
        self._takers[request.request_id] = take

    def _pull(self) -> None:
        """Let the engine run until something is final, and hand it to whoever waits for it: streams and calls may be
        interleaved. What belongs to nobody was given up."""
        came = False
        for output in self.client.outputs():
            came = True
            ends = output.finish is not None
            take = self._takers.pop(output.request_id, None) if ends else self._takers.get(output.request_id)
            if take is not None:
                take(output)
        if not came:
            raise EngineError("the engine ended before the request did", seen=self.client.core.error)

    def _give_up(self, request_id: int) -> None:
        """Abort it, if it has not ended."""
        if self._takers.pop(request_id, None) is not None:
            self.client.abort(request_id)


def _as_many(prompts: Any) -> list[TextPrompt]:
    """Text, ids or messages are one prompt; any other sequence is many."""
    if isinstance(prompts, (str, bytes, Mapping)) or hasattr(prompts, "ndim") or not isinstance(prompts, Iterable):
        return [prompts]  # the pipeline says what is wrong with it, if anything
    many = list(prompts)
    if many and not isinstance(many[0], (str, list, tuple)) and not hasattr(many[0], "ndim"):
        return [many]
    return many


def _one(params: SamplingParams | None, sampling: dict[str, Any]) -> SamplingParams:
    if params is not None and sampling:
        raise RequestError("give params or loose sampling keywords, not both", param="params", seen=sorted(sampling))
    if params is not None:
        if not isinstance(params, SamplingParams):
            raise RequestError(
                "params is a SamplingParams", param="params", seen=f"{type(params).__name__}: {params!r}"
            )
        return params
    known = SamplingParams.__struct_fields__
    for name in sampling:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"one of {', '.join(known)}"
            raise RequestError("unknown sampling parameter", param=name, seen=name, fix=hint)
    if isinstance(sampling.get("stop"), str):
        sampling = sampling | {"stop": (sampling["stop"],)}
    try:
        return msgspec.convert(sampling, SamplingParams)
    except msgspec.ValidationError as error:
        raise RequestError("a sampling parameter has the wrong type", param="params", seen=str(error)) from None


def _params_for(
    count: int, params: SamplingParams | Sequence[SamplingParams] | None, sampling: dict[str, Any]
) -> list[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [_one(params, sampling)] * count
    if sampling or not isinstance(params, Sequence) or len(params) != count:
        raise RequestError(
            "params is one SamplingParams for all prompts, or one for each",
            param="params",
            seen=f"{params!r:.80}" + (f" beside {', '.join(sampling)}" if sampling else ""),
            expected=f"{count} of them, and no loose keywords",
        )
    return [_one(each, {}) for each in params]


def _result(call: list[Request], streams: list[TextStream]) -> GenerationResult:
    prompt_ids = [int(i) for i in call[0].prompt.ids]
    outputs = []
    for request, stream in zip(call, streams, strict=True):
        last = stream.last
        assert last is not None, "every choice has ended"
        assert last.finish is not None
        if last.finish is FinishReason.ERROR:
            return GenerationResult(prompt_token_ids=prompt_ids, outputs=[], error=last.error)
        assert last.usage is not None
        assert last.timeline is not None
        outputs.append(
            Completion(
                index=request.choice,
                text=stream.text,
                token_ids=stream.token_ids,
                finish_reason=last.finish,
                stop_reason=last.stop_reason,
                logprobs=stream.logprobs if request.sampling.logprobs is not None else None,
                usage=last.usage,
                timeline=last.timeline,
            )
        )
    return GenerationResult(prompt_token_ids=prompt_ids, outputs=outputs, prompt_logprobs=streams[0].prompt_logprobs)
