"""Structured output over HTTP: every spelling of it, streamed and not, with n, logprobs and limits; and its refusals.

The model is a toy that draws at random among what the grammar allows, so a text that holds was held by the mask.
"""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest
from tests.fakes.api_server import api_server, events, finishes, run, texts

from paceline.engine import row_grammars
from paceline.server import grammars

DIGITS = r"[0-9]{3}-[ab]{2}"
FLAG = {
    "type": "object",
    "properties": {"on": {"type": "boolean"}, "kind": {"enum": ["x", "y"]}},
    "required": ["on", "kind"],
    "additionalProperties": False,
}
NAMED = {"type": "json_schema", "json_schema": {"name": "flag", "schema": FLAG, "strict": True}}


def is_flag(text: str) -> bool:
    value = json.loads(text)
    return set(value) == {"on", "kind"} and isinstance(value["on"], bool) and value["kind"] in ("x", "y")


def is_digits(text: str) -> bool:
    return re.fullmatch(DIGITS, text) is not None


SPELLINGS: list[tuple[dict[str, Any], Any]] = [
    ({"response_format": NAMED}, is_flag),
    ({"structured_outputs": {"json": FLAG}}, is_flag),
    ({"structured_outputs": {"json": json.dumps(FLAG)}}, is_flag),
    ({"structured_outputs": {"json": FLAG, "disable_any_whitespace": True}}, lambda t: is_flag(t) and " " not in t),
    ({"guided_json": FLAG}, is_flag),
    ({"guided_json": FLAG, "guided_whitespace_pattern": "[ ]?"}, lambda t: is_flag(t) and "\n" not in t),
    ({"structured_outputs": {"regex": DIGITS}}, is_digits),
    ({"guided_regex": DIGITS}, is_digits),
    ({"structured_outputs": {"choice": ["été", "no"]}}, lambda t: t in ("été", "no")),
    ({"guided_choice": ["yes", "no"]}, lambda t: t in ("yes", "no")),
    ({"structured_outputs": {"grammar": 'start: "a" "b" | "c"'}}, lambda t: t in ("ab", "c")),
    ({"guided_grammar": 'root ::= "a" x\nx ::= "b" | "d"'}, lambda t: t in ("ab", "ad")),
]


@pytest.mark.parametrize(("fields", "holds"), SPELLINGS, ids=[json.dumps(f)[:60] for f, _ in SPELLINGS])
def test_every_spelling_holds_streamed_and_whole(fields: dict[str, Any], holds: Any) -> None:
    async def scene() -> None:
        async with api_server() as server:
            for seed in range(3):
                how = {"max_tokens": 90, "temperature": 1.0, "seed": seed, **fields}
                whole = (await server.chat(**how)).json()["choices"][0]
                assert holds(whole["message"]["content"]), whole
                assert (whole["finish_reason"], whole["stop_reason"]) == ("stop", None)
                chunks = events(await server.chat(stream=True, **how))
                assert texts(chunks) == {0: whole["message"]["content"]}
                assert finishes(chunks) == {0: "stop"}
                completed = (await server.complete(**how)).json()["choices"][0]
                assert holds(completed["text"]), completed
            await server.settled()

    run(scene)


def test_json_object_begins_an_object_and_text_changes_nothing() -> None:
    async def scene() -> None:
        async with api_server() as server:
            how = {"max_tokens": 12, "temperature": 1.0, "seed": 1}
            answer = (await server.chat(response_format={"type": "json_object"}, **how)).json()
            assert answer["choices"][0]["message"]["content"].startswith("{")
            plain = (await server.chat(**how)).json()["choices"]
            assert (await server.chat(response_format={"type": "text"}, **how)).json()["choices"] == plain

    run(scene)


def test_choices_logprobs_usage_and_ids_agree() -> None:
    async def scene() -> None:
        async with api_server() as server:
            fields = {"guided_regex": DIGITS, "n": 3, "temperature": 1.0, "logprobs": True, "top_logprobs": 0}
            answer = (await server.chat(max_tokens=40, seed=4, return_token_ids=True, **fields)).json()
            found = [choice["message"]["content"] for choice in answer["choices"]]
            assert all(map(is_digits, found))
            assert len(set(found)) > 1
            counts = [len(choice["logprobs"]["content"]) for choice in answer["choices"]]
            assert counts == [len(choice["token_ids"]) for choice in answer["choices"]]
            assert answer["usage"]["completion_tokens"] == sum(counts)

    run(scene)


def test_a_grammar_cut_by_the_limit_says_length() -> None:
    async def scene() -> None:
        async with api_server() as server:
            choice = (await server.chat(max_tokens=2, response_format=NAMED)).json()["choices"][0]
            assert choice["finish_reason"] == "length"
            assert not choice["message"]["content"].endswith("}")

    run(scene)


