"""Bad input as a new user sends it: a clear error in OpenAI's form, and the next good request works."""

import asyncio
import json

import pytest
from tests.fakes.api_server import MODEL, api_server, run, text_ids

from paceline.config.server import ServerConfig
from paceline.contracts.request import FinishReason
from paceline.errors import (
    AuthError,
    CapacityError,
    ConfigError,
    ContextLengthError,
    EngineDeadError,
    EngineError,
    ForbiddenError,
    QueueFullError,
    RateLimitError,
    RequestError,
    TooLateError,
)
from paceline.server.errors import (
    BodyTooLargeError,
    ModelNotFoundError,
    NotServedError,
    RequestTimeoutError,
    ShedError,
    error_headers,
    error_object,
    error_response,
    status_of,
)
from paceline.server.tenancy.tenants import Tenant, TenantBook

JSON = {"content-type": "application/json"}
PATHS = (
    *("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens"),
    *("/v1/embeddings", "/tokenize", "/detokenize"),
)


@pytest.mark.parametrize(
    ("error", "status", "kind", "code"),
    [
        (RequestError("x", param="p"), 400, "invalid_request_error", "invalid_request"),
        (ContextLengthError("x"), 400, "invalid_request_error", "context_length_exceeded"),
        (AuthError("x"), 401, "authentication_error", "invalid_api_key"),
        (ForbiddenError("x"), 403, "permission_error", "forbidden"),
        (ModelNotFoundError("x", param="model"), 404, "not_found_error", "model_not_found"),
        (RequestTimeoutError("x"), 408, "timeout_error", "timeout"),
        (BodyTooLargeError("x"), 413, "invalid_request_error", "body_too_large"),
        (QueueFullError("x"), 429, "rate_limit_error", "queue_full"),
        (TooLateError("x", retry_after_s=7.1), 429, "rate_limit_error", "too_late"),
        (RateLimitError("x", retry_after_s=2.2), 429, "rate_limit_error", "rate_limit_exceeded"),
        (EngineError("x"), 503, "service_unavailable_error", "engine"),
        (EngineDeadError("x"), 503, "service_unavailable_error", "engine_dead"),
        (ShedError("x"), 503, "service_unavailable_error", "shed"),
        (NotServedError("x"), 501, "not_implemented_error", "not_implemented"),
        (ConfigError("x"), 500, "server_error", "config"),
        (CapacityError("x"), 500, "server_error", "capacity"),
        (KeyError("secret"), 500, "server_error", "internal"),
    ],
)
def test_every_error_has_a_status_and_openais_form(error, status, kind, code):
    assert status_of(error) == status
    shown = error_object(error)["error"]
    assert set(shown) == {"message", "type", "param", "code"}
    assert (shown["type"], shown["code"]) == (kind, code)
    assert shown["param"] == getattr(error, "param", None)
    assert "secret" not in shown["message"]
    headers = error_headers(error)
    assert ("Retry-After" in headers) == (status in (429, 503) and code != "shed")
    assert ("WWW-Authenticate" in headers) == (status == 401)
    assert json.loads(error_response(error).body) == error_object(error)


def test_retry_after_is_whole_seconds_and_never_too_early():
    assert error_headers(RateLimitError("x", retry_after_s=2.2))["Retry-After"] == "3"
    assert error_headers(RateLimitError("x", retry_after_s=0.0))["Retry-After"] == "1"


def test_bodies_that_cannot_be_read():
    async def body():
        async with api_server(scripts={1: text_ids("fine")}) as server:
            for path in PATHS:
                for content in (
                    b"",
                    b"{",
                    b"\xff\xfe",
                    b'{"a": NaN}',
                    b"[1]",
                    b"[" * 200_000,
                    b'{"n": ' + b"9" * 9999 + b"}",
                ):
                    response = await server.client.post(path, content=content, headers=JSON)
                    assert response.status_code == 400, (path, content[:20], response.text)
                    assert response.json()["error"]["type"] == "invalid_request_error"
                for headers in (
                    {},
                    {"content-type": "text/plain"},
                    {"content-type": "application/x-www-form-urlencoded"},
                ):
                    response = await server.client.post(path, content=b"{}", headers=headers)
                    assert response.status_code == 415
                    assert "Content-Type: application/json" in response.json()["error"]["message"]
            assert (await server.complete("x", seed=1)).json()["choices"][0]["text"] == "fine"

    run(body)


