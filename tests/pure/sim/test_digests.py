"""What small fleets do, to the bit. A change that is only meant to make simulations faster must leave these alone; one
that changes what engines or routers decide changes them on purpose, and says so."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
import pytest
from tests.pure.sim.kit import replica_spec, run_fleet

from paceline.contracts.mix import mix64
from paceline.contracts.workload import Faults, PlannedRequest
from paceline.lab.workload import Plan
from paceline.sim.cluster import Ended, Joining, Outage

NUM = 90


def drawn(purpose: int, index: int, most: int) -> int:
    """0 to most - 1, the same on every machine."""
    return mix64(mix64(purpose) ^ index) % most


def plan(**cell: Any) -> Plan:
    """Requests whose times and lengths are made of whole numbers: no library's logarithm is in them."""
    requests, at_s = [], 0.0
    for index in range(NUM):
        at_s += drawn(1, index, 64) / 1024
        later = cell.get("sessions") and index % 3
        requests.append(
            PlannedRequest(
                id=index,
                stream="s",
                tenant=f"t{index % 3}" if cell.get("tenants") else None,
                priority=drawn(7, index, 3) if cell.get("classes") else None,
                at_s=None if later else at_s,
                num_input_tokens=4 + drawn(2, index, 60),
                num_output_tokens=1 + drawn(3, index, 40),
                content_seed=drawn(4, index, 1 << 30),
                prefix_group=drawn(5, index, 4) if cell.get("prefix") else None,
                num_prefix_tokens=24 if cell.get("prefix") else 0,
                session=index // 3 if cell.get("sessions") else None,
                turn=index % 3 if cell.get("sessions") else 0,
                last_turn=not cell.get("sessions") or index % 3 == 2,
                think_s=0.25,
                faults=leaves(index) if cell.get("faults") else Faults(),
            )
        )
    return Plan(requests=tuple(requests), span_s=0.0, drain_s=1e6)


def leaves(index: int) -> Faults:
    how = drawn(6, index, 8)
    if how == 0:
        return Faults(cancel_after_tokens=3)
    if how == 1:
        return Faults(disconnect_after_s=0.125)
    return Faults(timeout_s=0.25) if how == 2 else Faults()


CELLS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    # what is asked, what a replica is, what the fleet is
    "plain": ({}, {"prefix_caching": False, "num_blocks": 2048}, {"num_replicas": 3, "router": "power-of-two"}),
    "short of blocks": ({"prefix": True}, {"num_blocks": 40}, {"num_replicas": 2, "router": "least-loaded"}),
    "prefixes": ({"prefix": True}, {"num_blocks": 400}, {"num_replicas": 3, "router": "predicted-seconds"}),
    "sessions": ({"sessions": True}, {"num_blocks": 400}, {"num_replicas": 2, "router": "prefix-affinity"}),
    "windows": ({}, {"num_blocks": 120, "windows": (None, 16)}, {"num_replicas": 2}),
    "clients that leave": ({"faults": True}, {"num_blocks": 80}, {"num_replicas": 2}),
    "tenants": ({"tenants": True}, {"policy": "fair", "num_blocks": 120}, {"num_replicas": 2}),
    "classes": ({"classes": True}, {"num_blocks": 60, "prefill_chunk_tokens": 16}, {"num_replicas": 2}),
    "static batches": ({}, {"batching": "static"}, {"num_replicas": 2}),
    "failures": (
        {"prefix": True},
        {"num_blocks": 80, "max_waiting_requests": 6},
        {"num_replicas": 2, "changes": [Outage(replica=0, at_s=0.75), Joining(at_s=0.5)], "cold_start_s": 0.5},
    ),
}
DIGESTS = {
    "plain": "163eae50d29a50d8",
    "short of blocks": "0407dbffef31923c",
    "prefixes": "c8a1cd2f05a0f39c",
    "sessions": "e92cfe42e876bf05",
    "windows": "204e660789a06332",
    "clients that leave": "7f02e76ba9c6d544",
    "tenants": "6850f1b7cedf8ca3",
    "classes": "663e01c52f6765d6",
    "static batches": "6b51cb2835d0cffa",
    "failures": "1667a4374c3e4c04",
}


def digest(ended: list[Ended]) -> str:
    told = [
        (e.planned.id, e.plan_s, e.sent_s, e.end_s, e.outcome, e.reason, e.http_status, e.replica, e.timeline, e.usage)
        for e in ended
    ]
    return hashlib.blake2b(msgspec.msgpack.encode(told), digest_size=8).hexdigest()


@pytest.mark.parametrize("cell", CELLS)
def test_a_small_fleet_does_what_it_did(cell: str) -> None:
    asked, replica, fleet = CELLS[cell]
    ended, _ = run_fleet(plan(**asked), replica_spec(**replica), seed=5, **fleet)
    assert len(ended) == NUM
    assert digest(ended) == DIGESTS[cell]


@pytest.mark.parametrize("cell", ["plain", "short of blocks", "clients that leave", "failures"])
def test_times_of_first_and_last_tokens_alone_change_nothing_else(cell: str) -> None:
    asked, replica, fleet = CELLS[cell]
    everything, _ = run_fleet(plan(**asked), replica_spec(**replica), seed=5, **fleet)
    brief, _ = run_fleet(plan(**asked), replica_spec(**replica), seed=5, token_times=False, **fleet)
    num_chunks = 0
    for one, other in zip(everything, brief, strict=True):
        assert (one.planned, one.outcome, one.end_s, one.usage) == (
            other.planned,
            other.outcome,
            other.end_s,
            other.usage,
        )
        if one.timeline is None or other.timeline is None:
            assert one.timeline is other.timeline
            continue
        for name in ("ttft_s", "tpot_s", "e2e_s", "num_tokens", "queue_s", "end"):
            assert getattr(one.timeline, name) == pytest.approx(getattr(other.timeline, name), rel=1e-15, nan_ok=True)
        assert len(other.timeline.chunks) <= len(one.timeline.chunks)
        num_chunks += len(one.timeline.chunks) - len(other.timeline.chunks)
    assert num_chunks > NUM
