"""Traces in CSV with one row per request: Azure's two years and BurstGPT."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from paceline.errors import ConfigError
from paceline.lab.workload.traces.files import MAX_ROWS, lines
from paceline.lab.workload.traces.rows import RecordedTrace, TraceRows, by_time

AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
BURSTGPT = ("Timestamp", "Request tokens", "Response tokens")


def read_azure(path: Path) -> RecordedTrace:
    """`TIMESTAMP,ContextTokens,GeneratedTokens`, times as dates (2023) or dates with a zone (2024)."""
    return _read(path, AZURE, _date_s)


def read_burstgpt(path: Path) -> RecordedTrace:
    """`Timestamp,[Session ID,Elapsed time,]Model,Request tokens,Response tokens,...`, times in seconds.

    Rows without an answer (failures, 0 response tokens) keep their arrival and ask for one token.
    """
    return _read(path, BURSTGPT, float)


def _read(path: Path, columns: tuple[str, ...], to_s: object) -> RecordedTrace:
    assert callable(to_s)
    at, inputs, outputs = [], [], []
    for number, (when, num_input, num_output) in _columns(path, columns):
        try:
            at.append(float(to_s(when)))
            inputs.append(max(1.0, float(num_input)))
            outputs.append(max(1.0, float(num_output)))
        except ValueError:
            raise ConfigError(
                f"{path}, line {number} is not of this trace's form", seen=f"{when},{num_input},{num_output}"[:120]
            ) from None
        if len(at) > MAX_ROWS:
            raise ConfigError(
                "the trace has too many rows", seen=str(path), expected=f"{MAX_ROWS} at most", fix="cut it"
            )
    return RecordedTrace(
        by_time(TraceRows(at_s=np.asarray(at), num_input=np.asarray(inputs), num_output=np.asarray(outputs)))
    )


def _columns(path: Path, columns: tuple[str, ...]) -> Iterator[tuple[int, list[str]]]:
    reader = _rows(path)
    header = [name.strip() for name in next(reader, [])]
    missing = [name for name in columns if name not in header]
    if missing:
        raise ConfigError(f"{path} has no column {missing[0]!r}", seen=", ".join(header)[:200])
    places = [header.index(name) for name in columns]
    for number, row in enumerate(reader, start=2):
        if not row:
            continue
        if len(row) <= max(places):
            raise ConfigError(f"{path}, line {number} is cut short", seen=",".join(row)[:120])
        yield number, [row[i] for i in places]


def _rows(path: Path) -> Iterator[list[str]]:
    try:
        yield from csv.reader(lines(path))
    except csv.Error as error:
        raise ConfigError(f"{path} is no CSV", seen=str(error)) from None


def _date_s(text: str) -> float:
    # seven digits of fraction (100 ns) in the 2023 files: datetime takes six
    head, dot, rest = text.strip().partition(".")
    digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
    when = datetime.fromisoformat(head + rest[len(digits) :])
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() + (float(f"0.{digits}") if dot else 0.0)
