"""A fleet that follows its load: every so often an autoscaler looks, and replicas are started or retired.

The decision is `router.scaling`'s; here it is carried out in virtual time. What is started takes requests after the
cold start and is paid for from its beginning; what is retired ends what it has. `looks` is the history: how many
replicas were ready, starting and wanted, and how many requests were open.
"""

from __future__ import annotations

from typing import Any

from paceline.router.scaling import Look, Scaler, ScalingPolicy
from paceline.sim.cluster import Cluster


class Elastic:
    """Attached to a cluster before it runs."""

    def __init__(self, cluster: Cluster, policy: ScalingPolicy) -> None:
        self._cluster = cluster
        self._scaler = Scaler(policy)
        self._period_s = policy.period_s
        self.looks: list[Look] = []
        cluster.arrange(policy.period_s, self._look)

    def _look(self, now: float) -> None:
        cluster = self._cluster
        cluster.stop_retired(now)
        ready, starting = cluster.num_ready, cluster.num_starting
        look = self._scaler.look(now, num_ready=ready, num_starting=starting, num_open=cluster.num_open)
        self.looks.append(look)
        for _ in range(look.desired - ready - starting):
            cluster.start_replica(now)
        # what is starting is not stopped half-way, and somebody must be left to take requests
        for _ in range(min(ready + starting - look.desired, ready - 1)):
            cluster.retire_replica()
        cluster.arrange(now + self._period_s, self._look)


def rows_of(looks: list[Look]) -> list[dict[str, Any]]:
    """The history as the lab keeps a server's own numbers over time."""
    return [
        {
            "t_ns": round(look.time * 1e9),
            "common": {
                "replicas_ready": look.num_ready,
                "replicas_starting": look.num_starting,
                "replicas_wanted": look.desired,
                "requests_open": look.num_open,
            },
        }
        for look in looks
    ]
