"""Fields that both ways of generating share: how to draw tokens, and how to run the call."""

from __future__ import annotations

from typing import Any, ClassVar

from paceline.contracts.request import SamplingParams
from paceline.contracts.slo import Slo
from paceline.errors import RequestError
from paceline.server.api.protocol.body import Body
from paceline.server.api.protocol.fields import LogitBias, Milliseconds, Name, Number, Seconds, Seed, Stop, TokenIds
from paceline.server.api.protocol.structured import (
    ResponseFormat,
    StructuredOutput,
    StructuredOutputs,
    structured_output,
)

_SAME = (  # fields that SamplingParams has under the same name and takes as they are
    "n",
    "min_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "typical_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "seed",
    "stop",
    "include_stop_str_in_output",
    "ignore_eos",
    "prompt_logprobs",
)


class StreamOptions(Body):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    PART: ClassVar[str] = "stream_options"
    REFUSED: ClassVar[dict[str, tuple[tuple[Any, ...], str]]] = {
        "include_obfuscation": ((False,), "chunks carry no padding"),
    }


class SloFields(Body):
    """Latency targets of one call, in milliseconds. They may only be looser than those of its class."""

    ttft_ms: Milliseconds = None
    tpot_ms: Milliseconds = None
    e2e_ms: Milliseconds = None
    PART: ClassVar[str] = "slo"

    def value(self) -> Slo:
        return Slo(ttft_s=_in_seconds(self.ttft_ms), tpot_s=_in_seconds(self.tpot_ms), e2e_s=_in_seconds(self.e2e_ms))


def _in_seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000.0


class GenerationRequest(Body):
    """What /v1/completions and /v1/chat/completions have in common."""

    model: str | None = None
    # how to draw
    n: int | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    temperature: Number | None = None
    top_p: Number | None = None
    top_k: int | None = None
    min_p: Number | None = None
    typical_p: Number | None = None
    presence_penalty: Number | None = None
    frequency_penalty: Number | None = None
    repetition_penalty: Number | None = None
    logit_bias: LogitBias = None
    seed: Seed = None
    stop: Stop = None
    stop_token_ids: TokenIds = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    # what answers must look like
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | str | bool | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    guided_whitespace_pattern: str | None = None
    # what to show
    skip_special_tokens: bool | None = None
    prompt_logprobs: int | None = None
    logprob_token_ids: TokenIds = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    timings: bool | None = None
    echo: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    # how to run
    add_special_tokens: bool | None = None
    priority: int | None = None
    service_class: Name = None  # also written `class`
    slo: SloFields | None = None
    timeout: Seconds = None
    cache_salt: Name = None
    request_id: Name = None
    # taken and not used: they describe the caller
    user: str | None = None
    safety_identifier: str | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None

    ALIASES: ClassVar[dict[str, str]] = {"class": "service_class"}
    REFUSED: ClassVar[dict[str, tuple[tuple[Any, ...], str]]] = {
        "use_beam_search": ((False,), "there is no beam search"),
        "length_penalty": ((1, 1.0), "there is no beam search"),
        "early_stopping": ((False,), "there is no beam search"),
        "truncate_prompt_tokens": ((), "prompts are not cut silently"),
        "bad_words": (([],), "use logit_bias"),
        "allowed_token_ids": ((), "use logit_bias"),
        "logits_processors": (([],), "code of clients is not run"),
        "spaces_between_special_tokens": ((True,), "text is what the tokens' bytes say"),
        "guided_decoding_backend": (("auto", "guidance"), "grammars are llguidance's here"),
        "kv_transfer_params": ((), "KV does not move between engines"),
        "vllm_xargs": (({},), "it belongs to another engine"),
        "thinking_token_budget": ((), "reasoning has no limit of its own: max_tokens is for all of the answer"),
    }

    def params(self, **more: Any) -> SamplingParams:
        """Sampling parameters, without a limit on tokens unless `more` has one. Raises RequestError for a value out of
        bounds. `more` are fields of SamplingParams; None is left out."""
        given = {name: getattr(self, name) for name in _SAME}
        given["stop_token_ids"] = None if self.stop_token_ids is None else tuple(self.stop_token_ids)
        given["logprob_token_ids"] = None if self.logprob_token_ids is None else tuple(self.logprob_token_ids)
        given.update(more)
        values = {name: value for name, value in given.items() if value is not None}
        params = SamplingParams(**{"max_tokens": None, **values})
        if params.logprob_token_ids and params.logprobs is None:
            raise RequestError(
                "logprob_token_ids adds to logprobs, which were not asked for",
                param="logprob_token_ids",
                fix="ask for logprobs too",
            )
        return params

    def structured_output(self) -> StructuredOutput | None:
        """The grammar of the answers, or None. Raises RequestError for one that is wrong in itself."""
        return structured_output(self)

    def check_streaming(self) -> None:
        """Raise RequestError for options that need a stream, or cannot be with one."""
        if self.stream_options is not None and not self.stream:
            raise RequestError("stream_options need a stream", param="stream_options", fix="set stream to true")
        if self.stream and self.prompt_logprobs is not None:
            raise RequestError(
                "prompt_logprobs are not streamed", param="prompt_logprobs", fix="set stream to false, or leave it out"
            )
