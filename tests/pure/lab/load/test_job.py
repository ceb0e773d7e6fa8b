import json

import msgspec
import pytest
from tests.fakes.lab.loads import request, target_of

from paceline.contracts.workload import RenderedPrompt
from paceline.errors import LabError
from paceline.lab.load.job import body_of, make_job, prompt_digest

MESSAGES = [{"role": "user", "content": "hello"}]
CHAT = RenderedPrompt(messages=MESSAGES)


def body(target, planned, prompt=CHAT):
    return body_of(target, planned, prompt)


def test_a_body_for_paceline():
    target = target_of("http://h")
    target.info.timings = True
    value, path = body(target, request(0, temperature=0.5, priority=2, service_class="gold"))
    assert path == "/v1/chat/completions"
    assert value == {
        "model": "mock",
        "messages": MESSAGES,
        "max_tokens": 4,
        "min_tokens": 4,
        "ignore_eos": True,
        "temperature": 0.5,
        "stream": True,
        "stream_options": {"include_usage": True},
        "timings": True,
        "priority": 2,
        "service_class": "gold",
    }


@pytest.mark.parametrize(
    ("kind", "extra"),
    [
        ("vllm", {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}),
        ("llama.cpp", {"timings_per_token": True}),
    ],
)
def test_what_only_some_servers_know(kind, extra):
    value, _ = body(target_of("http://h", kind=kind), request(0, service_class="gold"))
    assert extra.items() <= value.items()
    assert "service_class" not in value


def test_a_plain_server_gets_plain_fields():
    target = target_of("http://h", kind="openai")
    target.stream_options, target.max_tokens_field = False, "max_completion_tokens"
    value, _ = body(target, request(0))
    assert value.keys() == {"model", "messages", "max_completion_tokens", "temperature", "stream"}
    assert body(target, request(0), RenderedPrompt(text="x"))[0]["max_tokens"] == 4


def test_lengths_are_forced_only_where_that_is_asked_and_can_be():
    value, _ = body(target_of("http://h"), request(0, exact_output=False))
    assert "ignore_eos" not in value
    assert not make_job(target_of("http://h", kind="openai"), request(0), CHAT).exact
    assert make_job(target_of("http://h"), request(0), CHAT).exact


def test_token_ids_and_texts_go_to_completions():
    value, path = body(target_of("http://h"), request(0, streamed=False), RenderedPrompt(token_ids=[1, 2]))
    assert (path, value["prompt"]) == ("/v1/completions", [1, 2])
    assert "stream" not in value
    assert body(target_of("http://h"), request(0), RenderedPrompt(text="x"))[0]["prompt"] == "x"
    with pytest.raises(LabError):
        body(target_of("http://h"), request(0), RenderedPrompt())


def test_fields_of_the_prompt_and_of_the_plan_come_last():
    prompt = RenderedPrompt(messages=MESSAGES, body={"tools": [1], "temperature": 1})
    value, _ = body(target_of("http://h"), request(0, extra={"temperature": 2, "top_p": 0.5}), prompt)
    assert (value["tools"], value["temperature"], value["top_p"]) == ([1], 2, 0.5)


def test_a_job_survives_the_pipe():
    job = make_job(target_of("http://h"), request(3, 1.5, think_s=0.25), CHAT)
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(job), type=type(job))
    assert again == job
    assert (again.at_ns, again.think_ns, again.record.id) == (1_500_000_000, 250_000_000, 3)
    assert json.loads(again.body)["messages"] == MESSAGES


def test_equal_prompts_show_whatever_else_is_asked():
    other = RenderedPrompt(messages=MESSAGES, body={"tools": []})
    assert prompt_digest(CHAT) == prompt_digest(other)
    assert prompt_digest(CHAT) != prompt_digest(RenderedPrompt(text="hello"))
