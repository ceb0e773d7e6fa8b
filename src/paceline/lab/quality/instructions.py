"""Checks of instructions that a program can verify (the ids and arguments of IFEval-like files). Pure.

Written from what each instruction asks; "at least" and "less than" are its relations. An instruction that is not here
(the language of a reply needs a detector) has no check: items that hold one are left out and counted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from paceline.lab.quality.validity import parse

Arguments = Mapping[str, Any]
Check = Callable[[str, Arguments], bool]

_WORD = re.compile(r"\w+(?:['’]\w+)*")
_SENTENCE_END = re.compile(r"[.!?]+(?=[\s\"')\]]|$)")
_HIGHLIGHT = re.compile(r"(?<!\*)\*\*?(?=\S)([^*\n]+?)(?<=\S)\*\*?(?!\*)")
_BULLET = re.compile(r"^\s*(?:[*-])\s+\S", re.MULTILINE)
_CONSTRAINED = ("my answer is yes.", "my answer is no.", "my answer is maybe.")


def follows(name: str, text: str, arguments: Arguments) -> bool:
    """Does a reply follow one instruction? An empty reply follows none. Raises KeyError for an unknown instruction."""
    return bool(text.strip()) and CHECKS[name](text, {k: v for k, v in arguments.items() if v is not None})


def _compare(count: int, relation: Any, limit: Any) -> bool:
    return count < int(limit) if relation == "less than" else count >= int(limit)


def _count_word(text: str, word: str) -> int:
    return len(re.findall(rf"(?<!\w){re.escape(word)}(?!\w)", text, re.IGNORECASE))


def _words(text: str, a: Arguments) -> bool:
    return _compare(len(_WORD.findall(text)), a.get("relation"), a["num_words"])


def _sentences(text: str, a: Arguments) -> bool:
    return _compare(len(_SENTENCE_END.findall(text.strip())) or 1, a.get("relation"), a["num_sentences"])


def _paragraphs(text: str, a: Arguments) -> bool:
    parts = [part.strip() for part in re.split(r"\n?\s*\*\*\*\s*\n?", text)]
    parts = parts[1:] if not parts[0] else parts
    parts = parts[:-1] if parts and not parts[-1] else parts
    return all(parts) and len(parts) == int(a["num_paragraphs"])


def _nth_paragraph(text: str, a: Arguments) -> bool:
    parts = [part.strip() for part in re.split(r"\n\s*\n", text) if part.strip()]
    index = int(a["nth_paragraph"])
    if len(parts) != int(a["num_paragraphs"]) or index > len(parts):
        return False
    first = _WORD.search(parts[index - 1])
    return first is not None and first[0].casefold() == str(a["first_word"]).casefold()


def _frequency(text: str, a: Arguments) -> bool:
    return _compare(_count_word(text, str(a["keyword"])), a.get("relation"), a["frequency"])


def _letters(text: str, a: Arguments) -> bool:
    count = text.casefold().count(str(a["letter"]).casefold())
    return _compare(count, a.get("let_relation"), a["let_frequency"])


def _capital_words(text: str, a: Arguments) -> bool:
    count = sum(word.isupper() for word in _WORD.findall(text))
    return _compare(count, a.get("capital_relation"), a["capital_frequency"])


def _sections(text: str, a: Arguments) -> bool:
    found = re.findall(rf"{re.escape(str(a['section_spliter']))}\s*\d+", text)
    return len(found) >= int(a["num_sections"])


def _json_only(text: str, _: Arguments) -> bool:
    fenced = re.fullmatch(r"```(?:json)?\s*(.*?)\s*```", text.strip(), re.DOTALL | re.IGNORECASE)
    return parse(fenced[1] if fenced else text)[1]


def _two(text: str, _: Arguments) -> bool:
    parts = [part.strip() for part in text.split("******")]
    parts = [part for i, part in enumerate(parts) if part or 0 < i < len(parts) - 1]
    return len(parts) == 2 and parts[0] != parts[1] and all(parts)


def _repeat(text: str, a: Arguments) -> bool:
    return text.strip().casefold().startswith(str(a["prompt_to_repeat"]).strip().casefold())


def _ending(text: str, a: Arguments) -> bool:
    return text.strip().strip('"').casefold().endswith(str(a["end_phrase"]).strip().casefold())


def _postscript(text: str, a: Arguments) -> bool:
    marker = re.escape(str(a.get("postscript_marker", "P.S.")))
    return re.search(rf"^\s*{marker}.*\S", text, re.MULTILINE | re.IGNORECASE) is not None


def _quoted(text: str, _: Arguments) -> bool:
    return len(text.strip()) > 1 and text.strip()[0] == text.strip()[-1] == '"'


CHECKS: dict[str, Check] = {
    "punctuation:no_comma": lambda text, _: "," not in text,
    "length_constraints:number_words": _words,
    "length_constraints:number_sentences": _sentences,
    "length_constraints:number_paragraphs": _paragraphs,
    "length_constraints:nth_paragraph_first_word": _nth_paragraph,
    "keywords:existence": lambda text, a: all(_count_word(text, str(w)) for w in a["keywords"]),
    "keywords:forbidden_words": lambda text, a: not any(_count_word(text, str(w)) for w in a["forbidden_words"]),
    "keywords:frequency": _frequency,
    "keywords:letter_frequency": _letters,
    "detectable_format:number_highlighted_sections": lambda text, a: (
        len(_HIGHLIGHT.findall(text)) >= int(a["num_highlights"])
    ),
    "detectable_format:title": lambda text, _: re.search(r"<<[^<>\n]*\S[^<>\n]*>>", text) is not None,
    "detectable_format:number_bullet_lists": lambda text, a: len(_BULLET.findall(text)) == int(a["num_bullets"]),
    "detectable_format:json_format": _json_only,
    "detectable_format:multiple_sections": _sections,
    "detectable_format:constrained_response": lambda text, _: any(c in text.casefold() for c in _CONSTRAINED),
    "detectable_content:number_placeholders": lambda text, a: (
        len(re.findall(r"\[[^\[\]\n]+\]", text)) >= int(a["num_placeholders"])
    ),
    "detectable_content:postscript": _postscript,
    "combination:repeat_prompt": _repeat,
    "combination:two_responses": _two,
    "startend:quotation": _quoted,
    "startend:end_checker": _ending,
    "change_case:english_lowercase": lambda text, _: text == text.lower(),
    "change_case:english_capital": lambda text, _: text == text.upper(),
    "change_case:capital_word_frequency": _capital_words,
}
