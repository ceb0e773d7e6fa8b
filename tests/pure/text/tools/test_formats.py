"""Which format a model writes, formats by name, and the texts around them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline.errors import ConfigError, RequestError
from paceline.text.tools import (
    DEFAULT_FORMAT,
    FORMATS,
    ArgumentsDelta,
    CallEnded,
    CallStarted,
    Text,
    Tidied,
    ToolCall,
    ToolSpec,
    collect,
    detect_format,
    get_format,
    make_parser,
    serialise,
    system_block,
    takes_tools,
)

TEMPLATES = Path(__file__).parent.parent / "templates"


@pytest.mark.parametrize(
    ("template", "vocabulary", "expected"),
    [
        ("{{ '<tool_call>\\n' + (call | tojson) + '\\n</tool_call>' }}", (), "hermes"),
        ("{{ '<tool_call>\\n<function=' + name + '>\\n<parameter=' + key + '>' }}", (), "qwen3_coder"),
        ("{{ '[TOOL_CALLS]' + name + '[ARGS]' + arguments }}", (), "mistral_args"),
        ("{{ '[TOOL_CALLS] [' + calls + ']' }}", (), "mistral"),
        ('{{ \'{"name": "\' + call.name + \'", "parameters": \' }}', (), "llama3_json"),
        ('Respond as {\\"name\\": function name, \\"parameters\\": dictionary}', ("<|python_start|>",), "llama3_json"),
        ("Write [func_name1(params_name1=value)]", ("<|python_tag|>",), "pythonic"),
        ("Write them in ```tool_code blocks", (), "pythonic"),
        ("{{ '<|python_start|>' }}", (), "pythonic"),
        ("{{ '<|tool_call_start|>[' }}", (), "pythonic"),
        ("{{ '<|tool_call|>' + (calls | tojson) }}", (), "json"),
        ("{{ '<tool_call>' + name + '<arg_key>' }}", {"<tool_call>"}, None),
        ("{{ '<seed:tool_call><function=' + name + '><parameter=' }}", (), None),
        ("{{ message.content }}", (), None),
        ("{{ message.content }}", ("[TOOL_CALLS]",), "mistral"),
        ("{{ message.content }}", ("[TOOL_CALLS]", "[ARGS]"), "mistral_args"),
        ("{{ message.content }}", {"<tool_call>": 5}, "hermes"),
        (None, {"<|python_tag|>"}, "llama3_json"),
        (None, (), None),
    ],
)
def test_a_template_tells_its_format_else_the_vocabulary(
    template: str | None, vocabulary: object, expected: str | None
):
    assert detect_format(template, vocabulary) == expected


@pytest.mark.parametrize(
    ("name", "expected", "takes"),
    [
        ("llama3", "llama3_json", False),
        ("mistral", "mistral", True),
        ("qwen", None, True),
        ("chatml", None, False),
        ("gemma", None, False),
    ],
)
def test_templates_of_model_families(name: str, expected: str | None, takes: bool):
    template = (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")
    assert detect_format(template) == expected
    assert takes_tools(template) == takes


@pytest.mark.parametrize(
    ("template", "takes"),
    [
        ("{%- if tools %}{{ tools | tojson }}{% endif %}", True),
        ("{%- if custom_tools is defined %}{% endif %}", True),
        ("{{ 'You have no tools.' }} tools", False),
        ("{% if message.tools %}{% endif %}{{ tools_used }}", False),
        (None, False),
    ],
)
def test_whether_a_template_takes_tools(template: str | None, takes: bool):
    assert takes_tools(template) == takes


def test_formats_by_name():
    assert DEFAULT_FORMAT in FORMATS
    assert all(get_format(name).name == name for name in FORMATS)
    with pytest.raises(ConfigError, match="did you mean llama3_json"):
        make_parser("llama3-json")
    with pytest.raises(ConfigError, match="expected: hermes, "):
        serialise("xyz", [])


@pytest.mark.parametrize("format", FORMATS)
def test_the_system_block_shows_tools_and_a_call_that_is_read_back(format: str):
    tools = [ToolSpec("f", "Does é.", {"type": "object", "properties": {"a": {"type": "integer"}}}), ToolSpec("g")]
    block = system_block(format, tools)
    described = [
        json.loads(line) for line in block.splitlines() if line.startswith('{"name": "f"') or line == '{"name": "g"}'
    ]
    assert described == [
        {"name": "f", "description": "Does é.", "parameters": tools[0].parameters},
        {"name": "g"},
    ]
    example = ToolCall("TOOL_NAME", '{"ARGUMENT_NAME": "value"}')
    assert serialise(format, [example]) in block
    assert serialise(format, [example, example]) in block


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("arguments", ["", "[]", "{", '{"a": NaN}', '"{}"', "{} {}"])
def test_arguments_that_are_no_object_are_not_written(format: str, arguments: str):
    with pytest.raises(RequestError, match="JSON text of an object") as caught:
        serialise(format, [ToolCall("f", "{}"), ToolCall("f", arguments)])
    assert caught.value.param == "tool_calls"


@pytest.mark.parametrize("format", FORMATS)
def test_no_calls_are_no_text(format: str):
    assert serialise(format, []) == ""
    assert make_parser(format).finish() == []


def test_collect_puts_broken_calls_back_and_keeps_cut_ones():
    parsed = collect(
        [
            Text("a "),
            CallStarted(0, "f"),
            ArgumentsDelta(0, "{"),
            ArgumentsDelta(0, "}"),
            CallEnded(0, "complete", "<f>"),
            CallStarted(1, "g"),
            ArgumentsDelta(1, "{1"),
            CallEnded(1, "broken", "<g>"),
            Text(" b"),
            CallStarted(2, "h"),
            CallEnded(2, "cut", "<h"),
        ]
    )
    assert parsed.text == "a <g> b"
    assert parsed.calls == [ToolCall("f", "{}"), ToolCall("h", "", whole=False)]
    assert parsed.cut


def test_tidied_holds_white_space_until_it_is_known():
    parser = Tidied(make_parser("hermes"))
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    assert parser.feed(" So. \n") == [Text(" So.")]
    assert parser.feed("Well\n\n") == [Text(" \nWell")]
    assert [type(event) for event in parser.feed(call)] == [CallStarted, ArgumentsDelta, CallEnded]
    assert parser.feed("\n") == []
    assert [type(event) for event in parser.feed(call)] == [CallStarted, ArgumentsDelta, CallEnded]
    assert parser.feed(" \n") == []
    assert parser.finish() == []
    parser = Tidied(make_parser("hermes"))
    assert parser.feed("So. ") == [Text("So.")]
    assert parser.finish() == [Text(" ")]


@pytest.mark.parametrize("format", ["pythonic", "qwen3_coder", "hermes"])
def test_arguments_that_no_parser_would_read_are_refused(format: str):
    deep = '{"a":' * 600 + "1" + "}" * 600
    with pytest.raises(RequestError, match="nest too deep") as caught:
        serialise(format, [ToolCall("f", deep)])
    assert caught.value.param == "tool_calls"
