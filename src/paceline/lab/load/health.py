"""How well the client kept its schedule, from the records and from what each process measured of itself."""

from __future__ import annotations

from collections.abc import Sequence, Set

from paceline.contracts.artefact import NEVER, ClientHealth, RequestRecord
from paceline.contracts.slo import percentile
from paceline.lab.load.generator import WorkerStats


def client_health(
    records: Sequence[RequestRecord], stats: Sequence[WorkerStats], *, scheduled: Set[int], span_s: float
) -> ClientHealth:
    """`scheduled`: ids of the requests that the schedule has for `span_s`; empty for closed loops, where rates say
    nothing of the client. Achieved is over the same span, or over the longer time it took to send them all."""
    sent = [record for record in records if record.t_send_ns != NEVER]
    lags_ms = [(record.t_send_ns - record.t_plan_ns) / 1e6 for record in sent]
    counted = [record for record in sent if record.id in scheduled] if scheduled else sent
    took_s = max(span_s, max((record.t_send_ns for record in counted), default=0) / 1e9)
    num_chunks, cpu_s = sum(worker.num_chunks for worker in stats), sum(worker.cpu_s for worker in stats)
    return ClientHealth(
        num_processes=max(1, len(stats)),
        offered_rps=len(scheduled) / span_s if span_s > 0 else 0.0,
        achieved_rps=len(counted) / took_s if took_s > 0 else 0.0,
        lag_p50_ms=percentile(lags_ms, 0.5) if lags_ms else 0.0,
        lag_p99_ms=percentile(lags_ms, 0.99) if lags_ms else 0.0,
        lag_max_ms=max(lags_ms, default=0.0),
        loop_lag_p99_ms=max((worker.loop_lag_p99_ms for worker in stats), default=0.0),
        cpu_share_max=max((worker.cpu_s / worker.wall_s for worker in stats if worker.wall_s > 0), default=0.0),
        cpu_us_per_chunk=cpu_s / num_chunks * 1e6 if num_chunks else 0.0,
        connections_peak=sum(worker.connections_peak for worker in stats),
    )
