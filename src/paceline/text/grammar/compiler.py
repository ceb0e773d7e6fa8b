"""llguidance behind the engine's ports: `GrammarCompiler` makes `LLGrammar`s for one vocabulary.

llguidance (MIT) lexes with derivatives of regular expressions and parses with Earley's algorithm; a mask is one walk
over a trie of the vocabulary's bytes. Its limits are set here far below its own defaults: what a mask may cost is what
every other row of a step may have to wait.

JSON: space between parts is one space, or a line break with its indentation. Any amount of it would be as valid, and a
small model would then write nothing else.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from paceline.errors import RequestError
from paceline.text.grammar.ending import Endings
from paceline.text.grammar.json_schema import plain, without_patterns
from paceline.text.grammar.spec import GrammarSpec, decode_spec, wrong
from paceline.text.grammar.vocabulary import Vocabulary, build_tokenizer, vocabulary_of

if TYPE_CHECKING:
    import llguidance

    from paceline.text.tokenizer import TextTokenizer

JSON_SPACE = r"( |\r?\n[ \t]{0,64})?"
LIMITS: dict[str, Any] = {
    "max_items_in_row": 2_000,
    "step_max_items": 20_000,  # Earley items per mask
    "step_lexer_fuel": 20_000,  # about 1.5 ms of lexing per mask
    "max_lexer_states": 20_000,  # 1 to 2 kB each
    "max_grammar_size": 200_000,  # symbols
    "verbose_errors": False,  # else errors quote the schema and the text
}
MAX_ERROR_CHARS = 400
_OPTIONS, _FREE = "%llguidance", {"no_forcing": True}
_OPTIONS_LINE = re.compile(rf"^[ \t]*{_OPTIONS}\s*", re.MULTILINE)
_PLACE = re.compile(r"\bat \d+\(\d+\): ")
_QUOTED = re.compile(r"\n\s*\d+ \| ")
_OF_SCHEMA = "failed to compile JSON schema: "
NO_END = "a rule or $ref leads only to itself: no text satisfies it"
# what of a schema is left out where it need not be strict
_NO_REGEX = ("look-around", "lookarounds", "backreferences")
_LEFT_OUT = ("Unimplemented keys", "Unknown format", "oneOf", "min/maxProperties", *_NO_REGEX)


class GrammarCompiler:
    """contracts.ports.GrammarFactory. The library and its form of the vocabulary are loaded when first needed."""

    def __init__(self, vocabulary: Callable[[], Vocabulary]) -> None:
        self._vocabulary = vocabulary
        self._tokenizer: llguidance.LLTokenizer | None = None
        self._endings: Endings | None = None
        self._lock = threading.Lock()

    @classmethod
    def of(cls, tokenizer: TextTokenizer, *, vocab_size: int, eos_token_ids: list[int]) -> GrammarCompiler:
        """For a model with `vocab_size` ids."""
        return cls(lambda: vocabulary_of(tokenizer, vocab_size, eos_token_ids))

    def compile(self, grammar: bytes) -> LLGrammar:
        """From `encode_spec`. Raises RequestError (param `grammar`) with what the library found wrong."""
        spec = decode_spec(grammar)
        source = source_of(spec)
        matcher = self._matcher(source)
        if matcher.is_error() and any(words in matcher.get_error() for words in _NO_REGEX):
            matcher = self._matcher(without_patterns(source, self._is_read))
        if not matcher.is_error():
            matcher.compute_bitmask()  # clones share what the first mask costs, often more than all others together
        if matcher.is_error():
            raise _refusal(spec, matcher.get_error())
        return LLGrammar(matcher, self._get_endings() if spec.finish else None)

    def _matcher(self, source: str) -> llguidance.LLMatcher:
        from llguidance import LLMatcher, LLParserLimits

        return LLMatcher(self._get_tokenizer(), source, log_level=0, limits=LLParserLimits(**LIMITS))

    def _is_read(self, pattern: str) -> bool:
        """Is this regular expression, of a schema, one that can be enforced? True also where it is none."""
        matcher = self._matcher("start: %json " + json.dumps({"type": "string", "pattern": pattern}))
        return not (matcher.is_error() and any(words in matcher.get_error() for words in _NO_REGEX))

    def _get_tokenizer(self) -> llguidance.LLTokenizer:
        with self._lock:
            if self._tokenizer is None:
                self._tokenizer = build_tokenizer(self._vocabulary())
            return self._tokenizer

    def _get_endings(self) -> Endings:
        with self._lock:
            if self._endings is None:
                self._endings = Endings(self._vocabulary())
            return self._endings


class LLGrammar:
    """contracts.ports.Grammar over an `LLMatcher`."""

    __slots__ = ("_endings", "_matcher")

    def __init__(self, matcher: llguidance.LLMatcher, endings: Endings | None = None) -> None:
        """`endings`: for a text that is to be whole within its limit."""
        self._matcher = matcher
        self._endings = endings

    def accept(self, token_id: int) -> bool:
        return self._matcher.try_consume_tokens([token_id]) == 1

    def rollback(self, num_tokens: int) -> None:
        self._matcher.rollback(num_tokens)

    def fill_mask(self, words: np.ndarray) -> None:
        assert words.dtype == np.uint32
        assert words.flags.c_contiguous
        self._matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)

    def clone(self) -> LLGrammar:
        return LLGrammar(self._matcher.deep_copy(), self._endings)

    @property
    def finishes(self) -> bool:
        return self._endings is not None

    def way_out(self, most: int, *, further: bool = False) -> list[int] | None:
        return None if self._endings is None else self._endings.way(self, most, further=further)

    @property
    def accepting(self) -> bool:
        return self._matcher.is_accepting()

    @property
    def done(self) -> bool:
        return self._matcher.is_stopped() and not self._matcher.is_error()

    @property
    def error(self) -> str:
        return _short(self._matcher.get_error()) if self._matcher.is_error() else ""


def source_of(spec: GrammarSpec) -> str:
    """The grammar in llguidance's Lark. Raises RequestError for an EBNF text or an option that cannot be read."""
    from llguidance import regex_to_lark

    if spec.kind == "json":
        return _with_options("start: %json " + _schema_text(spec))
    if spec.kind == "regex":
        return _with_options(f"start: /{regex_to_lark(spec.value, use_ascii='')}/")
    if spec.kind == "choice":
        # a JSON string is a Lark string; of equal texts one is enough
        texts = (json.dumps(t, ensure_ascii=False) for t in dict.fromkeys(spec.value))
        return _with_options("start: " + " | ".join(texts))
    return _free(_lark_of(spec.value) if spec.kind == "ebnf" else spec.value)


