"""The body of /v1/embeddings."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, WithJsonSchema

from paceline.contracts.request import is_whole, shown
from paceline.errors import RequestError
from paceline.server.api.protocol.body import Body

MAX_INPUTS = 2048
_EXPECTED = "text, a list of token ids, or a list of either"


def _inputs(value: Any) -> list[str | list[int]]:
    """One or several texts or lists of ids, as a list. Raises RequestError."""
    several = value if isinstance(value, list) and value and isinstance(value[0], (str, list)) else [value]
    if len(several) > MAX_INPUTS:
        raise RequestError("too many inputs", param="input", seen=len(several), expected=f"at most {MAX_INPUTS}")
    for index, one in enumerate(several):
        param = "input" if len(several) == 1 else f"input[{index}]"
        if not isinstance(one, (str, list)) or (isinstance(one, list) and not all(map(is_whole, one))):
            raise RequestError("input is of the wrong kind", param=param, seen=shown(one), expected=_EXPECTED)
        if not one:
            raise RequestError("an input is empty", param=param, expected="at least one token")
    return several


def _format(value: Any) -> Any:
    if value not in (None, "float", "base64"):
        raise RequestError(
            "encoding_format is out of range", param="encoding_format", seen=shown(value), expected="float or base64"
        )
    return value


def _dimensions(value: Any) -> Any:
    if value is not None and not is_whole(value, 1):
        raise RequestError("dimensions is out of range", param="dimensions", seen=shown(value), expected="at least 1")
    return value


_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
_TEXT = {"type": "string", "minLength": 1}
_SEVERAL = [{"type": "array", "items": each, "minItems": 1, "maxItems": MAX_INPUTS} for each in (_TEXT, _IDS)]


class EmbeddingsRequest(Body):
    model: str | None = None
    input: Annotated[Any, BeforeValidator(_inputs), WithJsonSchema({"anyOf": [_TEXT, _IDS, *_SEVERAL]})]
    encoding_format: Annotated[Any, BeforeValidator(_format), WithJsonSchema({"enum": ["float", "base64", None]})] = (
        None
    )
    dimensions: Annotated[
        Any,
        BeforeValidator(_dimensions),
        WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}]}),
    ] = None
    user: str | None = None  # taken and not used

    REFUSED: ClassVar[dict[str, tuple[tuple[Any, ...], str]]] = {
        "truncate_prompt_tokens": ((), "prompts are not cut silently"),
    }
