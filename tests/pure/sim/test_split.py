"""Prefill and decode apart: what the way between them costs, and what it must not change."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from tests.pure.sim.kit import COST, plan_of, replica_spec, run_fleet, stream

from paceline.contracts.slo import Outcome, Timeline
from paceline.cost import decode_shape
from paceline.cost.transfer import Link
from paceline.errors import ConfigError, UnsupportedError
from paceline.sim.cluster import Ended, Outage
from paceline.sim.split import Links, Split, SplitCluster

ROOMY = replica_spec(num_blocks=2048, max_num_batched_tokens=512)
FREE = Link(gbps=1e9)
KV_BYTES = 1e6  # of a token
LENGTHS = {"kind": "lognormal", "p50": 20, "p99": 80, "max": 100}


def split(link: Link = FREE, **options: Any) -> Split:
    return Split(**({"num_prefill": 1, "link": link, "kv_bytes_per_token": KV_BYTES} | options))


def timelines(ended: list[Ended]) -> list[Timeline]:
    return [e.timeline for e in ended if e.timeline is not None]


def one_by_one(num_input: int = 64, num_output: int = 10) -> Any:
    """Requests that never meet; the prompt is in whole blocks, so that all of its KV is sent."""
    return plan_of(
        num_requests=4, drain_s=1e6, stream=[stream({"kind": "constant", "rate": 0.1}, num_input, num_output)]
    )


def test_over_a_link_without_end_a_lone_request_is_as_fast_as_in_one_replica() -> None:
    together, _ = run_fleet(one_by_one(), ROOMY, num_replicas=2)
    apart, _ = run_fleet(one_by_one(), ROOMY, num_replicas=2, split=split(kv_bytes_per_token=0.0))
    for one, other in zip(timelines(apart), timelines(together), strict=True):
        assert [t for t, _ in one.chunks] == pytest.approx([t for t, _ in other.chunks], abs=1e-9)


def test_the_transfer_is_in_ttft_and_nowhere_else() -> None:
    link = Link(gbps=2.0, latency_us=500.0)
    free, _ = run_fleet(one_by_one(), ROOMY, num_replicas=2, split=split(kv_bytes_per_token=0.0))
    slow, cluster = run_fleet(one_by_one(), ROOMY, num_replicas=2, split=split(link))
    takes_s = link.ms(64 * KV_BYTES) / 1e3
    assert takes_s > 0.03
    for one, other in zip(timelines(slow), timelines(free), strict=True):
        assert one.ttft_s == pytest.approx(other.ttft_s + takes_s, abs=1e-9)
        assert one.tpot_s == pytest.approx(other.tpot_s, abs=1e-9)
    assert isinstance(cluster, SplitCluster)
    assert cluster.links.busy_s == pytest.approx(4 * takes_s)
    assert cluster.links.waited_s == 0.0


def test_layers_that_leave_early_hide_all_but_the_last_of_them() -> None:
    link = Link(gbps=16.0)  # 4 ms for a prompt that takes 24 ms
    free, _ = run_fleet(one_by_one(), ROOMY, num_replicas=2, split=split(kv_bytes_per_token=0.0))
    hidden, _ = run_fleet(one_by_one(), ROOMY, num_replicas=2, split=split(link, num_layers=8))
    for one, other in zip(timelines(hidden), timelines(free), strict=True):
        assert one.ttft_s == pytest.approx(other.ttft_s + link.ms(64 * KV_BYTES) / 8 / 1e3, abs=1e-9)


def test_a_transfer_longer_than_its_prompt_begins_after_the_first_layer() -> None:
    links = Links(split(Link(gbps=1.0), num_layers=4))
    assert links.send(0, 1, 8e9, began=2.0, ready=4.0) == pytest.approx(2.5 + 8.0)


def test_links_carry_one_prompt_at_a_time_in_each_direction() -> None:
    links = Links(split(Link(gbps=1.0)))
    assert links.send(0, 2, 1e9, began=0.0, ready=1.0) == 2.0
    assert links.send(0, 3, 1e9, began=0.0, ready=1.0) == 3.0  # the sender's is taken
    assert links.send(1, 2, 1e9, began=0.0, ready=1.5) == 3.0  # the receiver's was until 2
    assert links.send(1, 4, 0.0, began=0.0, ready=1.5) == 1.5  # nothing to send waits for nothing
    assert links.waited_s == pytest.approx(1.0 + 0.5)


def test_what_the_decode_side_has_is_not_sent_again() -> None:
    prefix = {"groups": 1, "tokens": 48}
    plan = plan_of(
        num_requests=3, drain_s=1e6, stream=[stream({"kind": "constant", "rate": 0.1}, 64, 4, prefix=prefix)]
    )
    _, cluster = run_fleet(plan, ROOMY, num_replicas=2, split=split(Link(gbps=1.0)))
    assert isinstance(cluster, SplitCluster)
    assert cluster.links.busy_s == pytest.approx((48 + 64 + 64 + 64) * KV_BYTES / 1e9)


def test_decode_steps_hold_no_prompts_so_tpot_does_not_feel_them() -> None:
    """The same load and number of replicas: together, prompts lengthen others' steps."""
    busy = {"kind": "poisson", "rate": 12.0}
    plan = plan_of(num_requests=60, drain_s=1e6, stream=[stream(busy, 256, 8)])
    together, _ = run_fleet(plan, ROOMY, num_replicas=2)
    apart, _ = run_fleet(plan, ROOMY, num_replicas=2, split=split(kv_bytes_per_token=0.0))
    tpots = [max(t.tpot_s for t in timelines(ended)) for ended in (together, apart)]
    longest = COST.step_ms(decode_shape(4, 264)) / 1e3
    assert tpots[1] < tpots[0]
    steps = [b - a for t in timelines(apart) for (a, _), (b, _) in zip(t.chunks[1:], t.chunks[2:], strict=False)]
    assert max(steps) <= longest + COST.per_token_ms * 3 / 1e3  # those that begin compute the rest of a block


