"""Match rules: when a reply answers an item. Pure; the item names the rule.

    exact     equal after folding case, white space and the punctuation around it
    first     the first non-empty line is `exact`
    contains  the answer stands in the reply as a whole word or phrase
    number    the last number of the reply (or the first behind `####`) equals the answer
    choice    the letter chosen: the first that stands alone, or after "answer is"
    regex     the answer is a regular expression, searched for
    json      the reply is a JSON value equal to the answer
    schema    the reply is JSON that satisfies the item's schema
    calls     the tool calls are those the answer lists, whatever their order
    no_call   no tool is called
    instructions  every instruction of the item is followed (see `instructions`)

A list of answers is a choice: any of them will do.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any

from paceline.lab.quality.validity import parse

_AROUND = " \t\r\n.,;:!?\"'`*_()[]{}<>$"
_NUMBER = re.compile(r"-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|-?\.\d+")
_CHOSEN = re.compile(r"answer(?:\s+is)?\s*:?\s*\**\(?([A-Za-z])\b(?!')", re.IGNORECASE)
_ALONE = re.compile(r"(?<![\w'])\(?([A-H])(?:[).:,]|\s*$)", re.MULTILINE)
_NUMBER_TOLERANCE = 1e-6  # relative, for answers with decimals


def fold(text: str) -> str:
    """A text without case, outer punctuation and runs of white space."""
    return " ".join(text.casefold().split()).strip(_AROUND)


def last_number(text: str) -> Decimal | None:
    """The number behind the last `####`, else the last one of the text; thousands may be set apart by commas."""
    marked = _NUMBER.search(text.rsplit("####", 1)[-1]) if "####" in text else None
    if marked is not None:
        return _decimal(marked[0])
    found = _NUMBER.findall(text)
    return _decimal(found[-1]) if found else None


def chosen_letter(text: str) -> str | None:
    """The letter of a multiple choice, in upper case."""
    stripped = text.strip().strip(_AROUND)
    if len(stripped) == 1 and stripped.isalpha():
        return stripped.upper()
    found = _CHOSEN.search(text) or _ALONE.search(text)
    return found[1].upper() if found else None


def same_number(text: str, answer: Any) -> bool:
    seen, wanted = last_number(text), _decimal(str(answer))
    if seen is None or wanted is None:
        return False
    return abs(seen - wanted) <= abs(wanted) * Decimal(_NUMBER_TOLERANCE)


def contains(text: str, answer: Any) -> bool:
    wanted = fold(str(answer))
    return bool(re.search(rf"(?<!\w){re.escape(wanted)}(?!\w)", " ".join(text.casefold().split())))


def first_line(text: str) -> str:
    return next((line for line in text.splitlines() if line.strip()), "")


def same_json(text: str, answer: Any) -> bool:
    value, is_json = parse(text)
    return is_json and bool(value == answer)


TEXT_RULES: dict[str, Callable[[str, Any], bool]] = {
    "exact": lambda text, answer: fold(text) == fold(str(answer)),
    "first": lambda text, answer: fold(first_line(text)) == fold(str(answer)),
    "contains": contains,
    "number": same_number,
    "choice": lambda text, answer: chosen_letter(text) == str(answer).upper(),
    "regex": lambda text, answer: re.search(str(answer), text, re.IGNORECASE | re.MULTILINE) is not None,
    "json": same_json,
}


def matches(rule: str, text: str, answer: Any) -> bool:
    """Does a reply satisfy a text rule? A list of answers is satisfied by any of them (a JSON answer is one value)."""
    check = TEXT_RULES[rule]
    answers = answer if isinstance(answer, list) and rule != "json" else [answer]
    return any(check(text, each) for each in answers)


def _decimal(text: str) -> Decimal | None:
    try:
        return Decimal(text.replace(",", "").strip())
    except InvalidOperation:
        return None
