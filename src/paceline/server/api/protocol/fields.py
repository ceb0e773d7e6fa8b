"""Types of fields that JSON schema alone does not say: lists that may be single values, ids, names of tokens.

Each is checked by a function that raises RequestError with the field's name, and carries its JSON schema.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationInfo, WithJsonSchema

from paceline.contracts.request import MAX_LOGIT_BIAS, is_whole, shown
from paceline.errors import RequestError

MAX_NAME_CHARS = 256
MIN_SEED, MAX_SEED = -(2**63), 2**64 - 1


def _field(info: ValidationInfo) -> str:
    """The field as clients write it; durations in milliseconds are all parts of `slo`."""
    name = str(info.field_name)
    return f"slo.{name}" if name.endswith("_ms") else name


def _stop(value: Any, info: ValidationInfo) -> Any:
    """One text or a list of texts, as a tuple."""
    if value is None or isinstance(value, tuple):
        return value
    texts = (value,) if isinstance(value, str) else value
    if not isinstance(texts, (list, tuple)) or not all(isinstance(text, str) for text in texts):
        bad = value if not isinstance(value, list) else next(v for v in value if not isinstance(v, str))
        raise RequestError(
            "stop is of the wrong kind", param=_field(info), seen=shown(bad), expected="text or a list of texts"
        )
    return tuple(texts)


Stop = Annotated[
    tuple[str, ...] | None,
    BeforeValidator(_stop),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}, {"type": "null"}]}),
]


def _bias(value: Any, info: ValidationInfo) -> Any:
    """JSON's keys are texts: token ids from them. What the numbers may be, SamplingParams says."""
    if value is None:
        return None
    if not isinstance(value, dict):
        raise RequestError(
            "logit_bias is of the wrong kind",
            param=_field(info),
            seen=shown(value),
            expected='an object from token ids to numbers: {"50256": -100}',
        )
    if len(value) > MAX_LOGIT_BIAS:
        raise RequestError(
            "logit_bias has too many entries", param=_field(info), seen=len(value), expected=f"at most {MAX_LOGIT_BIAS}"
        )
    ids: dict[int, Any] = {}
    for key, number in value.items():
        if not (isinstance(key, str) and len(key) <= 12 and key.isascii() and key.isdecimal()):
            raise RequestError(
                "logit_bias has a key that is no token id", param=_field(info), seen=shown(key), expected="a token id"
            )
        if isinstance(number, bool) or not isinstance(number, (int, float)):
            raise RequestError(
                "logit_bias has a value of the wrong kind", param=_field(info), seen=shown(number), expected="a number"
            )
        ids[int(key)] = number
    return ids


LogitBias = Annotated[
    Any,
    BeforeValidator(_bias),
    WithJsonSchema(
        {
            "anyOf": [
                {
                    "type": "object",
                    "propertyNames": {"pattern": "^[0-9]{1,9}$"},
                    "additionalProperties": {"type": "number"},
                },
                {"type": "null"},
            ]
        }
    ),
]


def _ids(value: Any, info: ValidationInfo) -> Any:
    """Whole numbers. Which of them are token ids is checked where the vocabulary is known."""
    if value is None and info.field_name != "tokens":
        return None
    if not isinstance(value, list):
        raise RequestError(
            f"{_field(info)} is of the wrong kind",
            param=_field(info),
            seen=shown(value),
            expected="a list of token ids",
        )
    for index, item in enumerate(value):
        if not is_whole(item):
            raise RequestError(
                f"{_field(info)} holds something that is no token id",
                param=f"{_field(info)}[{index}]",
                seen=shown(item),
                expected="whole numbers within int32",
            )
    return value


_ID_LIST = {"type": "array", "items": {"type": "integer", "minimum": 0}}
TokenIds = Annotated[Any, BeforeValidator(_ids), WithJsonSchema({"anyOf": [_ID_LIST, {"type": "null"}]})]
TokenList = Annotated[Any, BeforeValidator(_ids), WithJsonSchema(_ID_LIST)]


def _seed(value: Any, info: ValidationInfo) -> Any:
    """Any 64-bit number, signed or not; negative ones stand for their two's complement."""
    if value is None:
        return None
    if not is_whole(value, MIN_SEED, MAX_SEED):
        raise RequestError(
            "seed is out of range",
            param=_field(info),
            seen=shown(value),
            expected=f"a whole number, {MIN_SEED} to {MAX_SEED}",
        )
    return value % 2**64


Seed = Annotated[
    int | None,
    BeforeValidator(_seed),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": MIN_SEED, "maximum": MAX_SEED}, {"type": "null"}]}),
]


def _name(value: Any, info: ValidationInfo) -> Any:
    """A short name that may go into headers, logs and ids."""
    if value is None:
        return None
    if (
        not isinstance(value, str)
        or not 1 <= len(value) <= MAX_NAME_CHARS
        or not (value.isascii() and value.isprintable())
    ):
        raise RequestError(
            f"{_field(info)} is out of range",
            param=_field(info),
            seen=shown(value),
            expected=f"1 to {MAX_NAME_CHARS} printable ASCII characters",
        )
    return value


Name = Annotated[
    str | None,
    BeforeValidator(_name),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "minLength": 1, "maxLength": MAX_NAME_CHARS, "pattern": "^[ -~]+$"},
                {"type": "null"},
            ]
        }
    ),
]


def _duration(most: float, unit: str) -> tuple[Callable[[Any, ValidationInfo], Any], dict[str, Any]]:
    """The check and the JSON schema of a positive number, at most `most`."""

    def check(value: Any, info: ValidationInfo) -> Any:
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= most:
            raise RequestError(
                f"{_field(info)} is out of range",
                param=_field(info),
                seen=shown(value),
                expected=f"{unit}: a number above 0, at most {most:g}",
            )
        return float(value)

    schema = {"anyOf": [{"type": "number", "exclusiveMinimum": 0, "maximum": most}, {"type": "null"}]}
    return check, schema


MAX_SECONDS = 86400.0
_check_s, _schema_s = _duration(MAX_SECONDS, "seconds")
_check_ms, _schema_ms = _duration(1000 * MAX_SECONDS, "milliseconds")
Seconds = Annotated[float | None, BeforeValidator(_check_s), WithJsonSchema(_schema_s)]
Milliseconds = Annotated[float | None, BeforeValidator(_check_ms), WithJsonSchema(_schema_ms)]

Number = Annotated[float, Field(allow_inf_nan=False)]
