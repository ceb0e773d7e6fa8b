"""What both endpoints say in the same way: ends, usage, timings, and events put together from parts made once.

An ordinary event (text and nothing else) is four byte strings around the text; only events with logprobs, ids or an end
are encoded from objects. Tokens whose text is not certain yet are counted in the next event that is sent.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from paceline.contracts.request import FinishReason
from paceline.server.api.generation import milliseconds
from paceline.server.api.sse import DONE, encode, encode_text, event
from paceline.server.errors import error_bytes

if TYPE_CHECKING:
    from paceline.contracts.request import SamplingParams
    from paceline.contracts.slo import Timeline
    from paceline.server.api.choice import Choice, News
    from paceline.server.api.generation import Generation

STOPPED_BY_TIME = "timeout"


def finish_reason(news: News) -> str | None:
    """OpenAI's words. A request ended by the clock is cut short: "length", and `stop_reason` says by what. Calls that
    are whole count only where nothing was cut."""
    if news.finish is None:
        return None
    if news.finish is not FinishReason.STOP:
        return "length"
    return "tool_calls" if news.called else "stop"


def stop_reason(news: News, sampling: SamplingParams) -> int | str | None:
    """The stop string, or the stop token id that was asked for, that ended it; None for the model's own end."""
    if news.finish is FinishReason.TIMEOUT:
        return STOPPED_BY_TIME
    own = isinstance(news.stop_reason, int) and news.stop_reason not in sampling.stop_token_ids
    return None if own else news.stop_reason


class Template:
    """An event around a text, cut where the text and the token count go in."""

    MARK = "<text goes here>"

    def __init__(self, value: dict[str, Any]) -> None:
        """`value` holds `MARK` where the text goes; its `paceline` comes last and is filled in here."""
        whole = event({**value, "paceline": {"num_tokens": 0}})
        self._head, rest = whole.split(encode(self.MARK))
        self._middle, self._tail = rest[: -len(b"0}}\n\n")], b"}}\n\n"

    def __call__(self, text: str, num_tokens: int) -> bytes:
        return b"".join((self._head, encode_text(text), self._middle, b"%d" % num_tokens, self._tail))


def usage_of(generation: Generation, num_tokens: int | None = None) -> dict[str, Any]:
    """`usage` of a call that has ended. `num_tokens`: those the client was given, if not all."""
    choices = generation.choices
    firsts = [choice for choice in choices if choice.request.choice == 0]
    cached = sum(c.last.usage.cached_tokens for c in firsts if c.last is not None and c.last.usage is not None)
    total = sum(choice.num_tokens for choice in choices) if num_tokens is None else num_tokens
    usage = {**counts_of(generation, total), "prompt_tokens_details": {"cached_tokens": cached}}
    thoughts = [count for choice in choices if (count := choice.reasoning_tokens) is not None]
    if thoughts:
        usage["completion_tokens_details"] = {"reasoning_tokens": sum(thoughts)}
    return usage


def counts_of(generation: Generation, completion: int) -> dict[str, Any]:
    prompt = generation.num_prompt_tokens
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def timings_of(generation: Generation) -> dict[str, Any]:
    """Milliseconds and counts of the whole call; with several choices, of the first to get so far, TPOT their mean
    and the end of the last."""
    lines = [choice.timeline for choice in generation.choices]
    known = [line for line in lines if line is not None]
    planned = generation.ask.arrival

    def pick(which: Callable[[list[float]], float], at: Callable[[Timeline], float]) -> float:
        values = [value for line in known if (value := at(line)) == value]
        return which(values) if values else float("nan")

    arrival, admitted = pick(min, lambda t: t.arrival), pick(min, lambda t: t.admitted)
    first = pick(min, lambda t: t.first_token)
    usages = [c.last.usage for c in generation.choices if c.last is not None and c.last.usage is not None]
    return {
        "server_ms": milliseconds(arrival - planned),
        "queue_ms": milliseconds(admitted - arrival),
        "prefill_ms": milliseconds(first - admitted),
        "ttft_ms": milliseconds(first - planned),
        "tpot_ms": milliseconds(pick(lambda values: sum(values) / len(values), lambda t: t.tpot_s)),
        "e2e_ms": milliseconds(pick(max, lambda t: t.e2e_s)),
        "blocks_freed_ms": milliseconds(pick(max, lambda t: t.blocks_free) - planned),
        "cached_tokens": sum(usage.cached_tokens for usage in usages),
        "computed_tokens": sum(usage.computed_tokens for usage in usages),
        "preemptions": sum(usage.preemptions for usage in usages),
    }


