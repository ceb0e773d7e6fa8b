"""PL107: lower tiers whose KV comes more slowly than it is computed, from prices and from what a simulation tells.

The device of two prices computes a token in 0.5 ms; a token of SPEC is 128 bytes of KV, so at 0.0001 GB/s it takes
1.28 ms to come back.
"""

from typing import Any

import msgspec
import pytest
from tests.pure.lab.metrics.logs import steady_log
from tests.pure.planner.lint.worlds import KV_PER_TOKEN, config, found, run, workload

from paceline.contracts.lint import Severity
from paceline.planner.lint import Facts, FleetFacts, TierFacts, lint


def with_tier(facts: Facts, policy: str = "always", **tier: Any) -> Facts:
    tier = {"name": "nvme", "gbps": 0.0001, **tier}
    return msgspec.structs.replace(facts, fleet=FleetFacts(tiers=(TierFacts(**tier),), tier_policy=policy))


def test_a_tier_slower_than_prefill_is_found_and_pricing_or_a_faster_one_clears_it():
    facts = with_tier(config(workload(input=20, output=4, prefix={"groups": 2, "tokens": 100})))
    (finding,) = found(facts, "PL107")
    assert finding.severity is Severity.WARNING
    assert finding.fix.fleet == {"kv_tier_policy": "priced"}
    evidence = {e.name: e.value for e in finding.evidence}
    tokens = evidence["tokens that come back"]
    assert evidence["restoring them"] == pytest.approx(tokens * KV_PER_TOKEN / 100)
    assert evidence["computing them"] == pytest.approx(0.5 * tokens)
    (priced,) = found(with_tier(facts, "priced"), "PL107")
    assert priced.severity is Severity.INFO  # nothing is restored, so nothing is lost
    assert found(with_tier(facts, gbps=0.001), "PL107") == []


def test_a_latency_pays_from_a_length_on():
    """20 ms before the first byte, then 0.128 ms a token: 54 tokens are even, 64 in whole blocks."""
    facts = with_tier(config(workload(input=20, output=4, prefix={"groups": 2, "tokens": 32})), gbps=0.001,
                      latency_us=20_000.0)  # fmt: skip
    (finding,) = found(facts, "PL107")
    assert {e.name: e.value for e in finding.evidence}["break-even length"] == 64
    long = with_tier(config(workload(input=20, output=4, prefix={"groups": 2, "tokens": 128})), gbps=0.001,
                     latency_us=20_000.0)  # fmt: skip
    assert found(long, "PL107") == []


def test_without_a_workload_half_of_a_sequence_comes_back():
    (finding,) = found(with_tier(config()), "PL107")
    assert {e.name: e.value for e in finding.evidence}["tokens that come back"] == 1024
    assert "--kv-tier" in lint(config()).skipped["PL107"]


@pytest.mark.parametrize(
    ("told", "severities"),
    [
        ({"restored_requests": 9, "restore_ms_p95": 40.0, "recompute_ms_p95": 30.0}, [Severity.WARNING]),
        ({"restored_requests": 9, "restore_ms_p95": 20.0, "recompute_ms_p95": 30.0}, []),
        ({"restored_requests": 0, "restore_ms_p95": None, "recompute_ms_p95": None}, []),
        ({"restored_requests": 9, "restore_ms_p95": 20.0, "recompute_ms_p95": 30.0, "link_busy_share": 0.9},
         [Severity.INFO]),
    ],
)  # fmt: skip
def test_a_run_tells_what_its_restores_took(told, severities):
    tier = {
        "name": "nvme", "capacity_bytes": 1 << 30, "gbps": 2.0, "latency_us": 100.0, "shared": False,
        "stored_blocks": 40, "restored_blocks": 20, "refused_restores": 0, "link_busy_share": 0.1,
    }  # fmt: skip
    rows = [{**tier, **told}]
    facts = run(steady_log(8), fingerprint={"simulation": {"replicas": 1, "tiers": rows, "tier_policy": "always"}})
    findings = found(facts, "PL107")
    assert [f.severity for f in findings] == severities
    for finding in findings:
        assert finding.subject == "nvme"
        assert finding.fix.fleet == {"kv_tier_policy": "priced"}
