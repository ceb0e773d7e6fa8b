"""Law 7: a flooding tenant cannot move a quiet tenant's p95 TTFT beyond a stated bound. In virtual time.

100 clients of one tenant send as fast as they are answered; one client of another sends a request every second. A step
cannot be interrupted, so what is promised is in steps: the quiet tenant waits at most for the rest of the step it came
in and for what the flood adds to its own first step, two steps in all. How much that is beside its lone TTFT depends on
how long steps are beside its own prefill; the factors below are those of the stated loads.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from tests.fakes.builders import make_request, simulated_engine

from paceline.contracts.slo import percentile
from paceline.cost.linear import LinearStepCost
from paceline.errors import RateLimitError
from paceline.server.tenancy.keys import hash_key
from paceline.server.tenancy.tenants import Tenant, TenantBook

SECONDS = 24.0
COUNTED_FROM = 1.0  # arrivals; until 4 s before the end
FAST = LinearStepCost(fixed_ms=10.0, per_token_ms=0.1, per_row_ms=0.04, per_context_token_ms=0.0004)  # an accelerator
SLOW = LinearStepCost(fixed_ms=41.0, per_token_ms=0.9, per_row_ms=0.5, per_context_token_ms=0.0005)  # two CPU cores


@dataclass
class Load:
    cost: LinearStepCost
    quiet_prompt: int
    engine: dict[str, Any]
    max_concurrency: int | None = None  # of the flooding tenant; more of its calls are refused
    flood_prompt: int = 128


@dataclass
class Found:
    p95_s: float
    longest_step_s: float
    flood_tokens: int = 0
    ttft_s: list[float] = field(default_factory=list)


def run(
    load: Load,
    *,
    clients: int = 100,
    policy: str = "fair",
    names: tuple[str, str] = ("flood", "quiet"),
    seconds: float = SECONDS,
    jitter: float = 0.0,
) -> Found:
    """The quiet tenant's TTFT beside `clients` of the flooding one. Its gaps are 1 s, give or take half of `jitter`."""
    engine = simulated_engine(cost=load.cost, policy=policy, max_model_len=4096, **load.engine)
    tenants = [Tenant(name=names[0], classes=("default",), max_concurrency=load.max_concurrency)]
    book = TenantBook(tenants, keys=[(hash_key("f"), names[0])])
    flood = book.authenticate("Bearer f")
    random, gaps = np.random.default_rng(0), np.random.default_rng(1)
    leases: dict[int, Any] = {}
    came: dict[int, float] = {}
    first: dict[int, float] = {}
    next_id, next_quiet, longest, tokens = 0, 0.5, 0.0, 0

    def submit(tenant: str, num_prompt: int, num_output: int, arrival: float) -> int:
        nonlocal next_id
        next_id += 1
        prompt = random.integers(10, 30_000, num_prompt)
        engine.core.submit(make_request(next_id, prompt, num_output, tenant=tenant, arrival=arrival))
        return next_id

    while (now := engine.clock.now()) < seconds:
        while len(leases) < clients:
            try:
                lease = book.admit(flood, load.flood_prompt, 64, now)
            except RateLimitError:
                break
            leases[submit(names[0], load.flood_prompt, 64, now)] = lease
        while next_quiet <= now:
            came[submit(names[1], load.quiet_prompt, 32, next_quiet)] = next_quiet
            next_quiet += 1.0 + jitter * (gaps.random() - 0.5)
        if not engine.core.has_work:
            engine.clock.advance_to(next_quiet)
            continue
        for output in engine.core.step():
            if output.request_id in came:
                if output.token_ids:
                    first.setdefault(output.request_id, engine.clock.now())
            else:
                tokens += len(output.token_ids)
                if output.finish is not None:
                    leases.pop(output.request_id).settle(None, engine.clock.now())
        longest = max(longest, engine.clock.now() - now)
    ttft = [first.get(i, float("inf")) - at for i, at in came.items() if COUNTED_FROM <= at < seconds - 4.0]
    return Found(percentile(ttft, 0.95) if ttft else 0.0, longest, tokens, ttft)


LOADS = {
    "fast": (Load(FAST, 128, {"max_rows": 32, "max_num_batched_tokens": 256}), 2.2),
    "fast, long prompts": (
        Load(FAST, 1024, {"max_rows": 32, "max_num_batched_tokens": 2048, "max_tokens": 2304, "num_blocks": 8192}),
        1.5,
    ),
    "slow": (Load(SLOW, 128, {"max_rows": 16, "max_num_batched_tokens": 128}), 2.0),
    "slow, the flood's prompts are long": (
        Load(SLOW, 128, {"max_rows": 16, "max_num_batched_tokens": 256, "num_blocks": 8192}, flood_prompt=600),
        2.0,
    ),
}


@pytest.mark.parametrize("name", LOADS)
def test_law_7_a_flood_costs_a_quiet_tenant_two_steps_at_most(name):
    load, factor = LOADS[name]
    lone = run(load, clients=0)
    beside = run(load)
    assert beside.flood_tokens > 0
    assert beside.p95_s <= lone.p95_s + 2 * beside.longest_step_s
    assert beside.p95_s <= factor * lone.p95_s, f"{beside.p95_s / lone.p95_s:.2f} times"


def test_without_the_fair_policy_a_quiet_tenant_waits_for_the_whole_queue():
    """The law is worth something: this load breaks the other policies."""
    load, factor = LOADS["slow"]
    lone = run(load, clients=0)
    assert run(load, policy="priority").p95_s > 10 * factor * lone.p95_s


def test_names_do_not_matter():
    load, _ = LOADS["slow"]
    assert run(load, names=("a", "q")).ttft_s == run(load, names=("z", "q")).ttft_s


def test_with_a_limit_on_the_floods_concurrency_one_and_a_half_times_is_kept():
    load, _ = LOADS["fast, long prompts"]
    limited = Load(load.cost, load.quiet_prompt, load.engine, max_concurrency=4)
    lone, beside = run(limited, clients=0), run(limited)
    assert beside.p95_s <= 1.5 * lone.p95_s, f"{beside.p95_s / lone.p95_s:.2f} times"


def test_a_tenant_that_is_alone_is_not_held_back():
    """With nobody else about, the fair policy computes what the others would."""
    load, _ = LOADS["slow"]
    found = []
    for policy in ("fair", "priority"):
        engine = simulated_engine(cost=load.cost, policy=policy, **load.engine)
        done = engine.run(*[make_request(i, [i % 40] * 100, 20, tenant="a") for i in range(40)])
        found.append((engine.clock.now(), {i: d.token_ids for i, d in done.items()}))
    assert found[0] == found[1]
