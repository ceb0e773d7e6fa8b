"""How commands end: library errors as short messages with the exit codes a shell script can test."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from paceline.errors import PacelineError, RequestError

USAGE, FAILURE, INTERRUPTED = 2, 1, 130


@contextmanager
def clean_errors(*, otherwise: int = FAILURE) -> Iterator[None]:
    """Print a PacelineError as what happened, what was expected and the fix; exit 2 for bad input, else `otherwise`."""
    try:
        yield
    except PacelineError as error:
        _say(f"error: {error.message}")
        if error.seen is not None:
            _say(f"  seen:     {error.seen}")
        if error.expected:
            _say(f"  expected: {error.expected}")
        if error.fix:
            _say(f"  fix:      {error.fix}")
        bad_input = isinstance(error, RequestError) or error.code in ("config", "unsupported")
        raise typer.Exit(USAGE if bad_input else otherwise) from None
    except KeyboardInterrupt:
        _say("interrupted")
        raise typer.Exit(INTERRUPTED) from None


def _say(line: str) -> None:
    print(line, file=sys.stderr)
