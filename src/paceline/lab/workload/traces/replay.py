"""A recorded load as an arrival process: replayed faster or slower, its order and the shape of its bursts kept."""

from __future__ import annotations

from pathlib import Path

import msgspec

from paceline.errors import ConfigError
from paceline.lab.workload.arrivals import Arrival
from paceline.lab.workload.draw import Floats
from paceline.lab.workload.traces.reading import FORMATS, open_trace
from paceline.lab.workload.traces.rows import TraceRows, too_short


class Trace(Arrival, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="trace"):
    """Replays `file` from `start_s` on. Either `scale` (2 = twice as fast) or `rate` (requests/s over the span)."""

    file: str
    format: str = "auto"
    scale: float | None = None
    rate: float | None = None
    start_s: float = 0.0
    length_scale: float = 1.0  # of the trace's input and output lengths, its blocks included

    def times(self, span_s: float, *names: object) -> Floats:
        return self.rows(span_s, *names).at_s

    def rows(self, span_s: float, *names: object) -> TraceRows:
        """The requests of the span, with times scaled and lengths as recorded."""
        length_s = self._length_s(span_s)
        rows = open_trace(Path(self.file), self.format).rows(self.start_s, length_s, *names)
        at_s = rows.at_s * (span_s / length_s)
        return TraceRows(at_s, rows.num_input, rows.num_output, rows.blocks, rows.block_tokens)

    def mean_rps(self, span_s: float) -> float:
        if self.rate is not None:
            return self.rate
        return len(self.rows(span_s)) / span_s

    def scaled(self, factor: float) -> Trace:
        if self.rate is not None:
            return msgspec.structs.replace(self, rate=self.rate * factor)
        return msgspec.structs.replace(self, scale=(self.scale or 1.0) * factor)

    def check(self, where: str) -> None:
        if self.rate is not None and self.scale is not None:
            raise ConfigError(f"{where}: give rate or scale, not both", seen=f"rate {self.rate}, scale {self.scale}")
        for name in ("rate", "scale", "length_scale"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"{where}.{name} must be above 0", seen=value)
        if self.format != "auto" and self.format not in FORMATS:
            raise ConfigError(f"{where}.format is not known", seen=self.format, expected=", ".join(["auto", *FORMATS]))

    def _length_s(self, span_s: float) -> float:
        """Seconds of trace that the span replays."""
        source = open_trace(Path(self.file), self.format)
        if self.rate is not None:
            length_s = source.length_for(self.start_s, self.rate * span_s)
            if length_s <= 0:
                raise ConfigError("the trace cannot be replayed at this rate", seen="too many requests at one moment")
            return length_s
        length_s = span_s * (self.scale or 1.0)
        if self.start_s + length_s > source.end_s * (1 + 1e-9):
            have = len(source.rows(self.start_s, length_s))
            raise too_short(have, have * length_s / max(1e-9, source.end_s - self.start_s))
        return length_s
