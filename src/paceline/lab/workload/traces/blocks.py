"""Traces in JSON lines with ids of prompt blocks: Mooncake and Qwen-Bailian. Equal ids are equal prefixes."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np

from paceline.errors import ConfigError
from paceline.lab.workload.traces.files import MAX_ROWS, lines
from paceline.lab.workload.traces.rows import RecordedTrace, TraceRows, by_time

MOONCAKE_BLOCK_TOKENS = 512
BAILIAN_BLOCK_TOKENS = 16


class _Row(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int] = []


def read_mooncake(path: Path) -> RecordedTrace:
    """`{"timestamp": ms, "input_length", "output_length", "hash_ids"}`, blocks of 512 tokens."""
    return _read(path, 1e-3, MOONCAKE_BLOCK_TOKENS)


def read_bailian(path: Path) -> RecordedTrace:
    """`{"chat_id", "parent_chat_id", "timestamp": s, "input_length", "output_length", "type", "turn", "hash_ids"}`.

    Blocks of 16 tokens. Later turns come at their recorded time: their input already holds the history.
    """
    return _read(path, 1.0, BAILIAN_BLOCK_TOKENS)


def _read(path: Path, unit_s: float, block_tokens: int) -> RecordedTrace:
    decoder = msgspec.json.Decoder(_Row)
    rows: list[_Row] = []
    for number, line in enumerate(lines(path), start=1):
        if not line.strip():
            continue
        try:
            rows.append(decoder.decode(line))
        except msgspec.MsgspecError as error:
            raise ConfigError(f"{path}, line {number} is not of this trace's form", seen=str(error)) from None
        if len(rows) > MAX_ROWS:
            raise ConfigError(
                "the trace has too many rows", seen=str(path), expected=f"{MAX_ROWS} at most", fix="cut it"
            )
    return RecordedTrace(
        by_time(
            TraceRows(
                at_s=np.asarray([row.timestamp * unit_s for row in rows], dtype=np.float64),
                num_input=np.asarray([max(1, row.input_length) for row in rows], dtype=np.float64),
                num_output=np.asarray([max(1, row.output_length) for row in rows], dtype=np.float64),
                blocks=[tuple(row.hash_ids) for row in rows],
                block_tokens=block_tokens,
            )
        )
    )
