"""The body of /v1/completions."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, TypeAlias

from pydantic import BeforeValidator, WithJsonSchema

from paceline.contracts.request import SamplingParams, is_whole, shown
from paceline.errors import RequestError
from paceline.server.api.protocol.sampling import GenerationRequest

MAX_PROMPTS = 256
MAX_SEQUENCES = 1024  # prompts times choices: each is a request at the engine and a record of its own
DEFAULT_MAX_TOKENS = 16

OnePrompt: TypeAlias = "str | list[int]"
_EXPECTED = "text, a list of token ids, or a list of either"


def _prompts(value: Any) -> list[OnePrompt]:
    """One or several prompts, as a list. Ids are looked at one by one later, where the vocabulary is known."""
    several = value if isinstance(value, list) and value and isinstance(value[0], (str, list)) else [value]
    if len(several) > MAX_PROMPTS:
        raise RequestError(
            "too many prompts in one call", param="prompt", seen=len(several), expected=f"at most {MAX_PROMPTS}"
        )
    for index, prompt in enumerate(several):
        param = "prompt" if len(several) == 1 else f"prompt[{index}]"
        if not isinstance(prompt, (str, list)):
            raise RequestError("prompt is of the wrong kind", param=param, seen=shown(prompt), expected=_EXPECTED)
        if isinstance(prompt, list):
            bad = next((i for i in prompt if type(i) is not int), None)
            if bad is not None or None in prompt:
                raise RequestError("prompt is of the wrong kind", param=param, seen=shown(bad), expected=_EXPECTED)
    return several


_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
Prompts = Annotated[
    Any,
    BeforeValidator(_prompts),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string"},
                _IDS,
                {"type": "array", "items": {"type": "string"}, "minItems": 1},
                {"type": "array", "items": _IDS, "minItems": 1},
            ]
        }
    ),
]


class CompletionRequest(GenerationRequest):
    prompt: Prompts
    logprobs: int | None = None

    REFUSED: ClassVar[dict[str, tuple[tuple[Any, ...], str]]] = GenerationRequest.REFUSED | {
        "suffix": (("",), "the model continues text and does not fill gaps"),
        "prompt_embeds": ((), "prompts are text or token ids"),
    }
    best_of: int | None = None

    @property
    def prompts(self) -> list[OnePrompt]:
        value: list[OnePrompt] = self.prompt
        return value

    @property
    def only_echo(self) -> bool:
        """The prompt is asked back and nothing more: `echo` with `max_tokens` 0."""
        return bool(self.echo) and self.max_tokens == 0

    def sampling(self) -> SamplingParams:
        """Sampling parameters; `max_tokens` is None when the body has none (the default is then 16, or what is left).
        Raises RequestError."""
        n = 1 if self.n is None else self.n
        if self.best_of is not None and self.best_of != n:
            raise RequestError(
                "best_of is not supported unless it equals n",
                param="best_of",
                seen=shown(self.best_of),
                expected=str(n),
                fix="leave it out and ask for n choices",
            )
        if is_whole(n) and len(self.prompts) * n > MAX_SEQUENCES:
            raise RequestError(
                "too many choices in one call",
                param="n",
                seen=f"{len(self.prompts)} prompts with {n} choices each",
                expected=f"at most {MAX_SEQUENCES} in all",
                fix="send fewer prompts at once, or lower n",
            )
        if self.max_tokens == 0 and not self.echo:
            raise RequestError(
                "max_tokens is out of range",
                param="max_tokens",
                seen=0,
                expected="at least 1 (0 only with echo, to have the prompt back)",
            )
        self.check_streaming()
        wanted = self.prompt_logprobs
        if self.echo and self.logprobs is not None:
            wanted = max(self.logprobs, wanted or 0)
        return self.params(
            logprobs=self.logprobs,
            prompt_logprobs=wanted,
            max_tokens=1 if self.only_echo else self.max_tokens,
            min_tokens=0 if self.only_echo else self.min_tokens,
        )