def test_large_bodies_are_read_whole():
    async def body():
        async with api_server() as server:
            response = await server.complete([97] * 100_000)
            assert response.status_code == 400
            assert response.json()["error"]["code"] == "context_length_exceeded"
            response = await server.client.post(
                "/v1/completions", content=b'{"prompt": [' + b"1, " * 100_000, headers=JSON
            )
            assert "not valid JSON" in response.json()["error"]["message"]

    run(body)


def test_unknown_paths_and_methods_and_models():
    async def body():
        async with api_server() as server:
            missing = await server.post("/v1/nothing", {})
            assert (missing.status_code, missing.json()["error"]["code"]) == (404, "not_found")
            method = await server.client.get("/v1/completions")
            assert (method.status_code, method.json()["error"]["code"]) == (405, "method_not_allowed")
            for path, fields in (
                ("/v1/completions", {"prompt": "a"}),
                ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
                ("/v1/responses", {"input": "a"}),
                ("/v1/messages", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}),
                ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "a"}]}),
                ("/tokenize", {"prompt": "a"}),
                ("/detokenize", {"tokens": [1]}),
            ):
                response = await server.post(path, {"model": "gpt-4", **fields})
                assert response.status_code == 404
                error = response.json()["error"]
                assert (error["code"], error["param"]) == ("model_not_found", "model")
                assert MODEL in error["message"]
            assert (await server.chat(model="toy/alias", max_tokens=1)).json()["model"] == "toy/alias"

    run(body)


def test_the_limit_of_the_models_length():
    async def body():
        async with api_server(max_model_len=64) as server:
            at_limit = await server.complete([97] * 63, ignore_eos=True)
            assert at_limit.json()["usage"] == {
                "prompt_tokens": 63,
                "completion_tokens": 1,
                "total_tokens": 64,
                "prompt_tokens_details": {"cached_tokens": 0},
            }
            for prompt, fields, param, words in (
                ([97] * 64, {}, "prompt", "64 tokens in the prompt"),
                ("a" * 64, {}, "prompt", "65 tokens in the prompt"),
                ([97] * 60, {"max_tokens": 5}, "max_tokens", "60 tokens in the prompt + 5 asked for"),
                ("a" * 100_000, {}, "prompt", "at most 64 tokens"),
            ):
                error = (await server.complete(prompt, **fields)).json()["error"]
                assert (error["code"], error["param"]) == ("context_length_exceeded", param)
                assert words in error["message"]
            assert (await server.complete([97] * 60, max_tokens=4)).status_code == 200
            chat = (await server.chat("a" * 60)).json()["error"]
            assert (chat["code"], chat["param"]) == ("context_length_exceeded", "messages")
            whole = (await server.chat("hi", ignore_eos=True)).json()
            assert whole["usage"]["total_tokens"] == 64  # what is left, unless told otherwise

    run(body)


def test_a_prompt_larger_than_the_cache_is_refused_and_the_next_is_served():
    """T1."""

    async def body():
        async with api_server(max_model_len=128, num_blocks=16) as server:
            refused, served = await asyncio.gather(server.complete([97] * 100), server.complete("a", max_tokens=2))
            assert refused.status_code == 400
            assert "KV cache" in refused.json()["error"]["message"]
            assert served.status_code == 200

    run(body)


