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
        message, fix = (text.replace(error.param, param) for text in (error.message, error.fix))
        raise type(error)(message, param=param, seen=error.seen, expected=error.expected, fix=fix) from None
