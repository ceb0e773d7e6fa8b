"""Small fleets and loads in a line each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from paceline.contracts.kv import KVGroupSpec, KVLayout
from paceline.contracts.ports import CostModel
from paceline.contracts.request import Request, RequestOutput, SamplingParams
from paceline.contracts.step import StepPlan
from paceline.cost import LinearStepCost
from paceline.engine.settings import SchedulerSettings
from paceline.lab.workload import Plan, load_spec, make_plan
from paceline.sim.cluster import Cluster, Ended
from paceline.sim.fleet import ReplicaSpec, make_cluster, make_replica
from paceline.sim.prompts import Answers
from paceline.sim.replica import NEVER, Replica

COST = LinearStepCost(fixed_ms=8.0, per_token_ms=0.25, per_row_ms=0.5, per_context_token_ms=0.002)


def replica_spec(
    *,
    num_blocks: int = 256,
    block_size: int = 4,
    windows: Sequence[int | None] = (None,),
    prefix_caching: bool = True,
    **settings: Any,
) -> ReplicaSpec:
    groups = tuple(
        KVGroupSpec(
            kind="full" if window is None else "sliding",
            layers=(layer,),
            block_size=block_size,
            bytes_per_block=64,
            window=window,
        )
        for layer, window in enumerate(windows)
    )
    given = {"max_num_seqs": 4, "max_num_batched_tokens": 64, "max_model_len": 512, "watermark": 0.0, **settings}
    return ReplicaSpec(
        settings=SchedulerSettings(**given),
        layout=KVLayout(groups=groups, num_blocks=num_blocks),
        prefix_caching=prefix_caching,
    )


def plan_of(seed: int = 0, **spec: Any) -> Plan:
    """The plan of a workload written as a table."""
    return make_plan(load_spec(spec), seed=seed)


def stream(arrival: dict[str, Any], num_input: Any = 16, num_output: Any = 8, **more: Any) -> dict[str, Any]:
    return {"arrival": arrival, "input": num_input, "output": num_output, **more}


def run_fleet(
    plan: Plan, replica: ReplicaSpec | None = None, *, cost: CostModel = COST, **options: Any
) -> tuple[list[Ended], Cluster]:
    """Everything that ended, by id, and the cluster afterwards."""
    ended: list[Ended] = []
    cluster = make_cluster(replica or replica_spec(), cost, plan, on_end=ended.append, **options)
    cluster.run()
    for each in cluster.replicas:
        if each is not None:
            each.kv.check()
    return sorted(ended, key=lambda e: e.planned.id), cluster


class Played:
    """One replica under a script of actions at times, with every plan it made."""

    def __init__(
        self,
        spec: ReplicaSpec,
        *,
        macro_steps: bool,
        write_plans: bool = True,
        cost: CostModel = COST,
        check: bool = False,
    ) -> None:
        self.replica: Replica = make_replica(
            0, spec, cost, Answers(1), macro_steps=macro_steps, write_plans=write_plans
        )
        self.plans: dict[int, StepPlan] = {}
        self.ends: dict[int, RequestOutput] = {}
        self.first_tokens: list[int] = []
        self.left: list[int] = []
        self._check = check
        made = self.replica.scheduler.plan

        def plan(now: float) -> StepPlan:
            planned = made(now)
            if not planned.is_empty:
                self.plans[planned.step] = planned
            return planned

        self.replica.scheduler.plan = plan  # type: ignore[method-assign]

    def run(self, script: Sequence[tuple[float, Callable[[Played, float], None]]]) -> Played:
        """Actions at their times, each before a step that begins then; until nothing is left to do."""
        replica, actions, at = self.replica, sorted(script, key=lambda entry: entry[0]), 0
        for _ in range(100_000):
            due = actions[at][0] if at < len(actions) else NEVER
            now = min(due, replica.next_time)
            if now == NEVER:
                return self
            if due <= replica.next_time:
                actions[at][1](self, now)
                at += 1
                if replica.is_idle:
                    replica.begin(now)
            else:
                self._take(now)
                replica.begin(now)
            if self._check:
                replica.kv.check()
        raise AssertionError("no end")

    def _take(self, now: float) -> None:
        news = self.replica.advance(now)
        self.first_tokens += news.first_tokens
        self.ends |= {output.request_id: output for output in news.ends}
        for request_id in news.left:
            self.left.append(request_id)
            self.abort(request_id, now)

    def abort(self, request_id: int, now: float) -> None:
        news = self.replica.abort(request_id, now)
        self.first_tokens += news.first_tokens
        self.ends |= {output.request_id: output for output in news.ends}


def submit(
    request_id: int,
    prompt: Any,
    max_tokens: int,
    *,
    leaves_after: int | None = None,
    may_leave: bool = False,
    **more: Any,
) -> Callable[[Played, float], None]:
    """An action: `prompt` is a prompt of `contracts.request`."""

    def act(played: Played, now: float) -> None:
        request = Request(
            request_id=request_id,
            prompt=prompt,
            sampling=SamplingParams(max_tokens=max_tokens, temperature=0.0, seed=0, ignore_eos=True),
            arrival=now,
            **more,
        )
        played.replica.submit(request, now, leaves_after=leaves_after, may_leave=may_leave)

    return act


def leave(request_id: int) -> Callable[[Played, float], None]:
    return lambda played, now: played.abort(request_id, now)
