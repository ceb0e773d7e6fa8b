"""Formats by name, and which of them a model writes."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Container, Sequence

import msgspec

from paceline.errors import ConfigError
from paceline.text.tools import bare, hermes, mistral, pythonic
from paceline.text.tools.events import ToolParser, ToolSpec

DEFAULT_FORMAT = "hermes"


class ToolFormat(msgspec.Struct, frozen=True):
    """`markers`: texts that are single tokens in some vocabularies. Where they are special tokens, a parser must be
    given them all the same."""

    name: str
    parser: Callable[[Sequence[ToolSpec]], ToolParser]
    markers: tuple[str, ...] = ()


FORMATS: dict[str, ToolFormat] = {
    each.name: each
    for each in (
        ToolFormat("hermes", hermes.HermesParser, (hermes.BEGIN, hermes.END)),
        ToolFormat("qwen3_coder", hermes.HermesParser, (hermes.BEGIN, hermes.END)),
        ToolFormat("llama3_json", bare.Llama3Parser, (bare.PYTHON_TAG, bare.PYTHON_START, bare.PYTHON_END)),
        ToolFormat("mistral", mistral.MistralParser, (mistral.BEGIN,)),
        ToolFormat("mistral_args", mistral.MistralParser, (mistral.BEGIN, mistral.CALL_ID, mistral.ARGS)),
        ToolFormat("pythonic", pythonic.PythonicParser, pythonic.MARKERS),
        ToolFormat("json", bare.JsonParser, bare.JSON_MARKERS),
    )
}

# What in a template tells its format, the surest first.
_IN_TEMPLATE: tuple[tuple[str | None, re.Pattern[str]], ...] = (
    (None, re.compile(r"<arg_key>|<[\w:]+:tool_call>")),  # GLM, MiniMax, Seed: like others, and not the same
    ("qwen3_coder", re.compile(r"<tool_call>.*<function=.*<parameter=", re.DOTALL)),
    ("hermes", re.compile(r"<tool_call>")),
    ("mistral_args", re.compile(r"\[ARGS\]")),
    ("mistral", re.compile(r"\[TOOL_CALLS\]|\[AVAILABLE_TOOLS\]")),
    ("pythonic", re.compile(r"```tool_code|\[func_name1\(|<\|tool_call_start\|>")),
    ("json", re.compile(r"<\|tool_call\|>|<TOOLCALL>")),
    ("llama3_json", re.compile(r"\{\\?\"name\\?\":[^{}]{0,80}\\?\"parameters\\?\":")),
    ("pythonic", re.compile(r"<\|python_start\|>")),
    ("llama3_json", re.compile(r"<\|python_tag\|>")),
)
_IN_VOCABULARY = (
    ("mistral_args", "[ARGS]"),
    ("mistral", "[TOOL_CALLS]"),
    ("pythonic", "<|tool_call_start|>"),
    ("json", "<|tool_call|>"),
    ("pythonic", "<|python_start|>"),
    ("llama3_json", "<|python_tag|>"),
    ("hermes", "<tool_call>"),
)
_CODE = re.compile(r"\{[{%](.*?)[%}]\}", re.DOTALL)
_STRING = re.compile(r"'[^']*'|\"[^\"]*\"")
_TOOLS = re.compile(r"(?<![\w.])(?:custom_)?tools\b")


def get_format(name: str) -> ToolFormat:
    """Raises ConfigError, with the nearest name, for one that does not exist."""
    found = FORMATS.get(name)
    if found is None:
        close = difflib.get_close_matches(str(name)[:80], FORMATS, n=1)
        raise ConfigError(
            "there is no tool format of this name",
            seen=f"{name!r:.80}",
            expected=", ".join(FORMATS),
            fix=f"did you mean {close[0]}?" if close else "",
        )
    return found


def make_parser(format: str, tools: Sequence[ToolSpec] = ()) -> ToolParser:
    """A parser for one answer. It must be fed the text of the answer with the format's `markers` shown, also where the
    vocabulary has them as special tokens, and without what ends the answer (end-of-sequence tokens, stop strings).
    Text of reasoning must not be fed. Raises ConfigError for an unknown format."""
    return get_format(format).parser(tools)


def detect_format(chat_template: str | None, vocabulary: Container[str] = ()) -> str | None:
    """The format that a model was taught, by its template; else by markers that are in its vocabulary. None when
    neither says, or the template says another than these."""
    for name, pattern in _IN_TEMPLATE if chat_template else ():
        if pattern.search(chat_template or ""):
            return name
    for name, marker in _IN_VOCABULARY:
        if marker in vocabulary:
            return name
    return None


def takes_tools(chat_template: str | None) -> bool:
    """Does a template show the model the tools it is given? If not, `system_block` has to."""
    return any(_TOOLS.search(_STRING.sub("", code)) for code in _CODE.findall(chat_template or ""))
