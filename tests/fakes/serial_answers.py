"""What a server should have said: the same model in this process, one sequence at a time, nothing shared.

`compare` returns what is wrong with a reply, in words; nothing when it is right. A reply that its client cut off must
be a beginning of the right one.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
from tests.fakes.http_traffic import Call
from tests.fakes.raw_http import Reply

from paceline.contracts.ports import EngineClient
from paceline.contracts.request import FinishReason, SamplingParams, TokenLogprob, expand_choices
from paceline.text import TextPipeline


@dataclass(frozen=True)
class Answer:
    """One choice of one prompt."""

    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprob] | None
    finish: str
    prompt_tokens: int
    prompt_text: str
    prompt_ids: list[int]
    prompt_logprobs: list[TokenLogprob | None] | None


class Serial:
    """One sequence at a time through `client`. Prefix reuse is excluded by a salt of its own for each."""

    def __init__(self, pipeline: TextPipeline, client: EngineClient) -> None:
        self.pipeline = pipeline
        self._client = client
        self._next_id = 1

    def answers(self, prompt: Any, sampling: SamplingParams) -> list[Answer]:
        """One per choice."""
        found = []
        for choice in range(sampling.n):
            self._next_id += 1
            salt = self._next_id.to_bytes(8, "little")
            request = self.pipeline.request(self._next_id, prompt, sampling, cache_salt=salt)
            request = msgspec.structs.replace(expand_choices(request, [0] * (sampling.n - 1))[choice])
            request = msgspec.structs.replace(request, request_id=self._next_id, leader=None)
            self._client.submit(request)
            stream = self.pipeline.stream()
            while stream.last is None:
                for output in self._client.outputs(timeout_s=60.0):
                    assert output.request_id == self._next_id
                    stream.push(output)
            last = stream.last
            assert last.finish is not None
            assert last.finish is not FinishReason.ERROR, last.error
            ids = [int(i) for i in request.prompt.ids]
            found.append(
                Answer(
                    text=stream.text,
                    token_ids=list(stream.token_ids),
                    logprobs=list(stream.logprobs) if sampling.logprobs is not None else None,
                    finish=last.finish.value,
                    prompt_tokens=len(ids),
                    prompt_text=prompt if isinstance(prompt, str) else self.pipeline.tokenizer.decode(ids),
                    prompt_ids=ids,
                    prompt_logprobs=stream.prompt_logprobs,
                )
            )
        return found

    def bytes_of(self, token_id: int) -> bytes:
        return self.pipeline.tokenizer.bytes_of(token_id)


@dataclass
class Choice:
    """What a reply said of one choice, streamed or not."""

    text: str = ""
    finish: str | None = None
    num_tokens: int = 0  # by the extension field of chunks; -1: not said
    tokens: list[tuple[str, float | None, list[tuple[str, float]]]] = field(default_factory=list)  # text, logprob, top


def compare(call: Call, reply: Reply, serial: Serial) -> list[str]:
    """Complaints about the reply to a valid completion or chat call. `reply.whole` False: its client left."""
    if reply.status != 200:
        return [f"status {reply.status}: {reply.body[:500]!r}"]
    assert call.fields is not None
    chat = call.kind == "chat"
    wanted = [replace_echo(call, a) for prompt, sampling in call.jobs for a in serial.answers(prompt, sampling)]
    problems: list[str] = []
    if reply.streams:
        choices, usages, done = _streamed(reply, chat, problems)
        if reply.whole and not done:
            problems.append("the stream ended without [DONE]")
    elif reply.whole:
        body = reply.json()
        choices, usages, done = _plain(body, chat), [body["usage"]], True
    else:
        return []
    if done and sorted(choices) != list(range(len(wanted))):
        return [*problems, f"choices {sorted(choices)} of {len(wanted)}"]
    for index, found in choices.items():
        if index >= len(wanted):
            problems.append(f"choice {index} of {len(wanted)}")
            continue
        problems += [f"choice {index}: {p}" for p in _differences(call, found, wanted[index], done)]
    if done:
        problems += _usage_problems(call, usages, wanted, reply.streams)
    return problems


def replace_echo(call: Call, answer: Answer) -> Answer:
    """With `echo`, the text begins with the prompt's."""
    assert call.fields is not None
    return replace(answer, text=answer.prompt_text + answer.text) if call.fields.get("echo") else answer