def _with_options(lark: str) -> str:
    return f"{lark}\n{_OPTIONS} {json.dumps(_FREE)}\n"  # at the end: lines keep their numbers


def _free(lark: str) -> str:
    """The grammar with any way to cut a text into tokens allowed. By itself the library would force one way wherever
    the bytes are certain, for which it would have to ask a tokenizer at every step."""
    found = _OPTIONS_LINE.search(lark)
    if found is None:
        return _with_options(lark)
    begin = found.end()
    try:
        options, end = json.JSONDecoder().raw_decode(lark, begin)
        text = json.dumps({**options, **_FREE})
    except (ValueError, TypeError, RecursionError):
        raise wrong(f"the options behind {_OPTIONS} are no JSON object", None, _OPTIONS + " {...}") from None
    return lark[:begin] + text + lark[end:]


def _schema_text(spec: GrammarSpec) -> str:
    space = JSON_SPACE if spec.whitespace is None else spec.whitespace
    options: dict[str, Any] = {"whitespace_flexible": bool(space), "lenient": spec.lenient}
    if space:
        options["whitespace_pattern"] = space
    schema = {} if spec.value is True else plain(spec.value)
    return msgspec.json.encode({**schema, "x-guidance": options}).decode()


def _lark_of(text: str) -> str:
    from llguidance.gbnf_to_lark import any_to_lark

    try:
        return any_to_lark(text)
    except RecursionError:
        raise wrong("the grammar nests too deep", None, "fewer parentheses within each other") from None
    except Exception as error:  # the converter's own, and what it did not expect
        raise wrong("the EBNF grammar cannot be read", _short(str(error)), "GBNF, beginning with root ::=") from None


def _refusal(spec: GrammarSpec, error: str) -> RequestError:
    what = {"json": "this JSON schema", "regex": "this regular expression"}.get(spec.kind, "this grammar")
    error = _QUOTED.split(error, maxsplit=1)[0]  # of the source, which for most kinds is not the client's
    is_of_schema = _OF_SCHEMA in error
    if spec.kind != "lark":
        error = _PLACE.sub("", error).removeprefix(_OF_SCHEMA)
    if error.startswith("oneOf "):
        error = "oneOf whose alternatives may both match"
    error = _short(error)
    can_be_left_out = is_of_schema and not spec.lenient and any(words in error for words in _LEFT_OUT)
    fix = "leave out what cannot be enforced, or set strict to false to have it ignored" if can_be_left_out else ""
    expected = "one that some text satisfies" if "Unsatisfiable" in error or error == NO_END else ""
    return wrong(f"{what} cannot be used", error, expected, fix=fix)


def _short(text: str) -> str:
    if "NoExtensionBias" in text:  # the library's words for a parser that can begin nothing
        return NO_END
    text = " ".join(text.replace("<non-verbose/>", "").split())
    return text if len(text) <= MAX_ERROR_CHARS else text[: MAX_ERROR_CHARS - 3] + "..."
