"""What templates and vocabularies tell of calls and reasoning."""

from __future__ import annotations

from pathlib import Path
from typing import get_args, get_type_hints

import pytest
from tests.fakes.api_server import byte_tokenizer

from paceline.config.server import ServerConfig
from paceline.errors import ConfigError
from paceline.text import ChatTemplate, TextPipeline
from paceline.text.dialect import AUTO, NONE, Dialect, dialect_of
from paceline.text.reasoning import FORMATS as REASONING
from paceline.text.tools import FORMATS

TEMPLATES = Path(__file__).with_name("templates")
THINK = REASONING["think"]


def pipeline(sources: dict[str, str], special: tuple[str, ...] = ()) -> TextPipeline:
    return TextPipeline(byte_tokenizer(special=special), ChatTemplate(sources))


@pytest.mark.parametrize(
    ("name", "dialect"),
    [
        ("chatml", Dialect("hermes", None, False, False)),
        ("gemma", Dialect("hermes", None, False, False)),
        ("llama3", Dialect("llama3_json", None, False, True)),
        ("mistral", Dialect("mistral", None, True, False)),
        ("qwen", Dialect(None, THINK, True, False)),  # this copy says nothing of the form of calls
    ],
)
def test_templates_tell(name: str, dialect: Dialect):
    source = (TEMPLATES / f"{name}.jinja").read_text()
    assert dialect_of(pipeline({"default": source}), tools=True) == dialect


def test_a_template_for_tools_is_asked_where_there_are_tools():
    both = pipeline({"default": "{{ m }}</think>", "tool_use": "{{ tools }}[TOOL_CALLS]"})
    assert dialect_of(both, tools=True) == Dialect("mistral", None, True, False)
    assert dialect_of(both) == Dialect("hermes", THINK, False, False)


def test_the_vocabulary_tells_where_the_template_does_not():
    assert dialect_of(pipeline({"default": "x"}, ("[TOOL_CALLS]",)), tools=True).format == "mistral"
    assert dialect_of(pipeline({}), tools=True) == Dialect("hermes", None, False, False)


def test_a_template_with_tools_and_a_format_of_its_own_is_not_guessed():
    own = pipeline({"default": "{{ tools }} <arg_key>"})
    assert dialect_of(own, tools=True).format is None
    assert dialect_of(own, tools=True, calls="json").format == "json"


def test_a_system_message_is_tried_where_tools_would_be_told_in_it():
    refusing = "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}"
    assert not dialect_of(pipeline({"default": refusing}), tools=True).takes_system
    assert dialect_of(pipeline({"default": refusing + "{{ tools }}"}), tools=True, calls="json").takes_system
    assert dialect_of(pipeline({"default": "{% no template"}), tools=True).takes_system


def test_the_operator_goes_first():
    known = pipeline({"default": "{{ tools }}<tool_call></think>"})
    assert dialect_of(known, tools=True, calls="pythonic", reasoning=NONE) == Dialect("pythonic", None, True, False)
    assert dialect_of(known, reasoning="mistral").reasoning == REASONING["mistral"]
    with pytest.raises(ConfigError, match="no tool format"):
        dialect_of(known, calls="hermse")
    with pytest.raises(ConfigError, match="no markers of reasoning"):
        dialect_of(known, reasoning="thonk")


def test_the_options_have_the_names_there_are():
    hints = get_type_hints(ServerConfig)
    assert get_args(hints["tool_call_parser"]) == (AUTO, *FORMATS)
    assert get_args(hints["reasoning_parser"]) == (AUTO, NONE, *REASONING)
