"""The body of /v1/responses, and the chat it asks for.

Nothing is stored: a client keeps the items of a conversation and sends them again. Fields that need a store are
refused.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, WithJsonSchema

from paceline.contracts.request import shown
from paceline.errors import RequestError
from paceline.server.api.protocol.body import Body
from paceline.server.api.protocol.fields import Stop
from paceline.server.api.protocol.functions import Functions, chat_choice, chat_tools, flat_functions, neutral_schemas
from paceline.server.api.protocol.parts import only, wrong
from paceline.server.api.protocol.renamed import Names
from paceline.server.api.protocol.response_input import Input
from paceline.server.api.protocol.shared import SharedFields
from paceline.server.api.protocol.structured import JsonSchema
from paceline.server.api.protocol.tools import NAME_SCHEMA

_NAMES = (
    (r"messages(\[.*)?$", "input"),  # places differ
    (r"max_(completion_)?tokens$", "max_output_tokens"),
    (r"response_format(\.json_schema)?", "text.format"),
    (r"(tools\[\d+\])\.function", r"\1"),
    (r"tool_choice\.function", "tool_choice"),
    (r"reasoning_effort", "reasoning.effort"),
)
"""A chat's parameters as they are called here."""

LOGPROBS = "message.output_text.logprobs"
INCLUDED = (LOGPROBS, "reasoning.encrypted_content")  # the second adds nothing: reasoning is given as it is
_STORED = "nothing is stored: send the items of earlier turns in input"
_NEUTRAL = {"defer_loading": (False,), "async": (False,), "allowed_callers": (["direct"],), "output_schema": ()}


def _tools(value: Any) -> Functions | None:
    return flat_functions(value, kind="function", schema_key="parameters", neutral=_NEUTRAL)


def _choice(value: Any) -> Any:
    """How a function is to be chosen, as it came."""
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, dict) or value.get("type") != "function":
        expected = '"auto", "none", "required" or {"type": "function", "name": ...}'
        raise wrong("tool_choice", value, expected)
    only(value, "tool_choice", used=("type", "name"))
    return value


def _include(value: Any) -> Any:
    if value is not None:
        if not isinstance(value, list):
            raise wrong("include", value, "a list")
        if (other := next((name for name in value if name not in INCLUDED), None)) is not None:
            raise RequestError(
                "include names something that answers do not have",
                param="include",
                seen=shown(other),
                expected=f"of {', '.join(INCLUDED)}",
            )
    return value


_NAMED = {
    "type": "object",
    "properties": {"type": {"const": "function"}, "name": {"type": "string"}},
    "required": ["type", "name"],
    "additionalProperties": False,
}
_FUNCTION = {
    "type": "object",
    "properties": {
        "type": {"const": "function"},
        "name": NAME_SCHEMA,
        "description": {"type": "string"},
        "parameters": {"type": "object"},
        "strict": {"type": "boolean"},
        **neutral_schemas(_NEUTRAL),
    },
    "required": ["type", "name"],
    "additionalProperties": False,
}
Tools = Annotated[
    Any,
    BeforeValidator(_tools),
    WithJsonSchema({"anyOf": [{"type": "array", "items": _FUNCTION}, {"type": "null"}]}),
]
ToolChoice = Annotated[
    Any,
    BeforeValidator(_choice),
    WithJsonSchema({"anyOf": [{"enum": ["auto", "none", "required", None]}, _NAMED]}),
]
Include = Annotated[
    Any,
    BeforeValidator(_include),
    WithJsonSchema({"anyOf": [{"type": "array", "items": {"enum": list(INCLUDED)}}, {"type": "null"}]}),
]


class TextFormat(JsonSchema):
    type: Literal["text", "json_object", "json_schema"]
    PART: ClassVar[str] = "text.format"


class TextOptions(Body):
    format: TextFormat | None = None
    PART: ClassVar[str] = "text"
    REFUSED: ClassVar[dict[str, tuple[tuple[Any, ...], str]]] = {
        "verbosity": (("medium",), "the model has no such setting"),
    }

    def plain(self) -> dict[str, Any]:
        """As it came."""
        return self.model_dump(by_alias=True, exclude_none=True)


