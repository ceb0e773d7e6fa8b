"""The stock `openai` client against a real server, as its users write it."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from openai.types import CompletionUsage
from tests.fakes.serial_answers import Serial
from tests.fakes.served_toy import Served, serial_toy, serve_toy

from paceline.contracts.request import SamplingParams

KEY = "sk-paceline-test"
HELLO: Any = [{"role": "user", "content": "Hello there"}]


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serve_toy({"max_rows": 8}) as server:
        yield server


@pytest.fixture(scope="module")
def client(served: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0, timeout=60) as made:
        yield made


@pytest.fixture(scope="module")
def serial() -> Serial:
    return serial_toy()


def idle(served: Served) -> None:
    """Wait until nothing runs and every block is free or cached."""
    served.wait_idle()


def test_the_model_is_listed(client: openai.OpenAI, served: Served) -> None:
    (model,) = client.models.list().data
    assert model.id == served.model
    assert model.owned_by == "paceline"
    assert model.model_extra is not None
    assert model.model_extra["max_model_len"] == served.max_model_len
    assert client.models.retrieve(served.model).id == served.model


def test_a_chat_answer_is_the_engines(client: openai.OpenAI, served: Served, serial: Serial) -> None:
    answer = client.chat.completions.create(model=served.model, messages=HELLO, temperature=0, max_tokens=12)
    (right,) = serial.answers(HELLO, SamplingParams(temperature=0.0, max_tokens=12))
    (choice,) = answer.choices
    assert choice.message.role == "assistant"
    assert choice.message.content == right.text
    assert choice.finish_reason == right.finish
    assert isinstance(answer.usage, CompletionUsage)
    assert answer.usage.prompt_tokens == right.prompt_tokens
    assert answer.usage.completion_tokens == len(right.token_ids)
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    assert abs(answer.created - time.time()) < 3600


def test_a_streamed_chat_is_the_same_text(client: openai.OpenAI, served: Served, serial: Serial) -> None:
    call: dict[str, Any] = {
        "model": served.model,
        "messages": HELLO,
        "seed": 7,
        "temperature": 0.9,
        "max_completion_tokens": 20,
    }
    stream = client.chat.completions.create(**call, stream=True, stream_options={"include_usage": True})
    chunks = list(stream)
    (right,) = serial.answers(HELLO, SamplingParams(seed=7, temperature=0.9, max_tokens=20))
    *ordinary, last = chunks
    assert "".join(c.choices[0].delta.content or "" for c in ordinary) == right.text
    assert ordinary[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].finish_reason for c in ordinary][-1] == right.finish
    assert all(c.choices[0].finish_reason is None for c in ordinary[:-1])
    assert all(c.usage is None for c in ordinary)
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens == len(right.token_ids)
    assert len({c.id for c in chunks}) == 1


def test_choices_are_different_and_reproducible(client: openai.OpenAI, served: Served, serial: Serial) -> None:
    def texts() -> list[str | None]:
        found = client.chat.completions.create(model=served.model, messages=HELLO, n=3, seed=3, max_tokens=10)
        assert [c.index for c in found.choices] == [0, 1, 2]
        return [c.message.content for c in found.choices]

    first = texts()
    assert first == texts() == [a.text for a in serial.answers(HELLO, SamplingParams(n=3, seed=3, max_tokens=10))]
    assert len(set(first)) == 3


def test_choices_stream_beside_each_other(client: openai.OpenAI, served: Served, serial: Serial) -> None:
    texts = {0: "", 1: "", 2: ""}
    for chunk in client.chat.completions.create(
        model=served.model, messages=HELLO, n=3, seed=3, max_tokens=10, stream=True
    ):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert list(texts.values()) == [a.text for a in serial.answers(HELLO, SamplingParams(n=3, seed=3, max_tokens=10))]


def test_logprobs_of_a_chat(client: openai.OpenAI, served: Served, serial: Serial) -> None:
    call: dict[str, Any] = {
        "model": served.model,
        "messages": HELLO,
        "temperature": 0,
        "max_tokens": 6,
        "logprobs": True,
    }
    answer = client.chat.completions.create(**call, top_logprobs=2)
    (right,) = serial.answers(HELLO, SamplingParams(temperature=0.0, max_tokens=6, logprobs=2))
    assert answer.choices[0].logprobs is not None
    content = answer.choices[0].logprobs.content
    assert content is not None
    assert right.logprobs is not None
    assert [round(e.logprob, 4) for e in content] == [round(e.logprob, 4) for e in right.logprobs]
    assert [bytes(e.bytes or []) for e in content] == [serial.bytes_of(e.token_id) for e in right.logprobs]
    assert [len(e.top_logprobs) for e in content] == [len(e.top) for e in right.logprobs]
    streamed = [
        entry
        for chunk in client.chat.completions.create(**call, top_logprobs=2, stream=True)
        if chunk.choices and chunk.choices[0].logprobs
        for entry in chunk.choices[0].logprobs.content or ()
    ]
    assert streamed == content


def test_stop_strings_cut_text_and_usage(client: openai.OpenAI, served: Served, serial: Serial) -> None:
    (plain,) = serial.answers("Once", SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True))
    found = re.search(r"(?<=.{4})[a-z ]{2}", plain.text)  # letters: U+FFFD stands for broken bytes
    assert found
    stop = found[0]
    call: dict[str, Any] = {"model": served.model, "prompt": "Once", "temperature": 0, "max_tokens": 24, "stop": [stop]}
    answer = client.completions.create(**call, extra_body={"ignore_eos": True})
    (right,) = serial.answers("Once", SamplingParams(temperature=0.0, max_tokens=24, stop=(stop,), ignore_eos=True))
    assert answer.choices[0].text == right.text == plain.text[: plain.text.index(stop)]
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == len(right.token_ids)


def test_completions_take_ids_and_batches(client: openai.OpenAI, served: Served, serial: Serial) -> None:
    ids = [10, 20, 30, 40]
    call: dict[str, Any] = {"model": served.model, "temperature": 0, "max_tokens": 5}
    params = SamplingParams(temperature=0.0, max_tokens=5)
    (right,) = serial.answers(ids, params)
    assert client.completions.create(**call, prompt=ids).choices[0].text == right.text
    batch = client.completions.create(**call, prompt=["One", "Two"])
    assert [c.text for c in batch.choices] == [serial.answers(p, params)[0].text for p in ("One", "Two")]
    id_batch = client.completions.create(**call, prompt=[ids, ids[:2]])
    assert [c.text for c in id_batch.choices] == [serial.answers(p, params)[0].text for p in (ids, ids[:2])]
    assert id_batch.usage is not None
    assert id_batch.usage.prompt_tokens == 6


def test_completions_echo_and_logprobs(client: openai.OpenAI, served: Served) -> None:
    answer = client.completions.create(
        model=served.model, prompt="Echo", echo=True, logprobs=1, temperature=0, max_tokens=3
    )
    (choice,) = answer.choices
    assert choice.text.startswith("Echo")
    assert choice.logprobs is not None
    assert choice.logprobs.token_logprobs is not None
    assert choice.logprobs.token_logprobs[0] is None
    assert answer.usage is not None
    assert len(choice.logprobs.token_logprobs) == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_the_async_client_serves_many_at_once(served: Served, serial: Serial) -> None:
    async def ask(client: openai.AsyncOpenAI, seed: int) -> str:
        text = ""
        stream = await client.completions.create(
            model=served.model, prompt=f"Story {seed % 4}", seed=seed, max_tokens=8, stream=True
        )
        async for chunk in stream:
            text += "".join(c.text for c in chunk.choices)
        return text

    async def all_of_them() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
            return await asyncio.gather(*(ask(client, seed) for seed in range(24)))

    right = [serial.answers(f"Story {s % 4}", SamplingParams(seed=s, max_tokens=8))[0].text for s in range(24)]
    assert asyncio.run(all_of_them()) == right


def test_leaving_a_stream_frees_its_blocks(client: openai.OpenAI, served: Served) -> None:
    with client.chat.completions.create(
        model=served.model, messages=HELLO, max_tokens=150, stream=True, extra_body={"ignore_eos": True}
    ) as stream:
        next(iter(stream))
    idle(served)


def test_raw_responses_carry_the_request_id(client: openai.OpenAI, served: Served) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model=served.model, messages=HELLO, max_tokens=2, extra_headers={"X-Request-Id": "mine-1"}
    )
    assert raw.headers["content-type"].startswith("application/json")
    assert raw.headers["x-request-id"] == "mine-1"
    assert raw.parse().choices
    assert client.models.with_raw_response.list().headers["x-request-id"]


def test_timings_come_when_asked(client: openai.OpenAI, served: Served) -> None:
    answer = client.chat.completions.create(
        model=served.model, messages=HELLO, max_tokens=4, extra_body={"timings": True}
    )
    assert answer.model_extra is not None
    timings = answer.model_extra["paceline"]["timings"]
    assert 0 <= timings["queue_ms"] <= timings["ttft_ms"] <= timings["e2e_ms"]
    assert timings["blocks_freed_ms"] >= 0
    plain = client.chat.completions.create(model=served.model, messages=HELLO, max_tokens=4)
    assert "timings" not in (plain.model_extra or {}).get("paceline", {})


def test_a_second_prompt_hits_the_cache(client: openai.OpenAI, served: Served) -> None:
    prompt = "The same long beginning, again and again and again. " * 2
    for expected in (False, True):
        usage = client.completions.create(model=served.model, prompt=prompt, max_tokens=2).usage
        assert usage is not None
        assert usage.prompt_tokens_details is not None
        assert bool(usage.prompt_tokens_details.cached_tokens) is expected


def test_errors_are_the_clients_own_classes(client: openai.OpenAI, served: Served) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="gpt-none", messages=HELLO)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as range_error:
        client.chat.completions.create(model=served.model, messages=HELLO, temperature=-1)
    assert range_error.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as long_error:
        client.completions.create(model=served.model, prompt=[5] * (served.max_model_len + 1))
    assert long_error.value.code == "context_length_exceeded"
    with pytest.raises(openai.InternalServerError):
        client.embeddings.create(model=served.model, input="text")
    assert client.completions.create(model=served.model, prompt="still", max_tokens=1).choices


def test_a_client_that_times_out_leaves_nothing_behind(client: openai.OpenAI, served: Served) -> None:
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=openai.Timeout(5.0, read=0.001)).completions.create(
            model=served.model, prompt="slow", max_tokens=200, n=4, extra_body={"ignore_eos": True}
        )
    idle(served)


def test_keys() -> None:
    with serve_toy(api_key=[KEY]) as server:
        for key in ("sk-wrong", "", KEY[:-1]):
            with (
                openai.OpenAI(base_url=f"{server.url}/v1", api_key=key or "x", max_retries=0) as wrong,
                pytest.raises(openai.AuthenticationError) as caught,
            ):
                wrong.chat.completions.create(model=server.model, messages=HELLO, max_tokens=2)
            assert caught.value.code == "invalid_api_key"
            assert KEY not in str(caught.value)
        assert httpx.get(f"{server.url}/v1/models").status_code == 401
        assert httpx.get(f"{server.url}/health").status_code == 200
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as right:
            assert right.chat.completions.create(model=server.model, messages=HELLO, max_tokens=2).choices
        assert KEY not in server.log()


def test_a_full_queue_is_a_rate_limit_with_a_time_to_wait() -> None:
    async def flood(url: str, model: str) -> list[object]:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            calls = [
                client.completions.create(
                    model=model, prompt=f"flood {i}", max_tokens=50, extra_body={"ignore_eos": True}
                )
                for i in range(12)
            ]
            return await asyncio.gather(*calls, return_exceptions=True)

    with serve_toy({"max_rows": 1, "max_waiting_requests": 2, "step_ms": 5.0}) as server:
        found = asyncio.run(flood(server.url, server.model))
        refused = [e for e in found if isinstance(e, openai.RateLimitError)]
        assert refused
        assert all(int(e.response.headers["retry-after"]) >= 1 for e in refused)
        assert all(isinstance(e, openai.RateLimitError) or hasattr(e, "choices") for e in found), found
        assert sum(hasattr(e, "choices") for e in found) >= 2
