"""The bodies of /v1/messages and /v1/messages/count_tokens, in Anthropic's form, and the chat they ask for."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, WithJsonSchema

from paceline.contracts.request import shown
from paceline.errors import RequestError
from paceline.server.api.protocol.blocks import BlockMessages, System
from paceline.server.api.protocol.fields import Stop
from paceline.server.api.protocol.functions import Functions, chat_choice, chat_tools, flat_functions, neutral_schemas
from paceline.server.api.protocol.parts import only, wrong
from paceline.server.api.protocol.renamed import Names
from paceline.server.api.protocol.shared import SharedFields
from paceline.server.api.protocol.tools import NAME_SCHEMA

_NAMES = (
    (r"messages\[.*|continue_final_message$", "messages"),  # places differ
    (r"max_completion_tokens$", "max_tokens"),
    (r"stop(\[\d+\])?$", "stop_sequences"),
    (r"(tools\[\d+\])\.function\.parameters", r"\1.input_schema"),
    (r"(tools\[\d+\])\.function", r"\1"),
    (r"tool_choice\.function", "tool_choice"),
)
"""A chat's parameters as they are called here."""

_CHOICES = {"auto": "auto", "any": "required", "none": "none", "tool": None}
_NEUTRAL = {"defer_loading": (False,), "allowed_callers": (["direct"],)}
_TAKEN = ("cache_control", "input_examples", "eager_input_streaming")


def _tools(value: Any) -> Functions | None:
    return flat_functions(value, kind="custom", schema_key="input_schema", neutral=_NEUTRAL, taken=_TAKEN)


def _choice(value: Any) -> Any:
    """How a tool is to be chosen, as it came."""
    if value is None:
        return None
    kind = value.get("type") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not isinstance(kind, str) or kind not in _CHOICES:
        raise wrong("tool_choice", value, f'{{"type": one of {", ".join(_CHOICES)}}}')
    only(value, "tool_choice", used=("type", "name", "disable_parallel_tool_use"))
    alone = value.get("disable_parallel_tool_use")
    if alone is not None and not isinstance(alone, bool):
        raise wrong("tool_choice.disable_parallel_tool_use", alone, "true or false")
    if kind != "tool" and value.get("name") is not None:
        raise RequestError("only type tool has a name", param="tool_choice.name", seen=shown(kind), fix="leave it out")
    return value


def _thinking(value: Any) -> Any:
    if value is not None and value != {"type": "disabled"}:
        raise RequestError(
            "thinking cannot be set here",
            param="thinking",
            seen=shown(value),
            fix="leave it out: a model that reasons does so by its chat template, see chat_template_kwargs",
        )
    return value


_TOOL = {
    "type": "object",
    "properties": {
        "type": {"const": "custom"},
        "name": NAME_SCHEMA,
        "description": {"type": "string"},
        "input_schema": {"type": "object"},
        "strict": {"type": "boolean"},
        **neutral_schemas(_NEUTRAL),
        **{key: {} for key in _TAKEN},
    },
    "required": ["name", "input_schema"],
    "additionalProperties": False,
}
Tools = Annotated[
    Any, BeforeValidator(_tools), WithJsonSchema({"anyOf": [{"type": "array", "items": _TOOL}, {"type": "null"}]})
]
ToolChoice = Annotated[
    Any,
    BeforeValidator(_choice),
    WithJsonSchema(
        {
            "anyOf": [
                {
                    "type": "object",
                    "properties": {"type": {"enum": list(_CHOICES)}, "name": {"type": "string"}},
                    "required": ["type"],
                    "additionalProperties": False,
                },
                {"type": "null"},
            ]
        }
    ),
]
Thinking = Annotated[Any, BeforeValidator(_thinking), WithJsonSchema({"enum": [{"type": "disabled"}, None]})]


class CountRequest(SharedFields):
    """What a prompt is made of; the tokens of it are counted."""

    messages: BlockMessages
    system: System = None
    tools: Tools = None
    tool_choice: ToolChoice = None
    thinking: Thinking = None
    # taken and not used: they describe the caller, or ask for what is done anyway
    metadata: dict[str, Any] | None = None
    cache_control: dict[str, Any] | None = None
    user_profile_id: str | None = None
    workspace_id: str | None = None

    NAMES: ClassVar[Names] = _NAMES
    REFUSED: ClassVar[dict[str, tuple[tuple[Any, ...], str]]] = {
        "mcp_servers": (([],), "the server calls no other servers"),
        "container": ((), "the server runs no code"),
        "context_management": ((), "prompts are not cut silently"),
        "output_config": (({},), "use /v1/chat/completions or /v1/responses for a schema of answers"),
        "output_format": ((), "use /v1/chat/completions or /v1/responses for a schema of answers"),
        "inference_geo": ((), "the server runs where it is"),
        "diagnostics": (({},), "nothing of earlier messages is stored"),
        "speed": (("standard",), "there is one speed"),
    }

    def chat_fields(self) -> dict[str, Any]:
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        fields: dict[str, Any] = {
            "messages": [*system, *self.messages],
            "tools": chat_tools(self.tools, "input_schema"),
        }
        last = self.messages[-1]
        if last["role"] == "assistant" and "tool_calls" not in last:
            fields["continue_final_message"] = True  # the answer goes on from there
        if (choice := self.tool_choice) is not None:
            fields["tool_choice"] = _CHOICES[choice["type"]] or chat_choice(choice, "tool_choice")
            if (alone := choice.get("disable_parallel_tool_use")) is not None:
                fields["parallel_tool_calls"] = not alone
        return fields


class MessagesRequest(CountRequest):
    max_tokens: int
    stop_sequences: Stop = None
    service_tier: str | None = None  # taken and not used

    REFUSED: ClassVar[dict[str, tuple[tuple[Any, ...], str]]] = CountRequest.REFUSED | {
        "stop": ((), "it is called stop_sequences here"),
        "n": ((1,), "a message is one answer"),
    }

    def chat_fields(self) -> dict[str, Any]:
        return super().chat_fields() | {"max_tokens": self.max_tokens, "stop": self.stop_sequences}
