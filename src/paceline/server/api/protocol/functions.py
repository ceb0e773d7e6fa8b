"""Functions to call, where they are written flat: `{"name", "description", "parameters"}`, and not within `function` as
in a chat. What both forms say alike (names, schemas, how many) is left to the chat's checks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paceline.contracts.request import shown
from paceline.errors import RequestError
from paceline.server.api.protocol.parts import objects, only, text_field

MAX_LISTED = 4096  # beyond what a chat allows: its own, lower limit gives the error

Functions = list[dict[str, Any]]


def flat_functions(
    value: Any, *, kind: str, schema_key: str, neutral: Mapping[str, Sequence[Any]], taken: Sequence[str] = ()
) -> Functions | None:
    """`tools` as they came, looked at as far as this form differs from a chat's. `kind`: the type that functions have;
    `neutral`: keys we cannot serve, with the values that ask for nothing. Raises RequestError."""
    if value is None:
        return None
    for place, tool in objects(value, "tools", most=MAX_LISTED):
        given = tool.get("type")
        if given is not None and given != kind:
            raise RequestError(
                "only functions of the client's can be called",
                param=f"{place}.type",
                seen=shown(given),
                expected=f'"{kind}"',
                fix="leave tools that the server would have to run out",
            )
        for key, values in neutral.items():
            if (wish := tool.get(key)) is not None and wish not in values:
                raise RequestError(
                    f"{place}.{key} is not supported", param=f"{place}.{key}", seen=shown(wish), fix=f"leave {key} out"
                )
        only(tool, place, used=("type", "name", "description", schema_key, "strict"), taken=(*taken, *neutral))
    functions: Functions = value
    return functions


def neutral_schemas(neutral: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """JSON schemas of such keys."""
    return {key: {"enum": [*values, None]} for key, values in neutral.items()}


def chat_tools(tools: Functions | None, schema_key: str) -> list[dict[str, Any]] | None:
    """The same as a chat has them."""
    if tools is None:
        return None
    keys = {"name": "name", "description": "description", schema_key: "parameters", "strict": "strict"}
    return [
        {"type": "function", "function": {keys[k]: v for k, v in tool.items() if k in keys and v is not None}}
        for tool in tools
    ]


def chat_choice(choice: Mapping[str, Any], where: str) -> dict[str, Any]:
    """One function, named."""
    return {"type": "function", "function": {"name": text_field(choice, "name", where)}}
