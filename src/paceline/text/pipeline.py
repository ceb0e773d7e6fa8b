"""Text on both sides of the engine: prompts to requests, outputs to text.

    pipeline = TextPipeline(tokenizer, template, max_model_len=8192)
    request = pipeline.request(7, "Once upon", SamplingParams(stop=(".",)))     -> submit it to an engine
    stream = pipeline.stream()
    for output in outputs of request 7: delta = stream.push(output)              -> delta.text; stream.text at the end

A prompt is text, token ids, or chat messages. Everything wrong with it is a RequestError; nothing reaches the engine
then.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec
import numpy as np

from paceline.contracts.request import (
    FinishReason,
    Request,
    RequestOutput,
    SamplingParams,
    TokenLogprob,
    TokenPrompt,
    Usage,
)
from paceline.contracts.slo import Timeline
from paceline.errors import ContextLengthError, RequestError
from paceline.text.chat_template import MAX_CHARS, ChatTemplate, Message
from paceline.text.detokenizer import Detokenizer
from paceline.text.guard import SpecialGuard
from paceline.text.tokenizer import TextTokenizer, utf8

TextPrompt: TypeAlias = str | Sequence[int] | np.ndarray | Sequence[Message]


class TextDelta(msgspec.Struct, frozen=True, kw_only=True):
    """What one output adds. `text` may lag behind `token_ids` (a character or a possible stop string is not complete);
    `logprobs` has one entry for each of `token_ids`."""

    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprob] | None = None
    prompt_logprobs: list[TokenLogprob | None] | None = None
    finish: FinishReason | None = None
    stop_reason: int | str | None = None
    error: str | None = None
    usage: Usage | None = None
    timeline: Timeline | None = None


class TextStream:
    """The text of one sequence while it comes. After the delta with `finish`, nothing more may be pushed."""

    def __init__(self, tokenizer: TextTokenizer, *, skip_special: bool = True, shown: Container[int] = ()) -> None:
        self._detokenizer = Detokenizer(tokenizer, skip_special=skip_special, shown=shown)
        self._parts: list[str] = []
        self.token_ids: list[int] = []
        self.logprobs: list[TokenLogprob] = []
        self.prompt_logprobs: list[TokenLogprob | None] | None = None
        self.last: TextDelta | None = None  # the delta with `finish`

    def push(self, output: RequestOutput) -> TextDelta:
        """Take the next output of this sequence, in the order the engine gave them."""
        assert self.last is None, "an output after the last one"
        if output.finish is None:
            text = self._detokenizer.push(output.token_ids, hold_bytes=output.hold_bytes)
        else:
            text = self._detokenizer.finish(output.token_ids, cut_bytes=output.cut_bytes)
        delta = TextDelta(
            text=text,
            token_ids=output.token_ids,
            logprobs=output.logprobs,
            prompt_logprobs=output.prompt_logprobs,
            finish=output.finish,
            stop_reason=output.stop_reason,
            error=output.error,
            usage=output.usage,
            timeline=output.timeline,
        )
        self._parts.append(text)
        self.token_ids += output.token_ids
        self.logprobs += output.logprobs or ()
        if output.prompt_logprobs is not None:
            self.prompt_logprobs = [*(self.prompt_logprobs or ()), *output.prompt_logprobs]
        if output.finish is not None:
            self.last = delta
        return delta

    @property
    def text(self) -> str:
        """All deltas so far, joined."""
        if len(self._parts) > 1:
            self._parts = ["".join(self._parts)]
        return self._parts[0] if self._parts else ""


class TextPipeline:
    """One model's tokenizer and templates, and the longest prompt worth reading. Threads may share it."""

    def __init__(
        self, tokenizer: TextTokenizer, template: ChatTemplate | None = None, *, max_model_len: int | None = None
    ) -> None:
        self.tokenizer = tokenizer
        self.template = template if template is not None else ChatTemplate({}, special_tokens=tokenizer.special_tokens)
        self._max_bytes = None if max_model_len is None else max_model_len * tokenizer.longest_token_bytes
        self._max_model_len = max_model_len
        self._guard = SpecialGuard(tokenizer)

    def encode_prompt(
        self,
        prompt: TextPrompt,
        *,
        add_special: bool = True,
        parse_special: bool = False,
        chat_options: Mapping[str, Any] | None = None,
    ) -> np.ndarray:
        """Token ids [num_tokens] int32 of a prompt.

        Text: BOS is added where the model wants it (`add_special`), once; special tokens written in it count as such
        only with `parse_special`. Messages: rendered by the template (`chat_options`: its keyword arguments), which
        writes BOS itself. Ids: checked and taken as they are. Raises RequestError for an empty or malformed prompt, ids
        outside the vocabulary, and text that cannot fit the model whatever its ids.
        """
        if isinstance(prompt, str):
            ids = self._encode_text(prompt, add_special, parse_special)
        elif isinstance(prompt, (bytes, Mapping)) or not isinstance(prompt, (Sequence, np.ndarray)):
            raise _malformed(prompt)
        elif len(prompt) and isinstance(prompt[0], Mapping):
            max_chars = MAX_CHARS if self._max_bytes is None else self._max_bytes
            options = {"max_chars": max_chars, **(chat_options or {})}
            (messages, options), hidden = self._guard.hide((prompt, options), self.template.sources.values())
            text = self.template.render(messages, **options)
            if hidden:
                self._check_size("".join([hidden.get(character, character) for character in text]))
                ids = self._guard.encode(text, hidden)
            else:
                ids = self._encode_text(text, False, True)
        else:
            return self._checked_ids(prompt)
        if not ids:
            raise RequestError(
                "the prompt is empty",
                param="prompt",
                expected="at least one token (this model puts none before a text by itself)",
                fix="send some text",
            )
        return np.asarray(ids, dtype=np.int32)

    def request(
        self,
        request_id: int,
        prompt: TextPrompt,
        sampling: SamplingParams | None = None,
        *,
        parse_special: bool = False,
        chat_options: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> Request:
        """The engine's request for a prompt. `fields` are further fields of `Request` (arrival, tenant, priority ...).
        Raises RequestError as `encode_prompt`, and for stop strings or token ids that cannot be."""
        sampling = sampling if sampling is not None else SamplingParams()
        sampling.check_vocabulary(self.tokenizer.vocab_size)
        return Request(
            request_id=request_id,
            prompt=TokenPrompt(ids=self.encode_prompt(prompt, parse_special=parse_special, chat_options=chat_options)),
            sampling=sampling,
            stop_strings=tuple(utf8(stop, "stop") for stop in sampling.stop),
            **fields,
        )

    def stream(self, *, skip_special: bool = True, shown: Container[int] = ()) -> TextStream:
        """For one sequence's outputs; with n > 1 choices, one stream for each. `shown`: ids of special tokens that show
        all the same, so that a parser sees its markers."""
        return TextStream(self.tokenizer, skip_special=skip_special, shown=shown)

    def _check_size(self, text: str) -> None:
        size = len(utf8(text))
        if self._max_bytes is not None and size > self._max_bytes:
            raise ContextLengthError(
                "the prompt is too long for this model",
                param="prompt",
                seen=f"{size} bytes of text",
                expected=f"at most {self._max_model_len} tokens, which {self._max_bytes} bytes never fit into less of",
                fix="shorten the prompt",
            )

    def _encode_text(self, text: str, add_special: bool, parse_special: bool) -> list[int]:
        self._check_size(text)
        ids = self.tokenizer.encode(text, add_special=add_special, parse_special=parse_special)
        bos = self.tokenizer.bos_token_id
        if add_special and parse_special and len(ids) > 1 and ids[0] == ids[1] == bos:
            return ids[1:]  # the text brought its own BOS
        return ids

    def _checked_ids(self, prompt: Any) -> np.ndarray:
        """Ids as int32. Booleans, floats and text are no ids."""
        if isinstance(prompt, np.ndarray):
            if prompt.ndim != 1 or prompt.dtype.kind not in "iu":
                raise _malformed(prompt)
        elif not all(isinstance(i, (int, np.integer)) and not isinstance(i, bool) for i in prompt):
            raise _malformed(prompt)
        if len(prompt) == 0:
            raise RequestError("the prompt is empty", param="prompt", expected="at least one token id")
        size = self.tokenizer.vocab_size
        low, high = (prompt.min(), prompt.max()) if isinstance(prompt, np.ndarray) else (min(prompt), max(prompt))
        bad = int(low) if low < 0 else int(high) if high >= size else None
        if bad is not None:
            raise RequestError(
                "the prompt names a token id outside the vocabulary",
                param="prompt",
                seen=bad,
                expected=f"0 to {size - 1}",
            )
        return np.asarray(prompt, dtype=np.int32)


def _malformed(prompt: object) -> RequestError:
    several = isinstance(prompt, Sequence) and len(prompt) > 0 and isinstance(prompt[0], (str, list))
    return RequestError(
        "a prompt is text, a list of token ids, or a list of chat messages",
        param="prompt",
        seen=f"{type(prompt).__name__}: {prompt!r:.80}",
        fix="send several prompts one by one" if several else "",
    )
