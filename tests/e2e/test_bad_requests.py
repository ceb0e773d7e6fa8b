"""Mistakes a new user makes: each gets a clear answer in OpenAI's form, and the next good request works."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests.fakes.served_toy import ADMIN_KEY, Served, serve_toy

KEY = "sk-right"
EVERY_TYPE: dict[str, tuple[Any, ...]] = {
    "null": (None,),
    "boolean": (True, False),
    "integer": (3,),
    "number": (1.5,),
    "string": ("word", ""),
    "array": ([{"x": [1]}], [[[1]]]),
    "object": ({"x": {"y": 1}},),
}


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serve_toy(api_key=[KEY], max_body_bytes=1 << 20) as server:
        yield server


@pytest.fixture(scope="module")
def web(served: Served) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=served.url, headers={"Authorization": f"Bearer {KEY}"}, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def description(web: httpx.Client) -> dict[str, Any]:
    found: dict[str, Any] = web.get("/openapi.json").json()
    return found


def good(served: Served) -> dict[str, dict[str, Any]]:
    """A small valid body for each endpoint that takes one."""
    return {
        "/v1/completions": {"model": served.model, "prompt": "Hello", "max_tokens": 2},
        "/v1/chat/completions": {
            "model": served.model,
            "messages": [{"role": "user", "content": "Hello"}],
            "max_tokens": 2,
        },
        "/tokenize": {"model": served.model, "prompt": "Hello"},
        "/detokenize": {"model": served.model, "tokens": [1, 2]},
    }


def refused(reply: httpx.Response, status: int | tuple[int, ...], *words: str) -> dict[str, Any]:
    """The error object of a refusal, checked for OpenAI's form."""
    statuses = (status,) if isinstance(status, int) else status
    assert reply.status_code in statuses, f"{reply.status_code}: {reply.text[:500]}"
    assert reply.headers["content-type"].startswith("application/json")
    error: dict[str, Any] = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert error["message"]
    for word in words:
        assert word in error["message"], error
    return error


def works(web: httpx.Client, served: Served, path: str = "/v1/completions") -> None:
    reply = web.post(path, json=good(served)[path])
    assert reply.status_code == 200, reply.text


def resolved(schema: dict[str, Any], description: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in schema:
        schema = description["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]]
    return schema


def types_of(schema: dict[str, Any], description: dict[str, Any]) -> set[str]:
    """JSON types that a schema takes."""
    schema = resolved(schema, description)
    if alternatives := schema.get("anyOf", schema.get("oneOf")):
        return set().union(*(types_of(a, description) for a in alternatives))
    if "type" in schema:
        kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        return set(kinds) | ({"integer"} if "number" in kinds else set())
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        return {"null" if v is None else "string" for v in values}
    return set(EVERY_TYPE)


def test_every_field_refuses_every_wrong_type(web: httpx.Client, served: Served, description: dict[str, Any]) -> None:
    tried, wrong = 0, []
    for path, body in good(served).items():
        operation = description["paths"][path]["post"]
        schema = resolved(operation["requestBody"]["content"]["application/json"]["schema"], description)
        assert len(schema["properties"]) >= 2
        for name, field in schema["properties"].items():
            for kind in set(EVERY_TYPE) - types_of(field, description):
                for value in EVERY_TYPE[kind]:
                    reply = web.post(path, json={**body, name: value})
                    tried += 1
                    if reply.status_code != 400 or name not in reply.text:
                        wrong.append((path, name, value, reply.status_code, reply.text[:200]))
        works(web, served, path)
    assert not wrong, "\n".join(map(str, wrong))
    assert tried > 200


def test_a_missing_field_is_named(web: httpx.Client, served: Served, description: dict[str, Any]) -> None:
    for path, body in good(served).items():
        schema = resolved(
            description["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"], description
        )
        for name in schema.get("required", []):
            reply = web.post(path, json={k: v for k, v in body.items() if k != name})
            assert refused(reply, 400, name)["param"] == name


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_an_unknown_field_names_the_nearest(web: httpx.Client, served: Served, path: str) -> None:
    body = good(served)[path]
    refused(web.post(path, json={**body, "temprature": 0.5}), 400, "temprature", "temperature")
    refused(web.post(path, json={**body, "zzzzz": 0.5}), 400, "zzzzz")
    works(web, served, path)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/tokenize"])
@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"{'model': 'x'}", b'{"model": "x",}', b"[1]", b"null", b"\xff\xff", b"[" * 100_000, b'{"a": NaN}'],
    ids=["empty", "open", "single quotes", "trailing comma", "array", "null", "not UTF-8", "deep", "NaN"],
)
def test_what_is_not_json_is_said_so(web: httpx.Client, served: Served, path: str, body: bytes) -> None:
    refused(web.post(path, content=body, headers={"Content-Type": "application/json"}), 400)
    works(web, served)


