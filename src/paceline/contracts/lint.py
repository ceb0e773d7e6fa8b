"""What a lint says: findings, each with its evidence and its fix. Terminal, page, file and CI share these values."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Any

import msgspec


class Severity(StrEnum):
    INFO = "info"  # worth knowing; nothing is lost for sure
    WARNING = "warning"  # costs goodput, or a number says less than it seems to
    ERROR = "error"  # targets will be missed, or a number says nothing


_ORDER = (Severity.INFO, Severity.WARNING, Severity.ERROR)


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """One number or word that a finding rests on."""

    name: str
    value: float | str
    unit: str = ""  # ms, s, tokens, bytes, req/s, share; "" for counts and words
    origin: str = ""  # configured, predicted (with its tier), recomputed (from raw records), server metrics


class Fix(msgspec.Struct, frozen=True, kw_only=True):
    """What to do. `options` and `workload` are the same as values, where an option does it."""

    words: str
    options: dict[str, Any] = {}  # option of the engine -> value
    workload: dict[str, Any] = {}  # key of the workload's TOML -> value; what a stream has is said of each stream
    fleet: dict[str, Any] = {}  # option of `paceline sim` -> value
    device: dict[str, Any] = {}  # key of a device's file -> value
    gain: str = ""  # what it would gain, where that can be said


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    code: str  # PL101, ...
    title: str
    severity: Severity
    sentence: str  # with the numbers
    fix: Fix
    subject: str = ""  # class, stream, step of an experiment or other run that it is about
    evidence: tuple[Evidence, ...] = ()


class LintResult(msgspec.Struct, frozen=True, kw_only=True):
    """What was looked at and what was found. Each rule is either judged or skipped."""

    version: int = 1
    source: str  # config, run, experiment
    name: str
    findings: tuple[Finding, ...] = ()  # the worst first
    judged: tuple[str, ...] = ()  # codes
    skipped: dict[str, str] = {}  # code -> what it would need


def at_least(severity: Severity, floor: Severity) -> bool:
    return _ORDER.index(severity) >= _ORDER.index(floor)


def worst_first(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """By severity, then by code; equal ones keep their order."""
    return tuple(sorted(findings, key=lambda f: (-_ORDER.index(f.severity), f.code)))
