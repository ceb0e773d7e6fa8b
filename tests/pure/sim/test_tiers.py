"""Lower tiers of the KV cache: what goes down, what comes back and when, and what must not change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.pure.sim.kit import COST, plan_of, replica_spec, run_fleet, stream

from paceline.contracts.slo import Outcome, Timeline
from paceline.contracts.workload import Faults, PlannedRequest
from paceline.cost.transfer import Link
from paceline.errors import ConfigError, UnsupportedError
from paceline.lab.workload import Plan
from paceline.sim.cluster import Ended, Outage
from paceline.sim.fleet import ReplicaSpec
from paceline.sim.restores import NOTHING, Choice, Offer, RestorePolicy, choose, prefill_ms
from paceline.sim.split import Split
from paceline.sim.tiered import TieredCluster, Tiering
from paceline.sim.tiers import Stack, Tier, TierSpec

BLOCK_BYTES = 64  # of the kit's layout; blocks of 4 tokens
MIB = 1 << 20


def spec(name: str = "dram", blocks: int = 1000, gbps: float = 1.0, latency_us: float = 0.0, **more: Any) -> TierSpec:
    link = Link(gbps=gbps, latency_us=latency_us)
    return TierSpec(name=name, capacity_bytes=blocks * BLOCK_BYTES, link=link, **more)


def tiering(*specs: TierSpec, policy: RestorePolicy = "priced") -> Tiering:
    return Tiering(tiers=specs or (spec(),), policy=policy)


def keys(*names: int) -> list[bytes]:
    return [bytes([name]) * 16 for name in names]


# one tier


def test_the_oldest_makes_room_and_what_is_used_again_is_the_newest() -> None:
    tier = Tier(spec(blocks=3, shared=True), BLOCK_BYTES)
    assert tier.put(keys(1, 2, 3), 0.0) == []
    assert tier.put(keys(2, 4), 1.0) == keys(1)  # 2 was there, and is not written again
    assert tier.keys == keys(3, 2, 4)
    tier.read(keys(3), 2.0)
    assert tier.put(keys(5), 3.0) == keys(2)
    assert (tier.num_stored, tier.num_read, tier.num_spilled) == (5, 1, 2)
    tier.check()


def test_more_than_fits_at_once_goes_through() -> None:
    tier = Tier(spec(blocks=2), BLOCK_BYTES)
    assert tier.put(keys(1, 2, 3, 4), 0.0) == keys(1, 2)
    tier.check()


def test_what_falls_out_of_one_tier_goes_to_the_next_and_nothing_is_held_twice() -> None:
    near, far = Tier(spec("dram", 2), BLOCK_BYTES), Tier(spec("nvme", 3), BLOCK_BYTES)
    stack = Stack([near, far])
    stack.push(keys(1, 2, 3, 4, 5, 6), 0.0)
    assert (near.keys, far.keys) == (keys(5, 6), keys(2, 3, 4))
    assert stack.find(keys(6)[0], 1.0) is near
    assert stack.find(keys(3)[0], 1.0) is far
    assert stack.find(keys(1)[0], 1.0) is None
    far.read(keys(3), 1.0)
    stack.give_up(keys(5, 9))
    assert (near.keys, far.keys) == (keys(6), keys(2, 4))
    for tier in stack.tiers:
        tier.check()


@given(st.lists(st.tuples(st.sampled_from(("push", "read", "give up")), st.sets(st.integers(0, 30), min_size=1))))
def test_blocks_come_and_go_one_by_one(script: list[tuple[str, set[int]]]) -> None:
    own, shared = Tier(spec("dram", 5), BLOCK_BYTES), Tier(spec("store", 9, shared=True), BLOCK_BYTES)
    stack = Stack([own, shared])
    now = 0.0
    for what, names in script:
        now += 1.0
        if what == "push":  # a device evicts what its tiers have given up before
            stack.give_up(keys(*names))
            stack.push(keys(*names), now)
        elif what == "read":
            for tier in stack.tiers:
                tier.read([key for key in keys(*names) if tier.has(key, now)], now)
        else:
            stack.give_up(keys(*names))
        for tier in stack.tiers:
            tier.check()


def test_a_transfer_takes_its_latency_its_bytes_and_its_turn() -> None:
    tier = Tier(spec(gbps=64e-9, latency_us=250_000.0), BLOCK_BYTES)  # one block a second, a quarter to begin
    tier.put(keys(1, 2, 3, 4), 10.0)
    assert not tier.has(keys(1)[0], 14.2)  # one write, done at 14.25
    assert tier.has(keys(1)[0], 14.25)
    assert tier.read_ms(2, 20.0) == pytest.approx(2250.0)
    assert tier.read(keys(1, 2), 20.0) == pytest.approx(22.25)
    assert tier.read_ms(1, 21.0) == pytest.approx(1250.0 + 1250.0)
    assert tier.read(keys(3), 21.0) == pytest.approx(23.5)
    assert tier.read(keys(4), 30.0) == pytest.approx(31.25)  # the link was free again
    tier.put(keys(9), 12.0)
    assert not tier.has(keys(9)[0], 15.4)  # behind the first write, 14.25 + 1.25
    assert tier.reads_s == pytest.approx(4.75)
    assert tier.busy_share(50.0) == pytest.approx(5.5 / 50.0)  # the writes: the busier way


# the choice


def test_the_best_number_of_blocks_is_taken_or_none() -> None:
    offers = [Offer(4, 10.0), Offer(9, 40.0), Offer(12, 100.0)]
    assert choose(offers, lambda n: 5.0 * n, "priced") == Choice(4, 10.0, 20.0)
    assert choose(offers, lambda n: 9.0 * n, "priced") == Choice(9, 40.0, 81.0)
    assert choose(offers, lambda n: 2.0 * n, "priced") == NOTHING
    assert choose(offers, lambda n: 2.5 * n, "priced") == NOTHING  # as long either way: it stays
    assert choose(offers, lambda n: 2.0 * n, "priced", hidden_ms=4.0) == Choice(4, 10.0, 8.0)
    assert choose(offers, lambda n: 2.0 * n, "priced", num_running=1) == Choice(4, 10.0, 8.0)  # whom prefill delays too
    assert choose(offers, lambda n: 2.0 * n, "priced", num_running=9) == Choice(9, 40.0, 18.0)
    assert choose(offers, lambda n: 2.0 * n, "always") == Choice(12, 100.0, 24.0)
    assert choose(offers, lambda n: 99.0 * n, "never") == NOTHING
    assert choose([], lambda n: 99.0 * n, "always") == NOTHING


def test_a_prompt_is_priced_as_its_chunks() -> None:
    def step(tokens: int, cached: int) -> float:
        return 8.0 + 0.25 * tokens + 0.5 + 0.002 * cached

    assert prefill_ms(COST, 0, 10, 64) == pytest.approx(step(10, 0))
    assert prefill_ms(COST, 4, 24, 8) == pytest.approx(step(8, 4) + step(8, 12) + step(4, 20))


# fleets

SMALL = replica_spec(num_blocks=40, max_num_batched_tokens=64)


def visits(*prompts: tuple[float, int], num_input: int = 64, **more: Any) -> Plan:
    """(time, text): requests of `num_input` tokens; equal texts have all but the last 4 tokens in common."""
    requests = [
        PlannedRequest(
            id=index, stream="s", at_s=at_s, num_input_tokens=num_input, num_output_tokens=4, content_seed=1000 + index,
            prefix_group=text, num_prefix_tokens=num_input - 4, **more,
        )
        for index, (at_s, text) in enumerate(prompts)
    ]  # fmt: skip
    return Plan(requests=tuple(requests), span_s=0.0, drain_s=1e6)


RETURNS = ((0.0, 0), (1.0, 1), (2.0, 2), (3.0, 3), (4.0, 0))  # the first text was evicted when it comes again


def timelines(ended: Sequence[Ended]) -> list[Timeline]:
    return [e.timeline for e in ended if e.timeline is not None]


def run(
    plan: Plan, tiers: Tiering | None, replica: ReplicaSpec = SMALL, **options: Any
) -> tuple[list[Ended], TieredCluster]:
    ended, cluster = run_fleet(plan, replica, tiering=tiers, **options)
    assert isinstance(cluster, TieredCluster)
    for tiers_of_a_name in cluster.tiers.values():
        for tier in tiers_of_a_name:
            tier.check()
    return ended, cluster


def test_an_evicted_prefix_comes_back_in_its_transfer_time() -> None:
    alone, _ = run_fleet(visits(*RETURNS), SMALL)
    link = Link(gbps=64e-9 * 2000, latency_us=1500.0)  # half a millisecond a block
    tiers = tiering(TierSpec(name="dram", capacity_bytes=MIB, link=link))
    ended, cluster = run(visits(*RETURNS), tiers)
    (tier,) = cluster.tiers["dram"]
    num_back = tier.num_read
    last, usage = timelines(ended)[-1], ended[-1].usage
    assert usage is not None
    assert 0 < num_back <= 15
    assert usage.restored_tokens == 4 * num_back
    assert usage.cached_tokens + usage.restored_tokens == 60
    assert usage.cached_tokens + usage.restored_tokens + usage.computed_tokens == 64 + 3  # the last token is not fed
    takes_s = (1.5 + 0.5 * num_back) / 1e3
    step_s = (8.0 + 0.25 * 4 + 0.5 + 0.002 * 60) / 1e3
    assert last.ttft_s == pytest.approx(takes_s + step_s, abs=1e-9)
    assert tier.restore_ms == pytest.approx([1e3 * takes_s])
    assert tier.recompute_ms == pytest.approx([0.25 * 4 * num_back - 0.002 * 4 * num_back])
    assert last.ttft_s < timelines(alone)[-1].ttft_s
    for one, other in zip(timelines(ended)[:-1], timelines(alone)[:-1], strict=True):
        assert one.chunks == other.chunks


def test_two_that_want_the_same_blocks_wait_for_one_transfer() -> None:
    tiers = tiering(spec(gbps=64e-9 * 2000, latency_us=1500.0))
    ended, cluster = run(visits(*RETURNS, (4.002, 0)), tiers)
    (tier,) = cluster.tiers["dram"]
    assert len(tier.restore_ms) == 1
    first, second = timelines(ended)[-2:]
    for each in ended[-2:]:
        assert each.usage is not None
        assert each.usage.restored_tokens == 4 * tier.num_read
    there = 4.0 + tier.restore_ms[0] / 1e3
    assert first.admitted == pytest.approx(there)
    assert second.admitted == pytest.approx(there)


@pytest.mark.parametrize("gbps", [64e-9 * rate for rate in (50, 200, 500, 1000, 1500, 4000, 1e6)])
def test_priced_is_as_good_as_the_better_of_always_and_never(gbps: float) -> None:
    """Requests that do not meet: one with nothing else to do is never made slower by its tiers."""
    plan = visits(*((float(at), text) for at, text in enumerate((0, 1, 2, 3, 0, 2, 4, 1, 1, 0, 5, 3, 2, 0, 4))))
    means = {}
    for policy in ("priced", "always", "never"):
        ended, _ = run(plan, tiering(spec("dram", 20, gbps), spec("nvme", 60, gbps / 4), policy=policy))  # type: ignore[arg-type]
        means[policy] = sum(t.ttft_s for t in timelines(ended)) / len(ended)
    alone, _ = run_fleet(plan, SMALL)
    assert means["never"] == pytest.approx(sum(t.ttft_s for t in timelines(alone)) / len(alone), abs=1e-12)
    assert means["priced"] <= min(means["always"], means["never"]) + 1e-12


LENGTHS = {"kind": "lognormal", "p50": 20, "p99": 80, "max": 100}
CHATS = {"mean": 3, "max": 5, "think_s": 0.7}


def chats(num_requests: int = 60, rate: float = 6.0, **more: Any) -> Plan:
    load = stream({"kind": "poisson", "rate": rate}, 40, LENGTHS, turns=CHATS, **more)
    return plan_of(num_requests=num_requests, drain_s=1e6, max_model_len=500, stream=[load])


BOTH = tiering(spec("dram", 60, 3e-4, 100.0), spec("nvme", 200, 1e-4, 300.0))
SHARED = tiering(spec("dram", 30, 3e-4, 100.0), spec("store", 400, 2e-4, 500.0, shared=True))
TIGHT = replica_spec(num_blocks=110)


def trace(ended: Sequence[Ended]) -> list[Any]:
    return [(e.planned.id, e.outcome, e.replica, e.end_s, e.usage, e.timeline) for e in ended]


@pytest.mark.parametrize("tiers", [BOTH, SHARED])
def test_the_same_seed_gives_the_same_trace(tiers: Tiering) -> None:
    options: dict[str, Any] = {"num_replicas": 2, "router": "predicted-seconds"}
    one, cluster = run(chats(rate=2.0), tiers, TIGHT, **options)
    other, _ = run(chats(rate=2.0), tiers, TIGHT, **options)
    assert trace(one) == trace(other)
    assert all(any(tier.num_read for tier in told) for told in cluster.tiers.values())


@pytest.mark.parametrize("tiers", [BOTH, SHARED])
@pytest.mark.parametrize("rate", [2.0, 6.0])
def test_runs_and_single_steps_agree(tiers: Tiering, rate: float) -> None:
    faults = {"disconnect_share": 0.1, "timeout_share": 0.2, "timeout_s": 0.3, "cancel_share": 0.1}
    both = [
        run(chats(rate=rate, faults=faults), tiers, TIGHT, num_replicas=2, macro_steps=macro) for macro in (True, False)
    ]
    (one, runs), (other, steps) = both
    for name, told in runs.tiers.items():
        for tier, same in zip(told, steps.tiers[name], strict=True):
            assert tier.keys == same.keys
            assert (tier.num_stored, tier.num_read) == (same.num_stored, same.num_read)
            assert tier.restore_ms == pytest.approx(same.restore_ms, abs=1e-6)
    assert any(tier.num_read for told in runs.tiers.values() for tier in told)
    for each, same_end in zip(one, other, strict=True):
        assert (each.outcome, each.replica) == (same_end.outcome, same_end.replica)
        assert each.end_s == pytest.approx(same_end.end_s, abs=1e-9)
    for timeline, same_times in zip(timelines(one), timelines(other), strict=True):
        assert [t for t, _ in timeline.chunks] == pytest.approx([t for t, _ in same_times.chunks], abs=1e-9)


def test_every_request_ends_once_and_every_position_is_counted_once() -> None:
    faults = {"disconnect_share": 0.2, "timeout_share": 0.3, "timeout_s": 0.15}
    load = stream({"kind": "poisson", "rate": 12.0}, 60, LENGTHS, prefix={"groups": 8, "tokens": 48}, faults=faults)
    plan = plan_of(num_requests=120, drain_s=1e6, stream=[load])
    changes = [Outage(replica=0, at_s=2.0, down_s=0.5)]
    ended, cluster = run(plan, BOTH, replica_spec(num_blocks=60), num_replicas=2, changes=changes, cold_start_s=0.5)
    assert any(tier.num_read for told in cluster.tiers.values() for tier in told)
    assert sorted(e.planned.id for e in ended) == [r.id for r in plan.requests]
    assert {Outcome.OK, Outcome.TIMEOUT, Outcome.STREAM_ERROR} <= {e.outcome for e in ended}
    for each in ended:
        if each.outcome is Outcome.OK:
            usage = each.usage
            assert usage is not None
            served = usage.cached_tokens + usage.restored_tokens + usage.computed_tokens - usage.wasted_tokens
            assert served == usage.prompt_tokens + usage.output_tokens - 1
    for replica in cluster.replicas:
        assert replica is not None
        assert replica.kv.stats().held == 0
        assert not replica.has_work
        replica.note(99.0)  # type: ignore[attr-defined]
        own = [key for tier in replica.stack.own for key in tier.keys]  # type: ignore[attr-defined]
        assert len(own) == len(set(own))
    assert cluster.num_open == 0


def test_a_client_that_leaves_while_its_blocks_come_does_not_stop_them() -> None:
    plan = visits(*RETURNS, (4.5, 0))
    leaves = Faults(disconnect_after_s=0.002)
    hurried = tuple(r if r.id != 4 else msgspec.structs.replace(r, faults=leaves) for r in plan.requests)
    tiers = tiering(spec(gbps=64e-9 * 2000, latency_us=1500.0))
    ended, cluster = run(Plan(requests=hurried, span_s=0.0, drain_s=1e6), tiers)
    gone, late = ended[-2:]
    assert gone.outcome is Outcome.DISCONNECT
    assert gone.end_s == pytest.approx(4.002)
    assert gone.timeline is not None
    assert not gone.timeline.chunks
    (tier,) = cluster.tiers["dram"]
    assert len(tier.restore_ms) == 1
    assert late.usage is not None
    assert late.usage.cached_tokens == 60  # on the device, where they came for the other
    assert late.usage.restored_tokens == 0


def test_a_replica_that_fails_loses_its_own_tiers_and_what_comes_but_not_shared_ones() -> None:
    slow = 64e-9 * 2000
    for shared in (False, True):
        tiers = tiering(spec("store", 1000, slow, 1500.0, shared=shared))
        plan = visits(*RETURNS, (5.0, 0))
        ended, cluster = run(plan, tiers, changes=[Outage(replica=0, at_s=4.004)], cold_start_s=0.1)
        cut, after = ended[-2:]
        assert cut.outcome is Outcome.STREAM_ERROR
        assert cut.end_s == pytest.approx(4.004)
        assert after.outcome is Outcome.OK
        assert after.usage is not None
        assert (after.usage.restored_tokens > 0) is shared
        assert len(cluster.tiers["store"]) == (1 if shared else 2)
        if not shared:
            assert [tier.until for tier in cluster.tiers["store"]] == [4.004, None]


def test_what_one_replica_pushed_out_another_finds_in_a_shared_tier() -> None:
    plan = visits(*((float(at), text) for at, text in enumerate((0, 9, 1, 9, 2, 9, 3, 9, 8, 0))))  # by turns
    for shared in (False, True):
        tiers = tiering(spec("store", 1000, 1.0, shared=shared))
        ended, _ = run(plan, tiers, num_replicas=2, router="round-robin")
        assert (ended[0].replica, ended[-1].replica) == (0, 1)
        assert ended[-1].usage is not None
        assert (ended[-1].usage.restored_tokens > 0) is shared


def test_the_router_knows_what_tiers_are_worth() -> None:
    plan = visits((0.0, 0), (0.001, 9), *((1.0 + at, 1 + at) for at in range(6)), (9.0, 0))
    chosen = {}
    for policy in ("priced", "never"):
        ended, _ = run(plan, tiering(policy=policy), num_replicas=2, router="prefix-affinity")  # type: ignore[arg-type]
        chosen[policy] = ended[-1]
        first = ended[0].replica
    assert chosen["priced"].replica == first
    assert chosen["priced"].usage is not None
    assert chosen["priced"].usage.restored_tokens > 0
    assert chosen["never"].usage is not None
    assert chosen["never"].usage.restored_tokens == 0


def test_tenants_do_not_find_each_others_blocks() -> None:
    plan = visits(*RETURNS)
    others = tuple(msgspec.structs.replace(r, tenant=f"t{r.id}") for r in plan.requests)
    _, cluster = run(Plan(requests=others, span_s=0.0, drain_s=1e6), tiering())
    assert [tier.num_read for tier in cluster.tiers["dram"]] == [0]


def test_a_queue_that_is_full_when_the_blocks_are_there_turns_away() -> None:
    slow = tiering(spec(gbps=64e-9 * 2000, latency_us=1500.0))
    replica = replica_spec(num_blocks=40, max_waiting_requests=1, max_num_seqs=1)
    ended, cluster = run(visits(*RETURNS, (4.001, 7), (4.002, 8)), slow, replica)
    last = {e.planned.id: e for e in ended}[4]
    assert last.outcome is Outcome.REJECTED
    assert last.plan_s == 4.0
    assert cluster.num_open == 0


def test_what_cannot_be_is_said() -> None:
    with pytest.raises(ConfigError, match="the same name"):
        tiering(spec(), spec())
    with pytest.raises(ConfigError, match="behind a shared one"):
        tiering(spec("store", shared=True), spec("nvme"))
    with pytest.raises(ConfigError, match="no name or no room"):
        spec("dram", 0)
    with pytest.raises(ConfigError, match="holds no block"):
        run(visits(*RETURNS), Tiering(tiers=(TierSpec(name="dram", capacity_bytes=63, link=Link(gbps=1.0)),)))
    with pytest.raises(UnsupportedError, match="plain KV caches"):
        run(visits(*RETURNS), tiering(), replica_spec(prefix_caching=False))
    with pytest.raises(UnsupportedError, match="plain KV caches"):
        run(visits(*RETURNS), tiering(), replica_spec(windows=(None, 8)))
    split = Split(num_prefill=1, link=Link(gbps=1.0), kv_bytes_per_token=1.0)
    with pytest.raises(UnsupportedError, match="have no lower tiers"):
        run(visits(*RETURNS), tiering(), num_replicas=2, split=split)
