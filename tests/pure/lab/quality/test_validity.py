"""Whether an answer may count: each validator says yes and no where it must."""

import pytest

from paceline.contracts.workload import PlannedRequest, RenderedPrompt, SloClass
from paceline.errors import ConfigError
from paceline.lab.quality import check_names, validate
from paceline.lab.quality.validity import are_calls_valid, is_whole, parse, satisfies

SCHEMA = {"type": "object", "properties": {"age": {"type": "integer", "minimum": 0}}, "required": ["age"]}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"],
    "additionalProperties": False}}}]  # fmt: skip


def request(exact: bool = False, **extra: object) -> PlannedRequest:
    return PlannedRequest(id=0, stream="s", exact_output=exact, extra=dict(extra))


def prompt(**fields: object) -> RenderedPrompt:
    return RenderedPrompt(text="x", **fields)  # type: ignore[arg-type]


def call(name: str, arguments: object) -> dict[str, object]:
    return {"id": "1", "type": "function", "function": {"name": name, "arguments": arguments}}


@pytest.mark.parametrize(
    ("reason", "exact", "whole"),
    [("stop", False, True), ("tool_calls", False, True), ("length", False, False), ("length", True, True),
     ("content_filter", True, False), (None, True, False)],
)  # fmt: skip
def test_a_truncated_answer_does_not_count_unless_its_length_was_forced(reason, exact, whole):
    assert is_whole(reason, exact_length=exact) is whole
    assert validate(request(exact), prompt(), "hi", None, reason) == {"not_truncated": whole}


@pytest.mark.parametrize(
    ("text", "is_json"),
    [('{"a": 1}', True), (" [1, 2]\n", True), ("3", True), ("NaN", False), ('{"a": Infinity}', False),
     ('```json\n{"a": 1}\n```', False), ('{"a": 1} and more', False), ("", False), ("[" * 100_000, False)],
)  # fmt: skip
def test_json_is_one_value_and_nothing_around_it(text, is_json):
    assert parse(text)[1] is is_json


def test_a_schema_of_the_prompt_or_of_the_body_is_checked():
    carried = {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}}
    for given in (prompt(schema=SCHEMA), prompt(body=carried)):
        assert validate(request(), given, '{"age": 3}', None, "stop") == {
            "not_truncated": True,
            "json": True,
            "schema": True,
        }
        assert not validate(request(), given, '{"age": -3}', None, "stop")["schema"]
        broken = validate(request(), given, '{"age": 3', None, "length")
        assert broken == {"not_truncated": False, "json": False, "schema": False}


def test_json_mode_asks_for_json_and_no_schema():
    found = validate(request(response_format={"type": "json_object"}), prompt(), "[]", None, "stop")
    assert found == {"not_truncated": True, "json": True}


def test_what_is_no_schema_is_refused_and_nothing_is_fetched():
    with pytest.raises(ConfigError, match="not a JSON Schema"):
        satisfies({}, {"type": "objekt"})
    with pytest.raises(ConfigError, match="refers to something"):
        satisfies({"a": 1}, {"properties": {"a": {"$ref": "http://127.0.0.1:9/never.json"}}})
    assert satisfies({"a": 1}, {"properties": {"a": {"$ref": "#/$defs/n"}}, "$defs": {"n": {"type": "integer"}}})


@pytest.mark.parametrize(
    ("calls", "valid"),
    [
        ([call("weather", '{"city": "Oslo"}')], True),
        ([{"name": "weather", "arguments": '{"city": "Oslo"}'}], True),  # as the load generator gathers them
        ([call("weather", {"city": "Oslo"})], True),
        ([call("weather", '{"city": 3}')], False),
        ([call("weather", '{"town": "Oslo"}')], False),
        ([call("weather", "")], False),  # the city is required
        ([call("weather", '{"city": "Os')], False),
        ([call("wether", '{"city": "Oslo"}')], False),
        ([call("weather", '{"city": "Oslo"}'), call("nope", "{}")], False),
        ([], False),
        (None, False),
    ],
)
def test_a_call_names_a_tool_and_its_arguments_satisfy_the_schema(calls, valid):
    assert are_calls_valid(calls, TOOLS) is valid
    assert validate(request(), prompt(body={"tools": TOOLS}), "", calls, "tool_calls")["tool_call"] is valid


def test_the_choice_of_a_tool_is_respected():
    good = [call("weather", '{"city": "Oslo"}')]
    two = [*TOOLS, {"type": "function", "function": {"name": "clock"}}]
    assert are_calls_valid([], TOOLS, choice="none")
    assert not are_calls_valid(good, TOOLS, choice="none")
    assert not are_calls_valid(good, two, choice={"type": "function", "function": {"name": "clock"}})
    assert are_calls_valid([call("clock", None)], two, choice={"type": "function", "function": {"name": "clock"}})


def test_a_class_that_names_no_validator_of_ours_is_refused():
    check_names([SloClass(validators=("json", "tool_call"))])
    with pytest.raises(ConfigError, match="no validator of this name"):
        check_names([SloClass(validators=("jsonn",))])
