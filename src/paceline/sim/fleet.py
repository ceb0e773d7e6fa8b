"""A simulation put together: what a replica is, what a step costs, a plan of requests, and how they are routed.

    plan = make_plan(spec, seed=0)
    totals = make_cluster(replica, cost, plan, on_end=ended.append).run()

`assemble.sim.simulate` does the same from a configuration, and makes the lab's records. What is not simulated is
refused elsewhere or left out for good: text, networks, the client's and the server's own time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from paceline.contracts.kv import KVLayout
from paceline.contracts.ports import CostModel
from paceline.cost import decode_shape, prefill_shape
from paceline.engine.decisions import DecisionRing
from paceline.engine.kv_manager import KVManager
from paceline.engine.scheduler import Scheduler
from paceline.engine.settings import SchedulerSettings
from paceline.errors import ConfigError, UnsupportedError
from paceline.lab.workload import Plan, TargetSize, WorkloadSpec, offered_rps, scale
from paceline.lab.workload.arrivals import Closed
from paceline.router import Policy, Reports, make_policy
from paceline.sim.client import Client
from paceline.sim.clock import VirtualClock
from paceline.sim.cluster import Cluster, Ended, Joining, Outage
from paceline.sim.drafts import CurveDrafter
from paceline.sim.executor import SimulatedExecutor, simulated_caps
from paceline.sim.prompts import NO_TEMPLATE, NUM_IDS, Answers, Prompts, Template
from paceline.sim.replica import Replica
from paceline.sim.requests import TermsOf
from paceline.sim.split import Split, SplitCluster
from paceline.sim.tiered import MOST_EVENTS, TieredCluster, TieredReplica, Tiering

_DECISIONS = 0  # nobody asks a simulated replica why
_KV_EVENTS = 0  # nobody follows a simulated cache
SIZE_PROMPT, SIZE_OUTPUT, SIZE_ROWS = 128, 16, 8  # what a server's size is taken from: see lab.experiment.sizing


class ReplicaSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One engine, as its scheduler and KV manager are built. All replicas of a fleet are alike."""

    settings: SchedulerSettings
    layout: KVLayout
    prefix_caching: bool = True
    share_tenants: bool = False
    acceptance: tuple[float, ...] = ()  # tokens a step yields with 1, 2, ... drafts; empty: no speculation


def make_replica(
    index: int,
    spec: ReplicaSpec,
    cost: CostModel,
    answers: Answers,
    *,
    macro_steps: bool = True,
    write_plans: bool = False,
    token_times: bool = True,
    tiered: bool = False,
) -> Replica:
    """A fresh engine over a simulated executor. `cost` must not learn from steps: use `StepCost.frozen()`.
    `write_plans`: each step goes through the executor as a plan, which takes longer and changes nothing.
    `token_times` False: timelines have the times of the first and the last tokens, and none of those between.
    `tiered`: a `TieredReplica`, to be equipped, which follows what its cache evicts."""
    settings = spec.settings
    if settings.num_draft_tokens != len(spec.acceptance):
        raise UnsupportedError(
            "drafts are simulated by their acceptance curve alone",
            seen=f"num_draft_tokens={settings.num_draft_tokens}, a curve of {len(spec.acceptance)}",
            expected="as many drafts as the curve has lengths",
        )
    worst = settings.max_num_seqs - 1 + settings.min_prefill_tokens
    write_plans = write_plans or not macro_steps or bool(spec.acceptance)
    groups = spec.layout.groups
    caps = simulated_caps(
        spec.layout,
        max_rows=settings.max_num_seqs,
        max_tokens=max(settings.max_num_batched_tokens, worst),
        vocab_size=NUM_IDS,
        host_drafts=bool(spec.acceptance),
    )
    kv = KVManager(
        spec.layout,
        prefix_caching=spec.prefix_caching,
        max_chunk_tokens=settings.max_uncommitted_tokens(caps.max_in_flight),
        event_capacity=MOST_EVENTS if tiered else _KV_EVENTS,
        explains_misses=False,  # nobody asks either
        share_tenants=spec.share_tenants,
        # nobody reads which block is whose
        names_blocks=spec.prefix_caching or write_plans or len(groups) > 1 or groups[0].window is not None,
    )
    drafter = CurveDrafter(spec.acceptance) if spec.acceptance else None
    scheduler = Scheduler(
        settings, caps, kv, cost, drafter=drafter, decisions=DecisionRing(_DECISIONS), token_times=token_times
    )
    clock = VirtualClock()
    executor = SimulatedExecutor(caps, None, clock, answers)
    macro_steps = macro_steps and drafter is None  # a draft is looked at step by step
    return (TieredReplica if tiered else Replica)(
        index,
        scheduler,
        kv,
        executor,
        clock,
        cost,
        answers=answers if macro_steps else None,
        macro_steps=macro_steps,
        write_plans=write_plans,
    )


