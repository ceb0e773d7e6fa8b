"""A grammar as a value: its kind, its content and how exact it must be. Checked when made; encoded as JSON."""

from __future__ import annotations

import difflib
from typing import Any, Literal, get_args

import msgspec

from paceline.errors import RequestError

Kind = Literal["json", "regex", "choice", "lark", "ebnf"]

MAX_SPEC_BYTES = 256 * 1024  # of the encoded value
MAX_CHOICES = 4096
MAX_SCHEMA_DEPTH = 60  # objects and lists within each other
MAX_PATTERN_CHARS = 16 * 1024  # of one regular expression, also within a schema
MAX_EBNF_CHARS = 16 * 1024  # its conversion is slow, and grows with the square of the lines
MAX_EBNF_LINES = 500
MAX_WHITESPACE_CHARS = 256
ANY_OBJECT: dict[str, Any] = {"type": "object"}


class GrammarSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What a text must look like. Raises RequestError (param `grammar`) when made wrong.

    kind      value
    json      a JSON schema: an object, or true (any JSON)
    regex     a regular expression for the whole text (Rust's syntax: no look-around, no back-references)
    choice    a list of texts, one of which it is
    lark      a grammar in llguidance's dialect of Lark, beginning with `start:`
    ebnf      a GBNF grammar as llama.cpp has it, beginning with `root ::=`
    """

    kind: Kind
    value: Any
    lenient: bool = False  # json: leave out keywords that cannot be enforced, rather than refuse the schema
    finish: bool = False  # any kind: near max_tokens, a text that is not whole is led to its end (see `ending`)
    whitespace: str | None = None  # json: regular expression of the space between parts; "" = none; None = see compiler

    def __post_init__(self) -> None:
        check = {"json": self._check_json, "choice": self._check_choice}.get(self.kind, self._check_text)
        if self.kind not in get_args(Kind):
            close = difflib.get_close_matches(str(self.kind), get_args(Kind), n=1)
            raise wrong("unknown kind of grammar", self.kind, ", ".join(get_args(Kind)), fix=", ".join(close))
        check()
        if self.whitespace is not None and len(self.whitespace) > MAX_WHITESPACE_CHARS:
            raise wrong(
                "the pattern for whitespace is too long",
                f"{len(self.whitespace)} characters",
                f"at most {MAX_WHITESPACE_CHARS}",
            )

    def _check_json(self) -> None:
        if self.value is False:
            raise wrong("the schema is false: nothing can satisfy it", "false", "a JSON schema")
        if self.value is not True and not isinstance(self.value, dict):
            raise wrong("a JSON schema is an object, or true", type(self.value).__name__, '{"type": ..., ...}')
        _check_depth(self.value)

    def _check_choice(self) -> None:
        value = self.value
        if not isinstance(value, list) or not value or not all(isinstance(text, str) for text in value):
            seen = "an empty list" if value == [] else type(value).__name__
            raise wrong("choices are a list of texts, at least one", seen, '["yes", "no"]')
        if len(value) > MAX_CHOICES:
            raise wrong("there are too many choices", len(value), f"at most {MAX_CHOICES}")

    def _check_text(self) -> None:
        if not isinstance(self.value, str) or not self.value.strip():
            seen = f"{self.value!r:.80}" if isinstance(self.value, str) else type(self.value).__name__
            raise wrong(f"a {self.kind} grammar is a text", seen, "a text that is not empty")
        if self.kind == "ebnf" and len(self.value) > MAX_EBNF_CHARS:
            most = f"at most {MAX_EBNF_CHARS} characters"
            raise wrong("the EBNF grammar is too long", f"{len(self.value)} characters", most, fix="use Lark")
        if self.kind == "ebnf" and (lines := len(self.value.splitlines())) > MAX_EBNF_LINES:
            raise wrong("the EBNF grammar is too long", f"{lines} lines", f"at most {MAX_EBNF_LINES}", fix="use Lark")
        if self.kind == "regex" and len(self.value) > MAX_PATTERN_CHARS:
            raise wrong(
                "the regular expression is too long",
                f"{len(self.value)} characters",
                f"at most {MAX_PATTERN_CHARS}",
            )


def encode_spec(spec: GrammarSpec) -> bytes:
    """The value as JSON. Keys of a schema keep their order: properties are written in it. Raises RequestError when it
    is too long."""
    try:
        data = msgspec.json.encode(spec)
    except UnicodeEncodeError:  # half of a surrogate pair
        raise wrong("the grammar is not valid Unicode text", None, "text that can be written as UTF-8") from None
    if len(data) > MAX_SPEC_BYTES:
        raise wrong("the grammar is too long", f"{len(data)} bytes", f"at most {MAX_SPEC_BYTES} bytes of JSON")
    return data


def decode_spec(data: bytes) -> GrammarSpec:
    """The inverse. Raises RequestError for what is no such value."""
    if len(data) > MAX_SPEC_BYTES:
        raise wrong("the grammar is too long", f"{len(data)} bytes", f"at most {MAX_SPEC_BYTES} bytes of JSON")
    try:
        return msgspec.json.decode(data, type=GrammarSpec)
    except (msgspec.DecodeError, RecursionError) as error:
        raise wrong("this is not a grammar", error, "what text.grammar.encode_spec gives") from None


def wrong(message: str, seen: object, expected: str, fix: str = "") -> RequestError:
    """A grammar that cannot be."""
    return RequestError(message, param="grammar", seen=seen, expected=expected, fix=fix)


def _check_depth(schema: Any) -> None:
    level = [schema]
    for _ in range(MAX_SCHEMA_DEPTH):
        below: list[Any] = []
        for value in level:
            below += value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
            pattern = value.get("pattern") if isinstance(value, dict) else None
            if isinstance(pattern, str) and len(pattern) > MAX_PATTERN_CHARS:
                most = f"at most {MAX_PATTERN_CHARS} characters"
                raise wrong("a pattern of the schema is too long", f"{len(pattern)} characters", most)
        level = below
        if not level:
            return
    raise wrong("the schema nests too deep", f"more than {MAX_SCHEMA_DEPTH} levels", f"at most {MAX_SCHEMA_DEPTH}")