class BaseWriter(ABC):
    """State of one answer. Subclasses word the choices."""

    object_name = ""
    chunk_name = ""
    end_mark = DONE

    def __init__(self, generation: Generation, *, response_id: str, created: int, model: str) -> None:
        body = generation.ask.body
        options = body.stream_options
        self.generation = generation
        self.sampling = generation.ask.sampling
        self.body = body
        self.include_usage = options is not None and bool(options.include_usage)
        self.continuous_usage = self.include_usage and options is not None and bool(options.continuous_usage_stats)
        self.want_ids = bool(body.return_token_ids)
        self.timings = bool(body.timings)
        self._id, self._created, self._model = response_id, created, model
        self._carried: dict[int, int] = {}  # by choice: tokens of which no event has told
        self._num_sent = 0  # tokens told of
        self._num_open = generation.num_sequences
        self._templates: dict[int, Template] = {}

    # --- events

    def wrap(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        """A chunk object around its choices."""
        head = {"id": self._id, "object": self.chunk_name, "created": self._created, "model": self._model}
        value: dict[str, Any] = {**head, "choices": choices}
        if self.include_usage:
            value["usage"] = None
        return value

    def events(self, choice: Choice, news: News) -> bytes:
        index = choice.index
        parts = []
        if index not in self._carried:
            self._carried[index] = 0
            parts += self.opening(choice, news)
        count = self._carried[index] + len(news.token_ids)
        extra = self.extra(choice, news)
        if news.finish is None and not extra:
            if not news.text:
                self._carried[index] = count
                return b"".join(parts)
            if not self.continuous_usage:
                self._carried[index] = 0
                self._num_sent += count
                parts.append(self._template(index)(news.text, count))
                return b"".join(parts)
        self._carried[index] = 0
        self._num_sent += count
        value = self.wrap([self.chunk_choice(index, news, extra)])
        if self.continuous_usage:
            value["usage"] = self._usage_so_far()
        about: dict[str, Any] = {"num_tokens": count}
        value["paceline"] = about
        if news.finish is not None:
            self._num_open -= 1
            if self.timings and not self.include_usage and self._num_open == 0:
                about["timings"] = timings_of(self.generation)
        parts.append(event(value))
        return b"".join(parts)

    def last_events(self) -> bytes:
        if not self.include_usage:
            return b""
        value = self.wrap([])
        value["usage"] = self.usage()
        if self.timings:
            value["paceline"] = {"num_tokens": 0, "timings": timings_of(self.generation)}
        return event(value)

    def _template(self, index: int) -> Template:
        made = self._templates.get(index)
        if made is None:
            made = self._templates[index] = Template(self.wrap([self.text_choice(index, Template.MARK)]))
        return made

    def error_event(self, error: Exception) -> bytes:
        """What is said of an error once events are out; the stream ends with it."""
        return b"data: " + error_bytes(error) + b"\n\n"

    # --- for the endpoint to word

    @abstractmethod
    def opening(self, choice: Choice, news: News) -> list[bytes]:
        """Events that come before a choice's first."""

    @abstractmethod
    def extra(self, choice: Choice, news: News) -> dict[str, Any]:
        """Parts of a choice that an ordinary event does not have."""

    @abstractmethod
    def text_choice(self, index: int, text: str) -> dict[str, Any]:
        """A choice with text and nothing else."""

    def chunk_choice(self, index: int, news: News, extra: dict[str, Any]) -> dict[str, Any]:
        """A choice with all it has."""
        return {
            **self.text_choice(index, news.text),
            **extra,
            "finish_reason": finish_reason(news),
            "stop_reason": stop_reason(news, self.sampling),
        }

    # --- usage and timings

    def usage(self) -> dict[str, Any]:
        """Of the whole call: each prompt counts once, whatever the number of choices."""
        return usage_of(self.generation, sum(self.num_tokens(choice) for choice in self.generation.choices))

    def num_tokens(self, choice: Choice) -> int:
        """Tokens of a choice that the client is given."""
        return choice.num_tokens

    def _usage_so_far(self) -> dict[str, Any]:
        return counts_of(self.generation, self._num_sent)

    def about(self) -> dict[str, Any]:
        """`paceline` of a whole answer."""
        count = sum(self.num_tokens(choice) for choice in self.generation.choices)
        about: dict[str, Any] = {"num_tokens": count}
        if self.timings:
            about["timings"] = timings_of(self.generation)
        return about
