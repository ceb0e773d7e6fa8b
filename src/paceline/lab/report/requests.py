"""The requests of a run as columns, as the metrics see them: the times of each, whether it was good, whether the window
holds it. The tables of a report come from `RunMetrics`; this only draws the records that those were computed from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paceline.contracts.artefact import RequestRecord, RunInfo
from paceline.lab.metrics.columns import Bools, Columns, Floats, columns_of
from paceline.lab.metrics.judge import Times, judge, times_of


@dataclass(frozen=True, slots=True)
class Requests:
    """[n] requests in order of planned time. Seconds from the start of the load; nan where undefined."""

    columns: Columns
    times: Times
    good: Bools
    inside: Bools  # planned in the window

    @property
    def plan(self) -> Floats:
        return self.columns.plan

    @property
    def send(self) -> Floats:
        return self.columns.send

    @property
    def close(self) -> Floats:
        return self.columns.close

    @property
    def ok(self) -> Bools:
        return self.columns.ok

    @property
    def records(self) -> list[RequestRecord]:
        return self.columns.records

    def measured(self, values: Floats) -> Floats:
        """Of the window's requests that ended well: what latency tables are about."""
        return values[self.inside & self.ok]


def requests_of(info: RunInfo, records: Sequence[RequestRecord]) -> Requests:
    columns = columns_of(records)
    times = times_of(columns)
    good = judge(columns, times, {terms.name: terms for terms in info.slo}).good
    with np.errstate(invalid="ignore"):
        inside = (columns.plan >= info.window.start_ns / 1e9) & (columns.plan < info.window.end_ns / 1e9)
    return Requests(columns, times, good, inside)
