"""The one pure function from the records of a run to its numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from paceline.contracts.artefact import RequestRecord, RunInfo
from paceline.contracts.metrics import RunMetrics
from paceline.contracts.slo import Outcome
from paceline.lab.metrics.cautions import client_cautions, log_cautions, token_cautions, window_cautions
from paceline.lab.metrics.columns import Columns, columns_of
from paceline.lab.metrics.flow import ends_of, in_flight, inside, output_rate, window_of
from paceline.lab.metrics.fluidity import on_time
from paceline.lab.metrics.groups import Run, groups_of
from paceline.lab.metrics.judge import judge, times_of
from paceline.lab.metrics.latency import Gaps
from paceline.lab.metrics.split import ttft_split
from paceline.lab.metrics.steady import steadiness


def compute(info: RunInfo, records: Sequence[RequestRecord]) -> RunMetrics:
    """All numbers of a run. Pure: the same info and records, in whatever order, give the same result.

    Requests belong to the window by their planned time; what comes before is warm-up and what ends after it was
    drained. Token rates go by the time of each token instead. docs/reference/lab-metrics.md has every formula.
    """
    columns = columns_of(records)
    window = window_of(info, columns)
    planned = inside(columns.plan, window)
    times = times_of(columns)
    classes = {c.name: c for c in info.slo}
    judgement = judge(columns, times, classes)
    run = Run(
        columns=columns,
        times=times,
        judgement=judgement,
        window=window,
        planned=planned,
        on_time=on_time(columns, classes),
        closed_loop=info.closed_loop,
        icl=Gaps(columns, spread=False),
        itl=Gaps(columns, spread=True),
    )
    groups = groups_of(run)
    flow = in_flight(columns, window)
    steady = steadiness(columns, times, window)
    output = output_rate(columns, window)
    seconds = window.seconds
    num_planned = int(planned.sum())
    not_sent = sum(r.outcome is Outcome.NOT_SENT for r, here in zip(columns.records, planned, strict=True) if here)
    return RunMetrics(
        window=window,
        closed_loop=info.closed_loop,
        offered_rps=num_planned / seconds if seconds > 0 and not info.closed_loop else None,
        output_tokens_per_s=output,
        input_tokens_per_s=_input_rate(columns, seconds, inside(columns.first, window)),
        in_flight_mean=flow.mean,
        littles_law_error=flow.littles_law_error,
        num_drained=int((planned & (ends_of(columns) > window.end_ns / 1e9)).sum()),
        steady=steady,
        ttft_split=ttft_split(columns, times, planned),
        groups=groups,
        cautions=(
            *client_cautions(info, times, planned),
            *log_cautions(info, columns, planned, window),
            *token_cautions(columns, judgement, planned),
            *window_cautions(groups[0], flow, steady, output, not_sent),
        ),
        client=info.client,
        token_sources=dict(sorted(Counter(r.token_source.value for r in columns.records).items())),
    )


def _input_rate(
    columns: Columns, seconds: float, here: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]
) -> float | None:
    """Prompt tokens of the requests whose first token came in the window, per second; None where usage is missing."""
    if seconds <= 0:
        return None
    tokens = [columns.records[i].prompt_tokens for i in np.flatnonzero(here)]
    return None if any(count < 0 for count in tokens) else sum(tokens) / seconds
