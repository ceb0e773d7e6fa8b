"""The offline face: a model in this process, prompts in, text out.

    with LLM("smollm2-135m") as llm:
        for result in llm.generate(["Once upon a time", "The sea"], SamplingParams(max_tokens=32)):
            print(result.outputs[0].text)

The engine steps in the caller's thread while results are pulled. One thread at a time may use an `LLM`.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from paceline.assemble import Engine, build_engine
from paceline.config import EngineConfig, load_config
from paceline.contracts.ports import EngineStats
from paceline.contracts.request import (
    FinishReason,
    Request,
    SamplingParams,
    TokenLogprob,
    Usage,
    expand_choices,
)
from paceline.contracts.slo import Timeline
from paceline.errors import EngineError, RequestError
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
        self._engine: Engine = build_engine(config, on_phase=on_phase)
        self.client = self._engine.client
        self._ids = itertools.count(1)

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

        `params` is for all prompts, or one for each; loose keywords make one: `generate("a", max_tokens=8)`. A prompt
        that is wrong in itself raises RequestError before anything runs.
        """
        many: list[TextPrompt] = [prompts] if _is_one_prompt(prompts) else list(prompts)  # type: ignore[list-item,arg-type]
        chosen = _params_for(len(many), params, sampling)
        calls = [self.prepare(p, s, priority=priority) for p, s in zip(many, chosen, strict=True)]
        return self._run(calls)

    def chat(
        self, messages: Messages, params: SamplingParams | None = None, *, priority: int = 0, **sampling: Any
    ) -> GenerationResult:
        """Answer a conversation: `[{"role": "user", "content": "..."}]`. Needs a chat template."""
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
        """Submit all choices of all calls and pull until every one has ended."""
        requests = [request for call in calls for request in call]
        streams = {r.request_id: self._engine.pipeline.stream() for r in requests}
        open_ids: set[int] = set()
        try:
            for request in requests:
                self.client.submit(request)
                open_ids.add(request.request_id)
            while open_ids:
                for output in self.client.outputs():
                    if output.request_id not in open_ids:
                        continue  # left over from a stream that was given up
                    streams[output.request_id].push(output)
                    if output.finish is not None:
                        open_ids.discard(output.request_id)
        finally:
            for request_id in sorted(open_ids):
                self.client.abort(request_id)
        return [_result(call, [streams[r.request_id] for r in call]) for call in calls]

    def _stream(self, request: Request) -> Iterator[TextDelta]:
        stream = self._engine.pipeline.stream()
        self.client.submit(request)
        done = False
        try:
            while not done:
                for output in self.client.outputs():
                    if output.request_id != request.request_id:
                        continue
                    delta = stream.push(output)
                    done = output.finish is not None
                    if delta.finish is FinishReason.ERROR:
                        raise EngineError(delta.error or "the request failed")
                    yield delta
        finally:
            if not done:
                self.client.abort(request.request_id)


def _is_one_prompt(prompts: Any) -> bool:
    """Text, ids or messages are one prompt; any other sequence is many."""
    if isinstance(prompts, str) or hasattr(prompts, "ndim"):
        return True
    return bool(prompts) and not isinstance(prompts[0], (str, list, tuple)) and not hasattr(prompts[0], "ndim")


def _one(params: SamplingParams | None, sampling: dict[str, Any]) -> SamplingParams:
    if params is not None and sampling:
        raise RequestError("give params or loose sampling keywords, not both", param="params", seen=sorted(sampling))
    if params is not None:
        return params
    known = SamplingParams.__struct_fields__
    for name in sampling:
        if name not in known:
            import difflib

            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"one of {', '.join(known)}"
            raise RequestError("unknown sampling parameter", param=name, seen=name, fix=hint)
    if isinstance(sampling.get("stop"), str):
        sampling = sampling | {"stop": (sampling["stop"],)}
    return SamplingParams(**sampling)


def _params_for(
    count: int, params: SamplingParams | Sequence[SamplingParams] | None, sampling: dict[str, Any]
) -> list[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [_one(params, sampling)] * count
    if sampling or len(params) != count:
        raise RequestError("one SamplingParams for each prompt", param="params", seen=len(params), expected=str(count))
    return list(params)


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
