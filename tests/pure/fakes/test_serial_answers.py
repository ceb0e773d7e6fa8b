"""The oracle of the server's fuzz test must itself see every kind of mistake."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.fakes.http_traffic import LETTERS, Call, World, draw_call
from tests.fakes.raw_http import Reply, cut, sse_events
from tests.fakes.serial_answers import Serial, compare
from tests.fakes.served_toy import serial_toy

WORLD = World(model="toy", vocab_size=356, max_model_len=512, letters=LETTERS, max_body_bytes=1024)


@pytest.fixture(scope="module")
def serial() -> Serial:
    return serial_toy()


def a_call(*, stream: bool) -> Call:
    """A completion call with two choices and usage."""
    for seed in range(3000):
        call = draw_call(seed, WORLD)
        fields = call.fields or {}
        plain = call.valid and call.kind == "completion" and fields.get("n") == 2 and "logprobs" not in fields
        usage = not stream or (fields.get("stream_options") or {}).get("include_usage")
        if plain and bool(fields.get("stream")) == stream and usage and not fields.get("echo") and len(call.jobs) == 1:
            return call
    raise AssertionError("no such call")


def right_answer(call: Call, serial: Serial) -> dict[str, Any]:
    answers = [a for prompt, sampling in call.jobs for a in serial.answers(prompt, sampling)]
    output = sum(len(a.token_ids) for a in answers)
    prompt = answers[0].prompt_tokens
    return {
        "choices": [
            {"index": i, "text": a.text, "finish_reason": a.finish, "logprobs": None} for i, a in enumerate(answers)
        ],
        "counts": [len(a.token_ids) for a in answers],
        "usage": {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output},
    }


def plain_reply(answer: dict[str, Any]) -> Reply:
    return Reply(200, {"content-type": "application/json"}, json.dumps(answer).encode(), whole=True)


def streamed_reply(answer: dict[str, Any], *, done: bool = True) -> Reply:
    """Each choice in two chunks: half its text, the other half with its end."""
    events = []
    for choice, count in zip(answer["choices"], answer["counts"], strict=True):
        half = len(choice["text"]) // 2
        first = {**choice, "text": choice["text"][:half], "finish_reason": None}
        last = {**choice, "text": choice["text"][half:]}
        events.append({"choices": [first], "paceline": {"num_tokens": 1}, "usage": None})
        events.append({"choices": [last], "paceline": {"num_tokens": count - 1}, "usage": None})
    events.append({"choices": [], "usage": answer["usage"]})
    body = b"".join(b"data: " + json.dumps(e).encode() + b"\n\n" for e in events) + b"data: [DONE]\n\n" * done
    return Reply(200, {"content-type": "text/event-stream"}, body, whole=True, events=sse_events(body))


def drop_a_choice(answer: dict[str, Any]) -> None:
    answer["choices"].pop()
    answer["counts"].pop()


def swap_choices(answer: dict[str, Any]) -> None:
    for choice in answer["choices"]:
        choice["index"] = 1 - choice["index"]


MISTAKES: dict[str, Callable[[dict[str, Any]], None]] = {
    "another text": lambda a: a["choices"][1].update(text=a["choices"][1]["text"] + "x"),
    "a text cut short": lambda a: a["choices"][0].update(text=a["choices"][0]["text"][:-1]),
    "another end": lambda a: a["choices"][0].update(finish_reason="abort"),
    "a choice too few": drop_a_choice,
    "choices swapped": swap_choices,
    "wrong usage": lambda a: a["usage"].update(completion_tokens=a["usage"]["completion_tokens"] + 1),
    "no usage of the prompt": lambda a: a["usage"].update(prompt_tokens=0),
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_the_right_answer_passes(serial: Serial, stream: bool) -> None:
    call = a_call(stream=stream)
    answer = right_answer(call, serial)
    assert compare(call, (streamed_reply if stream else plain_reply)(answer), serial) == []


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_wrong_one_does_not(serial: Serial, mistake: str, stream: bool) -> None:
    call = a_call(stream=stream)
    answer = right_answer(call, serial)
    MISTAKES[mistake](answer)
    assert compare(call, (streamed_reply if stream else plain_reply)(answer), serial)


def test_a_stream_must_end_and_count_its_tokens(serial: Serial) -> None:
    call = a_call(stream=True)
    answer = right_answer(call, serial)
    assert compare(call, streamed_reply(answer, done=False), serial)
    answer["counts"][0] += 1
    assert compare(call, streamed_reply(answer), serial)


def test_a_stream_its_client_left_must_be_a_beginning(serial: Serial) -> None:
    call = a_call(stream=True)
    reply = streamed_reply(right_answer(call, serial))
    reply.whole, reply.events = False, reply.events[:1]
    assert compare(call, reply, serial) == []
    event = json.loads(reply.events[0])
    event["choices"][0]["text"] = "zz" + event["choices"][0]["text"]
    reply.events = [json.dumps(event).encode()]
    assert compare(call, reply, serial)


def test_calls_are_a_function_of_their_seed_and_mostly_valid() -> None:
    calls = [draw_call(seed, WORLD) for seed in range(2000)]
    assert calls[:200] == [draw_call(seed, WORLD) for seed in range(200)]
    assert sum(call.valid for call in calls) >= 0.7 * len(calls)
    assert {c.kind for c in calls} == {"completion", "chat", "tokenize", "detokenize", "models", "wrong"}
    assert {c.manner for c in calls} == {"read", "slow", "leave", "reset", "hang up early"}
    assert all(call.jobs for call in calls if call.kind in ("completion", "chat"))


def test_cut_keeps_every_byte() -> None:
    assert b"".join(cut(b"abcdef", (1, 2, 50))) == b"abcdef"
    assert cut(b"", (3,)) == []
