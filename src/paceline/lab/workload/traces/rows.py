"""Requests of a trace: when they came and how long they were; never what they said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from paceline.errors import ConfigError
from paceline.lab.workload.draw import Floats


@dataclass(frozen=True)
class TraceRows:
    """Requests in order of time. Lengths are None where the trace does not have them."""

    at_s: Floats  # [num_rows], from the start of what was asked for
    num_input: Floats | None  # [num_rows] tokens
    num_output: Floats | None  # [num_rows] tokens
    blocks: Sequence[tuple[int, ...]] | None = None  # ids of blocks of the prompt: equal ids, equal text
    block_tokens: int = 0

    def __len__(self) -> int:
        return len(self.at_s)


class TraceSource(Protocol):
    """A trace from which any part can be taken."""

    def rows(self, start_s: float, length_s: float, *names: object) -> TraceRows:
        """Requests of [start_s, start_s + length_s), times from 0; `names` seed what is drawn, if anything is."""
        ...

    def length_for(self, start_s: float, num: float) -> float:
        """Seconds of trace after `start_s` that hold `num` requests, in expectation. ConfigError if there are fewer."""
        ...

    @property
    def end_s(self) -> float:
        """Where the trace ends."""
        ...


@dataclass(frozen=True)
class RecordedTrace:
    """A trace with one row per request."""

    all: TraceRows

    @property
    def end_s(self) -> float:
        """One mean gap after the last request."""
        at = self.all.at_s
        return float(at[-1]) + (float(at[-1] - at[0]) / (len(at) - 1) if len(at) > 1 else 1.0)

    def rows(self, start_s: float, length_s: float, *names: object) -> TraceRows:
        whole = self.all
        low, high = (int(i) for i in np.searchsorted(whole.at_s, [start_s, start_s + length_s], side="left"))
        return TraceRows(
            at_s=whole.at_s[low:high] - start_s,
            num_input=None if whole.num_input is None else whole.num_input[low:high],
            num_output=None if whole.num_output is None else whole.num_output[low:high],
            blocks=None if whole.blocks is None else whole.blocks[low:high],
            block_tokens=whole.block_tokens,
        )

    def length_for(self, start_s: float, num: float) -> float:
        at = np.append(self.all.at_s, self.end_s)
        low = int(np.searchsorted(at, start_s, side="left"))
        if low + num > len(at) - 1 + 1e-9:
            raise too_short(len(at) - 1 - low, num)
        return float(np.interp(low + num, np.arange(len(at)), at)) - start_s


def too_short(have: float, need: float) -> ConfigError:
    return ConfigError(
        "the trace is too short for this load",
        seen=f"{have:.0f} requests from its start on",
        expected=f"{need:.0f}",
        fix="lower the rate or duration_s, or start earlier",
    )


def by_time(rows: TraceRows) -> TraceRows:
    """Sorted by time, the first at 0; equal times keep their order."""
    if not len(rows):
        raise ConfigError("the trace has no requests")
    order = np.argsort(rows.at_s, kind="stable")
    at = rows.at_s[order]
    return TraceRows(
        at_s=at - at[0],
        num_input=None if rows.num_input is None else rows.num_input[order],
        num_output=None if rows.num_output is None else rows.num_output[order],
        blocks=None if rows.blocks is None else [rows.blocks[i] for i in order],
        block_tokens=rows.block_tokens,
    )
