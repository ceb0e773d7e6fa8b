"""What answers must look like, in the words clients have for it, as one grammar.

    response_format            OpenAI's: text, json_object, json_schema
    structured_outputs         vLLM's: one of json, regex, choice, grammar, json_object, and how JSON is spaced
    guided_json, guided_...    its older names for the same

A grammar is enforced exactly or refused. JSON schemas may say otherwise: with `strict: false` what cannot be enforced
is left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import msgspec
from pydantic import ConfigDict, Field

from paceline.errors import RequestError
from paceline.server.api.protocol.body import Body
from paceline.text.grammar.spec import ANY_OBJECT, GrammarSpec, Kind, encode_spec

if TYPE_CHECKING:
    from paceline.server.api.protocol.sampling import GenerationRequest


class JsonSchema(Body):
    """Named, as OpenAI has it. `schema` left out: any JSON object."""

    model_config = ConfigDict(populate_by_name=True)
    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | bool | None = Field(default=None, alias="schema")
    strict: bool | None = None
    PART: ClassVar[str] = "response_format.json_schema"
    ALIASES: ClassVar[dict[str, str]] = {"schema": "schema_"}


class ResponseFormat(Body):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None
    PART: ClassVar[str] = "response_format"
    REFUSED: ClassVar[dict[str, tuple[tuple[Any, ...], str]]] = {
        "structures": ((), "there are no structural tags; use structured_outputs.grammar"),
        "triggers": ((), "there are no structural tags; use structured_outputs.grammar"),
        "format": ((), "there are no structural tags; use structured_outputs.grammar"),
        "grammar": ((), "use structured_outputs.grammar"),
        "schema": ((), "it stands in json_schema.schema"),
    }


class StructuredOutputs(Body):
    model_config = ConfigDict(populate_by_name=True)
    json_: dict[str, Any] | str | bool | None = Field(default=None, alias="json")
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    whitespace_pattern: str | None = None
    disable_any_whitespace: bool | None = None
    strict: bool | None = None  # ours: false leaves out what of a schema cannot be enforced
    PART: ClassVar[str] = "structured_outputs"
    ALIASES: ClassVar[dict[str, str]] = {"json": "json_"}
    REFUSED: ClassVar[dict[str, tuple[tuple[Any, ...], str]]] = {
        "structural_tag": ((), "use grammar"),
        "disable_additional_properties": ((False,), "write additionalProperties: false into the schema"),
        "disable_fallback": ((True, False), "there is one way to enforce a grammar"),
    }


@dataclass(frozen=True)
class StructuredOutput:
    """One grammar, and the field of the body it came from."""

    data: bytes  # text.grammar.encode_spec
    param: str
    places: tuple[str, ...] = ()  # of a grammar made from several fields: the one each line comes from, or ""


def structured_output(body: GenerationRequest) -> StructuredOutput | None:
    """The grammar a body asks for, or None. Raises RequestError, also when it asks for several."""
    found = [*_of_response_format(body), *_of_structured_outputs(body), *_of_guided(body)]
    if body.guided_whitespace_pattern is not None and body.guided_json is None:
        raise RequestError("guided_whitespace_pattern needs guided_json", param="guided_whitespace_pattern")
    if not found:
        return None
    if len(found) > 1:
        names = [param for param, _ in found]
        raise RequestError(
            "an answer can have one grammar", param=names[1], seen=", ".join(names), fix=f"send one of them: {names[0]}"
        )
    ((param, fields),) = found
    if body.echo and getattr(body, "only_echo", False):
        raise RequestError("nothing is generated, so a grammar has no use", param=param, fix="leave it out")
    try:
        return StructuredOutput(encode_spec(GrammarSpec(**fields)), param)
    except RequestError as error:
        raise RequestError(
            error.message, param=param, seen=error.seen, expected=error.expected, fix=error.fix
        ) from None


Found = list[tuple[str, dict[str, Any]]]  # parameter, fields of GrammarSpec


def _of_response_format(body: GenerationRequest) -> Found:
    wanted = body.response_format
    if wanted is None or wanted.type == "text":
        return []
    if wanted.type == "json_object":
        return [("response_format", {"kind": "json", "value": ANY_OBJECT})]
    if wanted.json_schema is None:
        raise RequestError(
            "response_format.json_schema is missing",
            param="response_format",
            expected='{"type": "json_schema", "json_schema": {"name": ..., "schema": {...}}}',
        )
    schema = wanted.json_schema.schema_
    fields = {"kind": "json", "value": ANY_OBJECT if schema is None else schema}
    return [("response_format", {**fields, "lenient": wanted.json_schema.strict is False})]


def _of_structured_outputs(body: GenerationRequest) -> Found:
    wanted = body.structured_outputs
    if wanted is None:
        return []
    param = "structured_outputs"
    _check_json_options(wanted, param)
    space = "" if wanted.disable_any_whitespace else wanted.whitespace_pattern
    how = {"whitespace": space, "lenient": wanted.strict is False}
    found: Found = []
    if wanted.json_ is not None:
        found.append((f"{param}.json", {"kind": "json", "value": _schema(wanted.json_, f"{param}.json"), **how}))
    if wanted.json_object:
        found.append((f"{param}.json_object", {"kind": "json", "value": ANY_OBJECT, **how}))
    if wanted.regex is not None:
        found.append((f"{param}.regex", {"kind": "regex", "value": wanted.regex}))
    if wanted.choice is not None:
        found.append((f"{param}.choice", {"kind": "choice", "value": wanted.choice}))
    if wanted.grammar is not None:
        found.append((f"{param}.grammar", {"kind": grammar_kind(wanted.grammar), "value": wanted.grammar}))
    if not found:
        raise RequestError(
            "structured_outputs asks for nothing",
            param=param,
            expected="one of json, regex, choice, grammar, json_object: true",
            fix="leave it out",
        )
    return found


def _check_json_options(wanted: StructuredOutputs, param: str) -> None:
    """Options that would have no effect are refused."""
    given = {
        "whitespace_pattern": wanted.whitespace_pattern is not None,
        "disable_any_whitespace": bool(wanted.disable_any_whitespace),
        "strict": wanted.strict is False,
    }
    for name, is_given in given.items():
        if is_given and wanted.json_ is None and not wanted.json_object:
            raise RequestError(f"{name} is for JSON alone", param=f"{param}.{name}", fix="leave it out, or send json")
    if given["whitespace_pattern"] and given["disable_any_whitespace"]:
        raise RequestError(
            "whitespace_pattern and disable_any_whitespace exclude each other",
            param=f"{param}.whitespace_pattern",
            fix="send one of them",
        )


def _of_guided(body: GenerationRequest) -> Found:
    found: Found = []
    if body.guided_json is not None:
        schema = _schema(body.guided_json, "guided_json")
        found.append(("guided_json", {"kind": "json", "value": schema, "whitespace": body.guided_whitespace_pattern}))
    if body.guided_regex is not None:
        found.append(("guided_regex", {"kind": "regex", "value": body.guided_regex}))
    if body.guided_choice is not None:
        found.append(("guided_choice", {"kind": "choice", "value": body.guided_choice}))
    if body.guided_grammar is not None:
        found.append(("guided_grammar", {"kind": grammar_kind(body.guided_grammar), "value": body.guided_grammar}))
    return found


def grammar_kind(text: str) -> Kind:
    """GBNF writes its rules with ::=, Lark with a colon."""
    return "ebnf" if "::=" in text else "lark"


def _schema(value: Any, param: str) -> Any:
    """vLLM's clients may send a schema as text."""
    if not isinstance(value, str):
        return value
    try:
        return msgspec.json.decode(value)
    except (msgspec.DecodeError, RecursionError):
        expected = "a JSON schema, as an object or as text"
        raise RequestError(f"{param} is not valid JSON", param=param, expected=expected) from None
