"""What `paceline sim` and `paceline lint` both are told of a fleet, as it is typed."""

from __future__ import annotations


def acceptance_of(text: str) -> tuple[float, ...]:
    """Tokens a step yields with 1, 2, ... drafts: 1.7,2.2,2.5; "" is none. Raises ConfigError."""
    from paceline.errors import ConfigError

    try:
        return tuple(float(part) for part in text.split(",")) if text else ()
    except ValueError:
        raise ConfigError("--speculative was not understood", seen=text, expected="numbers: 1.7,2.2,2.5") from None