@pytest.mark.parametrize("macro_steps", [True, False])
def test_every_request_ends_once_and_every_token_is_counted_once(macro_steps: bool) -> None:
    more: dict[str, Any] = {
        "faults": {"cancel_share": 0.2, "disconnect_share": 0.1, "timeout_share": 0.2, "timeout_s": 0.15},
    }
    plan = plan_of(
        num_requests=60, drain_s=60.0, stream=[stream({"kind": "poisson", "rate": 20.0}, 24, LENGTHS, **more)]
    )
    ended, cluster = run_fleet(
        plan, replica_spec(num_blocks=80), num_replicas=4, split=split(Link(gbps=1.0), num_prefill=2),
        macro_steps=macro_steps, changes=[Outage(replica=3, at_s=1.5, down_s=0.5)],
    )  # fmt: skip
    assert [e.planned.id for e in ended] == [r.id for r in plan.requests]
    outcomes = Counter(e.outcome for e in ended)
    assert {Outcome.OK, Outcome.CLIENT_CANCEL, Outcome.TIMEOUT} <= set(outcomes)
    for e in ended:
        if e.outcome is Outcome.OK:
            assert e.timeline is not None
            assert e.usage is not None
            assert e.timeline.num_tokens == e.usage.output_tokens == e.planned.num_output_tokens
            assert e.usage.prompt_tokens == e.planned.num_input_tokens
            times = [t for t, _ in e.timeline.chunks]
            assert times == sorted(times)
            assert e.replica in (2, 3) or e.planned.num_output_tokens == 1
    for replica in cluster.replicas:
        assert replica is not None
        assert replica.kv.stats().held == 0


def test_runs_and_single_steps_agree() -> None:
    plan = plan_of(num_requests=40, drain_s=1e6, stream=[stream({"kind": "poisson", "rate": 20.0}, 24, LENGTHS)])
    both = [
        run_fleet(plan, ROOMY, num_replicas=3, split=split(Link(gbps=1.0)), macro_steps=macro)[0]
        for macro in (True, False)
    ]
    for one, other in zip(*(timelines(ended) for ended in both), strict=True):
        assert [t for t, _ in one.chunks] == pytest.approx([t for t, _ in other.chunks], abs=1e-9)


def test_when_the_time_is_up_what_is_on_its_way_is_cut_off_too() -> None:
    plan = plan_of(duration_s=1.0, drain_s=0.1, stream=[stream({"kind": "constant", "rate": 5.0}, 64, 4)])
    ended, _ = run_fleet(plan, ROOMY, num_replicas=2, split=split(Link(gbps=0.05)))
    assert len(ended) == len(plan.requests)
    cut = [e for e in ended if e.outcome is Outcome.TIMEOUT]
    assert cut
    assert any(e.timeline is not None and not e.timeline.chunks for e in cut)


def test_what_cannot_be_divided_is_said() -> None:
    plan = one_by_one()
    with pytest.raises(ConfigError, match="no replica is left to decode"):
        run_fleet(plan, ROOMY, num_replicas=1, split=split())
    with pytest.raises(UnsupportedError, match="plain KV caches"):
        run_fleet(plan, replica_spec(prefix_caching=False), num_replicas=2, split=split())
    with pytest.raises(UnsupportedError, match="plain KV caches"):
        run_fleet(plan, replica_spec(windows=(None, 8)), num_replicas=2, split=split())
    with pytest.raises(ConfigError, match="cannot be"):
        split(num_layers=0)
    assert np.isfinite(split().link.gbps)