@pytest.mark.parametrize("stream", [False, True])
def test_a_full_queue_says_when_to_come_again(stream):
    async def body():
        async with api_server(max_num_seqs=1, max_waiting_requests=1) as server:
            gate = server.new_gate()
            calls = [server.complete("a", max_tokens=3, ignore_eos=True, stream=stream) for _ in range(8)]
            tasks = [asyncio.create_task(call) for call in calls]
            first, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            assert {task.result().status_code for task in first} == {429}
            assert all(int(task.result().headers["retry-after"]) >= 1 for task in first)
            gate.open()
            assert {response.status_code for response in await asyncio.gather(*tasks)} == {200, 429}
            await server.settled()

    run(body)


@pytest.mark.parametrize("stream", [False, True])
def test_a_poisoned_request_harms_no_other(stream):
    async def body():
        async with api_server(fault=lambda request_id, _step: request_id == 2) as server:
            fields = {"max_tokens": 6, "ignore_eos": True, "stream": stream}
            responses = [await server.complete("a", **fields), await server.chat("a", **fields)]
            responses.append(await server.complete("a", **fields))
            assert [r.status_code for r in responses] == [200, 503, 200]
            assert "not numbers" in responses[1].json()["error"]["message"]
            await server.settled()
            assert [r.finish_reason for r in server.records] == ["length", "error", "length"]
            assert server.records[1].finish_reason == FinishReason.ERROR.value

    run(body)


def test_classes_and_priorities_are_checked():
    async def body():
        async with api_server() as server:
            assert (await server.complete("a", max_tokens=1, service_class="batch")).status_code == 200
            assert (await server.complete("a", max_tokens=1, **{"class": "batch"})).status_code == 200
            for fields, param in (
                ({"service_class": "bulk"}, "service_class"),
                ({"priority": 2**31}, "priority"),
                ({"slo": {"ttft_ms": 1}}, "slo"),
            ):
                response = await server.complete("a", **fields)
                assert (response.status_code, response.json()["error"]["param"]) == (400, param)
            assert (await server.complete("a", max_tokens=1, slo={"ttft_ms": 60000})).status_code == 200

    run(body)


def test_limits_of_a_tenant_are_429_and_its_headers_come_with_every_answer():
    tenant = Tenant(name="small", classes=("default",), tokens_per_minute=60)

    async def body():
        async with api_server(tenants=TenantBook([tenant], secret=b"s")) as server:
            first = await server.complete("abc", max_tokens=30, ignore_eos=True)
            assert first.status_code == 200
            assert any(name.startswith("x-ratelimit") for name in first.headers)
            second = await server.complete("abc", max_tokens=30)
            assert second.status_code == 429
            assert int(second.headers["retry-after"]) >= 1
            never = await server.complete("abc", max_tokens=100)
            assert (never.status_code, never.json()["error"]["param"]) == (400, "max_tokens")
            assert [r.outcome.value for r in server.records] == ["ok", "rejected"]

    run(body)


def test_a_call_that_names_no_limit_is_not_held_to_the_models_length():
    tenant = Tenant(name="small", classes=("default",), tokens_per_minute=60)

    async def body():
        async with api_server(tenants=TenantBook([tenant], secret=b"s"), scripts={1: text_ids("ok")}) as server:
            assert (await server.chat("hi", seed=1)).status_code == 200

    run(body)


def test_the_servers_own_time_limit_holds_for_every_request_even_when_the_engine_hangs(monkeypatch):
    monkeypatch.setattr("paceline.server.api.answer.GRACE_S", 0.05)

    async def body():
        async with api_server(settings=ServerConfig(request_timeout_s=0.05)) as server:
            gate = server.new_gate()
            response = await server.complete("a", timeout=1000)
            assert (response.status_code, response.json()["error"]["code"]) == (408, "timeout")
            gate.open()

    run(body)


def test_the_openapi_description_has_bodies_and_errors():
    async def body():
        async with api_server() as server:
            paths = (await server.client.get("/openapi.json")).json()["paths"]
            for path in PATHS:
                post = paths[path]["post"]
                schema = post["requestBody"]["content"]["application/json"]["schema"]
                assert schema["additionalProperties"] is False
                assert {"200", "400", "401", "404", "429", "503"} <= set(post["responses"])

    run(body)
