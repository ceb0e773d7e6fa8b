"""Checks for values that are lists of differing objects: items, content blocks, tools. Each error names its place.

Used where a request in another API's form becomes a chat: what both forms say alike is left to the chat's own checks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from paceline.contracts.request import shown
from paceline.errors import RequestError
from paceline.server.api.protocol.body import unknown_field

NO_MEDIA = "leave images, audio, video and files out"


def wrong(param: str, value: Any, expected: str) -> RequestError:
    """The error for a value of the wrong kind."""
    return RequestError(f"{param} is of the wrong kind", param=param, seen=shown(value), expected=expected)


def objects(value: Any, where: str, *, most: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a list, each with its place. Raises RequestError."""
    if not isinstance(value, list):
        raise wrong(where, value, "a list")
    if len(value) > most:
        raise RequestError(f"{where} is too long", param=where, seen=len(value), expected=f"at most {most}")
    for index, item in enumerate(value):
        place = f"{where}[{index}]"
        if not isinstance(item, dict):
            raise wrong(place, item, "an object")
        yield place, item


def only(item: Mapping[str, Any], where: str, *, used: Collection[str], taken: Collection[str] = ()) -> None:
    """Raise RequestError for a key that is neither `used` nor `taken` (known, and without effect here)."""
    for key, value in item.items():
        if value is not None and key not in used and key not in taken:
            raise unknown_field(f"{where}.{key}", [*used, *taken])


def text_field(item: Mapping[str, Any], key: str, where: str) -> str:
    """A field that must be text."""
    value = item.get(key)
    if not isinstance(value, str):
        raise wrong(f"{where}.{key}", value, "text") if value is not None else missing(f"{where}.{key}")
    return value


def missing(param: str) -> RequestError:
    return RequestError(f"{param} is missing", param=param, fix=f"add {param}")


def text_parts(
    value: Any, where: str, kinds: Mapping[str, str], *, taken: Collection[str] = (), most: int = 4096
) -> str | list[dict[str, str]]:
    """Content that is a text or a list of text parts, as a chat has it. `kinds`: the types a part may have, each with
    the key of its text."""
    if isinstance(value, str):
        return value
    parts = []
    for place, part in objects(value, where, most=most):
        kind = part.get("type")
        if not isinstance(kind, str) or kind not in kinds:
            raise RequestError(
                "this model takes text only",
                param=place,
                seen=f"a part of type {shown(kind)}",
                expected=f"one of {', '.join(kinds)}",
                fix=NO_MEDIA,
            )
        only(part, place, used=("type", kinds[kind]), taken=taken)
        parts.append({"type": "text", "text": text_field(part, kinds[kind], place)})
    return parts


def joined_text(content: str | list[dict[str, str]]) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content)