def test_a_stop_string_ends_within_a_grammar() -> None:
    async def scene() -> None:
        async with api_server() as server:
            answer = await server.chat(max_tokens=40, guided_regex=DIGITS, stop=["-"], temperature=1.0, seed=2)
            choice = answer.json()["choices"][0]
            assert re.fullmatch("[0-9]{3}", choice["message"]["content"])
            assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "-")

    run(scene)


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"guided_regex": "("}, "guided_regex", "unclosed group"),
    ({"structured_outputs": {"regex": "a(?=b)"}}, "structured_outputs.regex", "look-around"),
    ({"structured_outputs": {}}, "structured_outputs", "asks for nothing"),
    ({"structured_outputs": {"json_object": False}}, "structured_outputs", "asks for nothing"),
    ({"structured_outputs": {"jsn": {}}}, "structured_outputs.jsn", "json"),
    ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag", "use grammar"),
    ({"structured_outputs": {"json": "{"}}, "structured_outputs.json", "not valid JSON"),
    ({"structured_outputs": {"choice": ["a"], "regex": "b"}}, "structured_outputs.choice", "one grammar"),
    ({"guided_choice": ["a"], "response_format": {"type": "json_object"}}, "guided_choice", "one grammar"),
    ({"guided_choice": []}, "guided_choice", "at least one"),
    ({"guided_whitespace_pattern": " "}, "guided_whitespace_pattern", "guided_json"),
    ({"guided_whitespace_pattern": " ", "guided_regex": "a"}, "guided_whitespace_pattern", "guided_json"),
    (
        {"structured_outputs": {"regex": "a", "whitespace_pattern": " "}},
        "structured_outputs.whitespace_pattern",
        "JSON",
    ),
    ({"structured_outputs": {"choice": ["a"], "strict": False}}, "structured_outputs.strict", "JSON"),
    (
        {"structured_outputs": {"json": {}, "whitespace_pattern": " ", "disable_any_whitespace": True}},
        "structured_outputs.whitespace_pattern",
        "exclude each other",
    ),
    ({"response_format": {"type": "json_schema"}}, "response_format", "json_schema is missing"),
    ({"response_format": {"type": "xml"}}, "response_format.type", "json_object"),
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"not": {}}}}}, "response_format", "not"),
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": False}}}, "response_format", "nothing can"),
    ({"guided_json": {"enum": ["x" * 300_000]}}, "guided_json", "too long"),
    ({"guided_grammar": "start: x"}, "guided_grammar", "unknown name"),
    (
        {"response_format": {"type": "structural_tag", "structures": []}},
        "response_format.structures",
        "use structured_",
    ),
    ({"guided_json": {"$ref": "#"}}, "guided_json", "leads only to itself"),
    ({"guided_regex": ""}, "guided_regex", "seen: ''"),
]


@pytest.mark.parametrize(("fields", "param", "words"), REFUSED, ids=[f"{p}-{w}" for _, p, w in REFUSED])
def test_a_grammar_that_is_wrong_is_a_400_that_names_its_field(fields: dict[str, Any], param: str, words: str) -> None:
    async def scene() -> None:
        async with api_server() as server:
            for stream in (False, True):
                answer = await server.chat(stream=stream, **fields)
                assert answer.status_code == 400, answer.text
                error = answer.json()["error"]
                assert error["param"] == param
                assert words in error["message"]
            assert (await server.chat(max_tokens=2)).status_code == 200
            await server.settled()

    run(scene)


def test_what_cannot_be_enforced_is_left_out_with_strict_false() -> None:
    async def scene() -> None:
        async with api_server() as server:
            schema = {**FLAG, "not": {"required": ["z"]}}
            named = {"type": "json_schema", "json_schema": {"name": "f", "schema": schema, "strict": False}}
            for fields in ({"response_format": named}, {"structured_outputs": {"json": schema, "strict": False}}):
                answer = await server.chat(max_tokens=90, temperature=1.0, seed=3, **fields)
                assert is_flag(answer.json()["choices"][0]["message"]["content"])

    run(scene)


def test_an_engine_that_finds_no_time_to_compile_is_a_503(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammars, "COMPILE_LIMIT_S", 0.0)

    async def scene() -> None:
        async with api_server() as server:
            monkeypatch.setattr(server.engine, "prepare_grammar", lambda _grammar: False)
            answer = await server.chat(guided_regex="a")
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine")
            assert "Retry-After" in answer.headers
            assert (await server.chat(max_tokens=2)).status_code == 200
            await server.settled()

    run(scene)


@pytest.mark.parametrize("stream", [False, True])
def test_a_grammar_that_fails_on_the_way_is_the_clients_to_mend(monkeypatch: pytest.MonkeyPatch, stream: bool) -> None:
    """Limits that no trial met: a 400 while there is a status to send, then an event; others go on."""

    async def scene() -> None:
        async with api_server() as server:
            fields = {"guided_regex": "[ab]{30}", "max_tokens": 40, "seed": 1}
            assert (await server.chat(**fields)).status_code == 200
            other = asyncio.create_task(server.chat(max_tokens=30, seed=2))
            monkeypatch.setattr(row_grammars, "MAX_MASK_S", -1.0)
            answer = await server.chat(stream=stream, **fields)
            assert answer.status_code == 400
            error = answer.json()["error"]
            assert (error["type"], error["param"]) == ("invalid_request_error", "guided_regex")
            assert "fix: " in error["message"]
            assert (await other).status_code == 200
            await server.settled()

    run(scene)
