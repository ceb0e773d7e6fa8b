"""Requests that fill a prefix cache before the load: what `prime` in a workload's cache protocol asks."""

from __future__ import annotations

from typing import Any

import msgspec

from paceline.contracts.workload import Faults, PlannedRequest
from paceline.lab.workload.plan import Plan

PRIME_SEED = 0x5EED  # mixed into a primer's own text, so that only the prefix is shared with the load
PRIME_SLOTS = 2  # primers in flight at once


def primers(plan: Plan) -> list[PlannedRequest]:
    """One request for each shared prefix and tenant (a server may keep tenants' caches apart): one token, no faults."""
    first: dict[tuple[Any, ...], PlannedRequest] = {}
    for request in plan.requests:
        if request.prefix_group is not None and request.turn == 0:
            first.setdefault((request.stream, request.tenant, request.prefix_group), request)
    return [
        msgspec.structs.replace(
            request,
            id=number,
            at_s=None,
            loop_slots=PRIME_SLOTS,
            session=None,
            last_turn=True,
            num_output_tokens=1,
            content_seed=request.content_seed ^ PRIME_SEED,
            faults=Faults(),
        )
        for number, request in enumerate(first.values())
    ]