def _streamed(reply: Reply, chat: bool, problems: list[str]) -> tuple[dict[int, Choice], list[Any], bool]:
    choices: dict[int, Choice] = {}
    usages: list[Any] = []
    done = False
    for data in reply.events:
        if done:
            problems.append(f"an event behind [DONE]: {data[:200]!r}")
        if data == b"[DONE]":
            done = True
            continue
        event = json.loads(data)
        if "error" in event:
            problems.append(f"an error event: {event}")
            continue
        if event.get("usage") is not None:
            usages.append(event["usage"])
        for part in event["choices"]:
            choice = choices.setdefault(part["index"], Choice())
            if choice.finish is not None:
                problems.append(f"choice {part['index']}: a chunk behind its finish_reason: {part}")
            choice.text += (part["delta"].get("content") or "") if chat else part["text"]
            choice.tokens += _tokens(part.get("logprobs"), chat)
            choice.finish = part.get("finish_reason")
        if len(event["choices"]) == 1:
            choices[event["choices"][0]["index"]].num_tokens += event.get("paceline", {}).get("num_tokens", 0)
    return choices, usages, done


def _plain(body: Any, chat: bool) -> dict[int, Choice]:
    choices = {}
    for part in body["choices"]:
        choice = choices[part["index"]] = Choice(num_tokens=-1)
        choice.text = (part["message"]["content"] or "") if chat else part["text"]
        choice.finish = part["finish_reason"]
        choice.tokens = _tokens(part.get("logprobs"), chat)
    return choices


def _tokens(logprobs: Any, chat: bool) -> list[tuple[str, float | None, list[tuple[str, float]]]]:
    """(token text, logprob, top by descending logprob) of each token."""
    if logprobs is None:
        return []
    if chat:
        return [
            (e["token"], e["logprob"], [(t["token"], t["logprob"]) for t in e["top_logprobs"]])
            for e in logprobs["content"] or ()
        ]
    tops = logprobs.get("top_logprobs") or [None] * len(logprobs["tokens"])
    return [
        (token, value, list((top or {}).items()))
        for token, value, top in zip(logprobs["tokens"], logprobs["token_logprobs"], tops, strict=True)
    ]


def _differences(call: Call, found: Choice, wanted: Answer, done: bool) -> list[str]:
    assert call.fields is not None
    problems = []
    if not (found.text == wanted.text if done else wanted.text.startswith(found.text)):
        problems.append(f"text {found.text!r}, serially {wanted.text!r}")
    if done and found.finish != wanted.finish:
        problems.append(f"finish_reason {found.finish}, serially {wanted.finish}")
    if done and found.num_tokens not in (-1, len(wanted.token_ids)):
        problems.append(f"chunks brought {found.num_tokens} tokens, serially {len(wanted.token_ids)}")
    if wanted.logprobs is None:
        return problems + (["logprobs nobody asked for"] if found.tokens else [])
    echoed = list(wanted.prompt_logprobs or ()) if call.fields.get("echo") else []
    right = [*echoed, *wanted.logprobs]
    if not (len(found.tokens) == len(right) if done else len(found.tokens) <= len(right)):
        problems.append(f"{len(found.tokens)} logprobs, serially {len(right)}")
    for at, ((_, value, top), expected) in enumerate(zip(found.tokens, right, strict=False)):
        wanted_value = None if expected is None else expected.logprob
        if value is None or wanted_value is None:
            same = value is wanted_value
        else:
            same = math.isclose(value, wanted_value, rel_tol=1e-5, abs_tol=1e-5)
        if not same:
            problems.append(f"logprob {at} is {value}, serially {expected}")
            break
        if expected is not None and call.kind == "chat":
            best = [p for _, p in expected.top]
            if len(top) != len(best) or any(abs(p - q) > 1e-5 for (_, p), q in zip(top, best, strict=True)):
                problems.append(f"top_logprobs {at} are {top}, serially {expected.top}")
                break
    return problems


def _usage_problems(call: Call, usages: list[Any], wanted: list[Answer], streamed: bool) -> list[str]:
    assert call.fields is not None
    options = call.fields.get("stream_options") or {}
    if streamed and not options.get("include_usage") and not options.get("continuous_usage_stats"):
        return ["usage nobody asked for"] if usages else []
    if streamed and not options.get("include_usage"):
        return []  # continuous alone: the last of them is checked with include_usage
    if not usages:
        return ["no usage"]
    choices = max(1, call.fields.get("n", 1))
    prompt = sum(a.prompt_tokens for a in wanted[::choices])
    output = sum(len(a.token_ids) for a in wanted)
    last = usages[-1]
    if (last["prompt_tokens"], last["completion_tokens"], last["total_tokens"]) != (prompt, output, prompt + output):
        return [f"usage {last}, serially {prompt} prompt and {output} output tokens"]
    return []