class ReasoningOptions(Body):
    effort: str | None = None
    summary: str | None = None  # taken and not used: reasoning comes whole
    generate_summary: str | None = None
    PART: ClassVar[str] = "reasoning"
    REFUSED: ClassVar[dict[str, tuple[tuple[Any, ...], str]]] = {
        "context": (("auto",), "the chat template says which reasoning of earlier turns the model sees"),
        "mode": (("standard",), "there is one way to reason"),
    }


class ResponseStreamOptions(Body):
    PART: ClassVar[str] = "stream_options"
    REFUSED: ClassVar[dict[str, tuple[tuple[Any, ...], str]]] = {
        "include_obfuscation": ((False,), "events carry no padding"),
    }


class ResponsesRequest(SharedFields):
    input: Input
    instructions: str | None = None
    max_output_tokens: int | None = None
    text: TextOptions | None = None
    tools: Tools = None
    tool_choice: ToolChoice = None
    parallel_tool_calls: bool | None = None
    reasoning: ReasoningOptions | None = None
    include: Include = None
    top_logprobs: int | None = None
    stop: Stop = None
    stream_options: ResponseStreamOptions | None = None
    metadata: dict[str, Any] | None = None  # comes back as it is
    # taken and not used: they describe the caller
    user: str | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None

    NAMES: ClassVar[Names] = _NAMES
    REFUSED: ClassVar[dict[str, tuple[tuple[Any, ...], str]]] = {
        "store": ((False,), "nothing is stored"),
        "previous_response_id": ((), _STORED),
        "conversation": ((), _STORED),
        "prompt": ((), "prompts are not stored here: send the text"),
        "background": ((False,), "nothing is stored, so an answer has to be waited for"),
        "background_options": (({},), "nothing runs in the background"),
        "truncation": (("disabled",), "prompts are not cut silently"),
        "context_management": (([],), "prompts are not cut silently"),
        "max_tool_calls": ((), "it limits tools that the server runs, and there are none"),
        "moderation": ((), "the server does not moderate"),
        "image": (({},), "this model takes text only"),
        "access_programs": (({},), "there are no such programs"),
        "prompt_cache_options": (({},), "prefixes are cached by themselves; see cache_salt"),
        "messages": ((), "a conversation is sent as input"),
        "max_tokens": ((), "it is called max_output_tokens here"),
        "response_format": ((), "it is called text.format here"),
        "n": ((1,), "a response is one answer"),
    }

    @property
    def want_logprobs(self) -> bool:
        return LOGPROBS in (self.include or ()) or bool(self.top_logprobs)

    def chat_fields(self) -> dict[str, Any]:
        messages = list(self.input)
        if self.instructions is not None:
            messages.insert(0, {"role": "system", "content": self.instructions})
        fields: dict[str, Any] = {
            "messages": messages,
            "max_tokens": self.max_output_tokens,
            "response_format": self._response_format(),
            "tools": chat_tools(self.tools, "parameters"),
            "tool_choice": self._tool_choice(),
            "parallel_tool_calls": self.parallel_tool_calls,
            "reasoning_effort": None if self.reasoning is None else self.reasoning.effort,
            "stop": self.stop,
        }
        if self.want_logprobs:
            fields |= {"logprobs": True, "top_logprobs": self.top_logprobs}
        return fields

    def _tool_choice(self) -> Any:
        return chat_choice(self.tool_choice, "tool_choice") if isinstance(self.tool_choice, dict) else self.tool_choice

    def _response_format(self) -> dict[str, Any] | None:
        wanted = None if self.text is None else self.text.format
        if wanted is None:
            return None
        if wanted.type != "json_schema":
            return {"type": wanted.type}
        named = {"name": wanted.name, "description": wanted.description, "strict": wanted.strict}
        return {"type": wanted.type, "json_schema": {**named, "schema": wanted.schema_}}
