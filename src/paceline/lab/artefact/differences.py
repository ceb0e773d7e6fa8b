"""What differs between two runs, option by option."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from paceline.contracts.artefact import RunInfo
from paceline.lab.artefact.comparison import Difference

MISSING = "(not there)"
_OWN = frozenset({"salt", "seed"})  # of the workload: every run has its own


def differences(a: RunInfo, b: RunInfo) -> tuple[Difference, ...]:
    """In order of what matters: the server's configuration first, the machine last."""
    pairs: list[tuple[str, Any, Any]] = [
        ("config", a.config, b.config),
        ("workload", workload_of(a), workload_of(b)),
        ("slo", {c.name: c for c in a.slo}, {c.name: c for c in b.slo}),
        ("target", a.target, b.target),
        ("cache", a.cache, b.cache),
        ("fingerprint", a.fingerprint, b.fingerprint),
    ]
    return tuple(
        Difference(where=where, key=key, a=left, b=right)
        for where, x, y in pairs
        for key, left, right in _diff(msgspec.to_builtins(x), msgspec.to_builtins(y), "")
    )


def workload_of(info: RunInfo) -> dict[str, Any]:
    """The spec without what each run draws anew."""
    return {key: value for key, value in info.spec.items() if key not in _OWN}


def _diff(a: Any, b: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        for key in sorted({*a, *b}, key=str):
            inner = f"{path}.{key}" if path else str(key)
            yield from _diff(a.get(key, MISSING), b.get(key, MISSING), inner)
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        for index, (x, y) in enumerate(zip(a, b, strict=True)):
            yield from _diff(x, y, f"{path}[{index}]")
    elif a != b:
        yield path, a, b