def make_cluster(
    replica: ReplicaSpec,
    cost: CostModel,
    plan: Plan,
    *,
    on_end: Callable[[Ended], None],
    num_replicas: int = 1,
    router: str | Policy = "round-robin",
    seed: int = 0,
    changes: Sequence[Outage | Joining] = (),
    cold_start_s: float = 0.0,
    terms: TermsOf | None = None,
    macro_steps: bool = True,
    split: Split | None = None,
    tiering: Tiering | None = None,
    reports: Reports | None = None,
    token_times: bool = True,
    lag_s: float = 0.0,
    template: Template = NO_TEMPLATE,
) -> Cluster:
    """A cluster that is ready to run `plan`; see `Cluster.run`. `router` may be a policy of one's own. `terms`: under
    which requests are taken in, targets among them that replicas schedule by if their settings say so; None: without
    any. `split`: prefill and decode on replicas
    of their own. `tiering`: KV caches with lower tiers. `reports`: the router knows loads by these alone. `token_times`
    False: timelines tell when the first and the last tokens came, which is enough for TTFT, TPOT and E2E, and not when
    those between did: that is faster and takes less memory. `lag_s`: what an answer takes outside the engine, before
    its client goes on. `template`: of chats. Raises ConfigError for what cannot be."""
    if num_replicas < 1:
        raise ConfigError("a fleet needs a replica", seen=num_replicas, expected="at least 1")
    answers = Answers(seed)
    settings = replica.settings
    policy = (
        router
        if not isinstance(router, str)
        else make_policy(
            router,
            cost,
            step_tokens=settings.max_num_batched_tokens,
            max_rows=settings.max_num_seqs,
            mean_output_tokens=sum(r.num_output_tokens for r in plan.requests) / max(1, len(plan.requests)),
            seed=seed,
        )
    )
    made: type[Cluster] = Cluster
    more: dict[str, Any] = {}
    if split is not None:
        if tiering is not None:
            raise UnsupportedError("prefill and decode apart have no lower tiers", seen="both", fix="leave one out")
        _check_moves(replica, "prefill and decode apart are simulated")
        made, more = SplitCluster, {"split": split, "answers": answers}
    elif tiering is not None:
        _check_moves(replica, "lower tiers are simulated")
        made, more = TieredCluster, {"tiering": tiering, "block_bytes": replica.layout.groups[0].bytes_per_block}
    options = {"macro_steps": macro_steps, "token_times": token_times, "tiered": tiering is not None}
    return made(
        lambda index: make_replica(index, replica, cost, answers, **options),
        num_replicas,
        policy,
        Client(plan, lag_s=lag_s),
        Prompts(answers, keyed=replica.prefix_caching, template=template),
        on_end,
        changes=changes,
        cold_start_s=cold_start_s,
        terms=terms,
        reports=reports,
        **more,
    )


def takes_in(replica: ReplicaSpec) -> bool:
    """Whether KV that was computed elsewhere, or before, can be put into its cache."""
    groups = replica.layout.groups
    return replica.prefix_caching and len(groups) == 1 and groups[0].window is None


def _check_moves(replica: ReplicaSpec, what: str) -> None:
    """Raise UnsupportedError where KV cannot be carried to a replica."""
    groups = replica.layout.groups
    if not takes_in(replica):
        raise UnsupportedError(
            f"{what} for plain KV caches with a prefix cache",
            seen=f"{len(groups)} KV groups, prefix cache {'on' if replica.prefix_caching else 'off'}",
            expected="one group of layers that see everything, enable_prefix_caching on",
        )


def size_of(cost: CostModel, settings: SchedulerSettings) -> TargetSize:
    """How big and fast one replica is, as the lab would find out with a few unloaded requests."""
    num_prompt = max(8, min(SIZE_PROMPT, settings.max_model_len // 4))
    context = num_prompt + SIZE_OUTPUT // 2
    chunk = settings.max_chunk_tokens
    ttft_ms = sum(
        cost.step_ms(prefill_shape(min(chunk, num_prompt - at), at, sampled=at + chunk >= num_prompt))
        for at in range(0, num_prompt, chunk)
    )
    alone_ms = cost.step_ms(decode_shape(1, context))
    rows = min(SIZE_ROWS, settings.max_num_seqs)
    together_ms = cost.step_ms(decode_shape(rows, context)) * SIZE_ROWS / rows
    return TargetSize(
        max_model_len=settings.max_model_len,
        ttft_s=ttft_ms / 1e3,
        ttft_tokens=num_prompt,
        tpot_s=alone_ms / 1e3,
        parallel=min(float(SIZE_ROWS), max(1.0, SIZE_ROWS * alone_ms / together_ms)),
    )


def for_fleet(spec: WorkloadSpec, num_replicas: int) -> WorkloadSpec:
    """A workload made for one replica, at so many times the rate; closed loops stay as they are."""
    if num_replicas == 1 or any(isinstance(stream.arrival, Closed) for stream in spec.streams):
        return spec
    return scale(spec, rate=num_replicas * offered_rps(spec))
