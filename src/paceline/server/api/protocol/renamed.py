"""Errors about a chat in the words of the request that it was made from."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from paceline.errors import RequestError

Names = Sequence[tuple[str, str]]
"""Patterns of a chat's parameters, and what they are called; the first that matches counts."""


def renamed(param: str, names: Names) -> str:
    """A chat's parameter in the client's words."""
    for pattern, name in names:
        if re.match(pattern, param):
            return re.sub(pattern, name, param, count=1)
    return param


@contextmanager
def in_words_of(names: Names) -> Iterator[None]:
    """RequestErrors raised inside name the fields that the client wrote."""
    try:
        yield
    except RequestError as error:
        if error.param is None or (param := renamed(error.param, names)) == error.param:
            raise
        # A sentence may use the name as a word ("a stop string is empty"); what it begins with, or a fix names, is the
        # field.
        field = re.escape(error.param) + r"(?!\w)"
        message = re.sub("^" + field, lambda _: param, error.message)
        fix = re.sub(r"(?<!\w)" + field, lambda _: param, error.fix)
        raise type(error)(message, param=param, seen=error.seen, expected=error.expected, fix=fix) from None
