"""Typed reading of configuration values, with errors that name the key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.errors import ModelError


class Fields:
    """A mapping with defaults. An explicit null stays None; a value of the wrong type raises ModelError."""

    def __init__(self, values: Mapping[str, Any], where: str, defaults: Mapping[str, Any] | None = None) -> None:
        self.values = values
        self.where = where
        self.defaults = defaults or {}

    def get(self, key: str, default: Any = None) -> Any:
        if key in self.values:
            return self.values[key]
        return self.defaults.get(key, default)

    def integer(self, key: str, default: int | None = None) -> int:
        """A positive integer."""
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.wrong(key, value, "a positive integer")
        return value

    def optional_integer(self, key: str) -> int | None:
        return None if self.get(key) is None else self.integer(key)

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number greater than 0."""
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
            raise self.wrong(key, value, "a number greater than 0")
        return float(value)

    def optional_number(self, key: str) -> float | None:
        return None if self.get(key) is None else self.number(key)

    def flag(self, key: str) -> bool:
        value = self.get(key)
        if value is not None and not isinstance(value, bool):
            raise self.wrong(key, value, "true or false")
        return bool(value)

    def token_id(self, key: str) -> int | None:
        ids = self.token_ids(key)
        return ids[0] if ids else None

    def token_ids(self, key: str) -> tuple[int, ...]:
        """One id, a list of ids or nothing."""
        value = self.get(key)
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if not all(isinstance(i, int) and not isinstance(i, bool) for i in ids):
            raise self.wrong(key, value, "a token id or a list of them")
        return tuple(ids)

    def wrong(self, key: str, value: object, expected: str) -> ModelError:
        return ModelError(
            f"{self.where} has no usable {key!r}",
            seen=value,
            expected=expected,
            fix="check the file against the original",
        )
