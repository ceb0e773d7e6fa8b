"""Were two runs asked the same? Requests pair by id only then."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec

from paceline.contracts.artefact import NEVER, RequestRecord, RunInfo
from paceline.contracts.workload import PlannedRequest
from paceline.lab.artefact.store import StoredRun, read_plan


def same_plan(a: StoredRun, b: StoredRun) -> bool:
    """By the plans that both runs kept; else by their records. A run leaves no record of a turn that was never due, nor
    of what a closed loop did not come to, so records of equal plans may differ where one server was slower."""
    plans = read_plan(a.path), read_plan(b.path)
    if all(plans):
        return _asked(plans[0]) == _asked(plans[1])
    return plan_digest(a.info, a.records) == plan_digest(b.info, b.records)


def _asked(plan: Sequence[PlannedRequest]) -> list[tuple[object, ...]]:
    return [
        (
            *(r.id, r.stream, r.slo_class, r.tenant, r.session, r.turn, r.streamed),
            *(r.num_input_tokens, r.num_output_tokens, r.num_prefix_tokens),
            None if r.at_s is None else round(r.at_s * 1e3),
        )
        for r in plan
    ]


def plan_digest(info: RunInfo, records: Sequence[RequestRecord]) -> str:
    """SHA-256 over what was planned, out of the records: who, what lengths and, in an open loop, when (to 1 ms).

    The salt is no part of it: every run has its own, so that no cache can know its prompts.
    """
    asked = []
    for r in sorted(records, key=lambda r: r.id):
        scheduled = not info.closed_loop and r.turn == 0 and r.t_plan_ns != NEVER
        when = round(r.t_plan_ns / 1e6) if scheduled else NEVER
        who = (r.id, r.stream, r.slo_class, r.tenant, r.session, r.turn, r.streamed)
        asked.append((*who, r.num_input_asked, r.num_output_asked, r.num_prefix_asked, when))
    return hashlib.sha256(msgspec.json.encode(asked)).hexdigest()