def test_an_unknown_model_lists_those_there_are(web: httpx.Client, served: Served) -> None:
    for path, body in good(served).items():
        error = refused(web.post(path, json={**body, "model": "gpt-7"}), 404, "gpt-7", served.model)
        assert error["code"] == "model_not_found"
    works(web, served)


def test_a_body_of_100_mb_is_refused_before_it_is_read(web: httpx.Client, served: Served) -> None:
    def stream() -> Iterator[bytes]:
        for _ in range(100):
            yield b"x" * (1 << 20)

    for content in (b"x" * (100 << 20), stream()):
        try:
            reply = web.post("/v1/completions", content=content, headers={"Content-Type": "application/json"})
        except (httpx.WriteError, httpx.ReadError, httpx.RemoteProtocolError):
            pass  # hung up on while still sending: what many servers do
        else:
            refused(reply, 413)
        works(web, served)


def test_a_prompt_at_the_limit_is_served_and_one_above_is_not(web: httpx.Client, served: Served) -> None:
    limit = served.max_model_len
    body = {"model": served.model, "max_tokens": 1}
    at = web.post("/v1/completions", json={**body, "prompt": [5] * (limit - 1)})
    assert at.status_code == 200, at.text
    assert at.json()["usage"] == {**at.json()["usage"], "prompt_tokens": limit - 1, "completion_tokens": 1}
    for prompt in ([5] * limit, [5] * (limit + 1), "word " * limit):
        error = refused(web.post("/v1/completions", json={**body, "prompt": prompt}), 400, str(limit))
        assert error["code"] == "context_length_exceeded"
    long = {"role": "user", "content": "word " * limit}
    reply = web.post("/v1/chat/completions", json={"model": served.model, "messages": [long], "max_tokens": 1})
    assert refused(reply, 400, str(limit))["code"] == "context_length_exceeded"
    works(web, served)


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": []},
        {"prompt": None},
        {"prompt": [[]]},
        {"prompt": [-1]},
        {"prompt": [10**9]},
        {"prompt": [1.5]},
        {"suffix": "end"},
        {"stop": [""]},
        {"stop": ["a"] * 100},
        {"logprobs": 10**6},
        {"logprobs": -1},
        {"n": 0},
        {"logit_bias": {"a": 1}},
        {"logit_bias": {"999999": 1}},
        {"stop_token_ids": [10**7]},
        {"seed": -(2**70)},
        {"max_tokens": -1},
        {"best_of": 5},
        {"stream_options": {"include_usage": True}},
    ],
    ids=lambda fields: f"{fields}"[:30],
)
def test_values_out_of_range_name_their_field(web: httpx.Client, served: Served, fields: dict[str, Any]) -> None:
    (name,) = fields
    reply = web.post("/v1/completions", json={**good(served)["/v1/completions"], **fields})
    assert name in refused(reply, 400)["message"] + str(reply.json()["error"]["param"])
    works(web, served)


def test_keys_are_asked_for_and_never_shown(served: Served) -> None:
    mistakes = (None, "Bearer wrong", KEY, "Basic x")
    with httpx.Client(base_url=served.url, timeout=60) as web:
        for path, body in good(served).items():
            for mistake in mistakes:
                reply = web.post(path, json=body, headers={} if mistake is None else {"Authorization": mistake})
                assert refused(reply, 401)["code"] == "invalid_api_key"
                assert "wrong" not in reply.text
                assert reply.headers["www-authenticate"].startswith("Bearer")
        for path in ("/v1/internal/config", "/v1/internal/decisions/1"):
            refused(web.get(path), 401)
            refused(web.get(path, headers={"Authorization": f"Bearer {KEY}"}), (401, 403))
        config = web.get("/v1/internal/config", headers={"Authorization": f"Bearer {ADMIN_KEY}"})
        assert config.status_code == 200
        assert KEY not in config.text
        assert ADMIN_KEY not in config.text


def test_other_methods_paths_and_types_are_refused_in_the_same_form(web: httpx.Client, served: Served) -> None:
    refused(web.get("/v1/completions"), 405)
    refused(web.post("/v1/models"), 405)
    refused(web.get("/v1/nothing"), 404)
    refused(web.get("/v1/models/nobody"), 404, "nobody")
    refused(web.post("/v1/images/generations", json={}), 404)
    body = json.dumps(good(served)["/v1/completions"])
    refused(web.post("/v1/completions", content=body, headers={"Content-Type": "text/plain"}), 415)
    works(web, served)
