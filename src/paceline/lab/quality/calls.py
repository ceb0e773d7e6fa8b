"""Tool calls against the calls an item accepts. Pure.

An item's answer is a list of calls `{name: {argument: [accepted values]}}` (the form of function-calling
leaderboards); an empty string among the accepted values says that the argument may be left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paceline.lab.quality.rules import fold
from paceline.lab.quality.validity import parse


def same_calls(calls: Sequence[Mapping[str, Any]], answer: Sequence[Mapping[str, Any]]) -> bool:
    """Are these the accepted calls, each once, in any order?"""
    if len(calls) != len(answer):
        return False
    left = list(answer)
    for call in calls:
        hit = next((wanted for wanted in left if same_call(call, wanted)), None)
        if hit is None:
            return False
        left.remove(hit)
    return True


def same_call(call: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Is this call one that `{name: {argument: [accepted values]}}` allows?"""
    inner = call.get("function", call)
    name, arguments = inner.get("name"), inner.get("arguments") or "{}"
    if name not in wanted:
        return False
    value, is_json = parse(arguments) if isinstance(arguments, str) else (arguments, True)
    if not is_json or not isinstance(value, dict):
        return False
    accepted = wanted[name]
    if any(argument not in accepted for argument in value):
        return False
    return all(
        _is_accepted(value[argument], values) if argument in value else "" in values
        for argument, values in accepted.items()
    )


def _is_accepted(value: Any, accepted: Sequence[Any]) -> bool:
    return any(_is_equal(value, each) for each in accepted)


def _is_equal(value: Any, wanted: Any) -> bool:
    if isinstance(value, bool) or isinstance(wanted, bool):
        return value is wanted
    if isinstance(value, str) and isinstance(wanted, str):
        return fold(value) == fold(wanted)
    if isinstance(value, list) and isinstance(wanted, list):
        return len(value) == len(wanted) and all(_is_equal(v, w) for v, w in zip(value, wanted, strict=True))
    if isinstance(value, dict) and isinstance(wanted, dict):
        if any(key not in wanted for key in value):
            return False
        lists = {key: each if isinstance(each, list) else [each] for key, each in wanted.items()}
        return all(_is_accepted(value[k], lists[k]) if k in value else "" in lists[k] for k in lists)
    return bool(value == wanted)
