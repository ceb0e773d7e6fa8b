"""PL107: KV comes back from a lower tier more slowly than it would be computed."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.contracts.lint import Finding, Fix, Severity
from paceline.planner.lint.facts import EngineFacts, Facts, LoadFacts, RunFacts
from paceline.planner.lint.fleet import FleetFacts, TierFacts
from paceline.planner.lint.prices import Prices
from paceline.planner.lint.rule import Rule
from paceline.planner.lint.words import CONFIGURED, fact, share

_BUSY = 0.8  # of a link's time
_BLOCK = 16  # tokens: nothing shorter is kept
_SIMULATOR = "the simulator"


def check(facts: Facts) -> Iterator[Finding]:
    fleet = facts.fleet
    assert fleet is not None, "needs()"
    for tier in fleet.tiers:
        if facts.run is not None:
            yield from _measured(fleet, tier, facts.run)
        else:
            assert facts.prices is not None, "needs()"
            assert facts.engine is not None, "needs()"
            yield from _predicted(fleet, tier, facts.prices, facts.engine, facts.load)


def needs(facts: Facts) -> str:
    if facts.fleet is None or not facts.fleet.tiers:
        return "a lower tier of the KV cache (--kv-tier)"
    if facts.run is None and (facts.prices is None or facts.engine is None):
        return "the cost model of a device"
    return ""


def _predicted(
    fleet: FleetFacts, tier: TierFacts, prices: Prices, engine: EngineFacts, load: LoadFacts | None
) -> Iterator[Finding]:
    reused = [r.num_cached for r in load.requests if r.num_cached >= _BLOCK] if load is not None else []
    longest = engine.max_model_len or engine.expected_context or 4096
    tokens = round(sum(reused) / len(reused)) if reused else max(_BLOCK, (engine.expected_context or longest) // 2)
    restore, recompute = _restore_ms(tier, prices, tokens), prices.prefill_ms(tokens)
    if restore <= recompute:
        return
    even = _break_even(tier, prices, longest)
    pays = f"from {even:,} tokens on it would be as fast" if even is not None else "no length of the model is faster"
    what = "what requests of the workload share" if reused else "half of what a sequence is planned for"
    sentence = (
        f"Bringing {tokens:,} tokens ({what}) from {tier.name} takes {restore:.3g} ms at {tier.gbps:g} GB/s, and "
        f"computing them {recompute:.3g} ms; {pays}."
    )
    tier_word = f"predicted ({prices.decode(1, tokens).tier})"
    evidence = [
        fact("tier", f"{tier.name}: {tier.gbps:g} GB/s, {tier.latency_us:g} us", "", CONFIGURED),
        fact("tokens that come back", tokens, "tokens", CONFIGURED),
        fact("their KV", prices.kv_bytes(tokens), "bytes", CONFIGURED),
        fact("restoring them", restore, "ms", "latency + bytes / rate"),
        fact("computing them", recompute, "ms", tier_word),
    ]
    if even is not None:
        evidence.append(fact("break-even length", even, "tokens", tier_word))
    wanted = _gbps_for(tier, prices, tokens, recompute)
    faster = f"a tier of {wanted:.3g} GB/s or more" if wanted is not None else "a tier that answers sooner"
    priced = fleet.tier_policy == "priced"
    words = f"{faster}, or none" if priced else f"--kv-tier-policy priced, which computes such prefixes; or {faster}"
    fix = Fix(
        words=words,
        fleet={} if priced else {"kv_tier_policy": "priced"},
        gain=f"{restore - recompute:.3g} ms of TTFT for each such request" if not priced else "memory that is not used",
    )
    severity = Severity.INFO if priced else Severity.WARNING  # priced: nothing is restored, and nothing is lost
    yield RULE.finding(severity, sentence, fix, tuple(evidence), subject=tier.name)


def _restore_ms(tier: TierFacts, prices: Prices, tokens: int) -> float:
    return tier.latency_us / 1e3 + prices.kv_bytes(tokens) / (1e6 * tier.gbps)


def _break_even(tier: TierFacts, prices: Prices, longest: int) -> int | None:
    """Least tokens, in whole blocks, for which restoring is no slower than computing; None: no length is."""

    def pays(blocks: int) -> bool:
        return _restore_ms(tier, prices, blocks * _BLOCK) <= prices.prefill_ms(blocks * _BLOCK)

    low, high = 0, max(1, longest // _BLOCK)
    if not pays(high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if pays(middle) else (middle, high)
    return high * _BLOCK


def _gbps_for(tier: TierFacts, prices: Prices, tokens: int, within_ms: float) -> float | None:
    left = within_ms - tier.latency_us / 1e3
    return prices.kv_bytes(tokens) / (1e6 * left) if left > 0 else None


def _measured(fleet: FleetFacts, tier: TierFacts, run: RunFacts) -> Iterator[Finding]:
    restore, recompute, busy = tier.restore_ms_p95, tier.recompute_ms_p95, tier.link_busy_share
    slow = bool(tier.restored_requests) and restore is not None and recompute is not None and restore > recompute
    full = busy is not None and busy > _BUSY
    if not slow and not full:
        return
    said = []
    if slow:
        said.append(
            f"restoring a prefix took {restore:.3g} ms at p95, and computing it would have taken {recompute:.3g}"
        )
    if full:
        assert busy is not None
        why = "restores wait for each other" if tier.restored_requests else "nothing that it stores comes back in time"
        said.append(f"its link carried something {share(busy)} of the time, and {why}")
    evidence = [
        fact("tier", f"{tier.name}: {tier.gbps:g} GB/s, {tier.latency_us:g} us", "", CONFIGURED),
        fact("policy", fleet.tier_policy or "not told", "", CONFIGURED),
    ]
    for name, value, unit in (
        ("requests with restored KV", tier.restored_requests, ""),
        ("restoring, p95", restore, "ms"),
        ("computing the same tokens, p95", recompute, "ms"),
        ("link busy", busy, "share"),
    ):
        if value is not None:
            evidence.append(fact(name, value, unit, _SIMULATOR))
    if back := [r.num_restored for r in run.requests if r.num_restored]:
        evidence.append(fact("requests with restored KV, of the records", len(back)))
        evidence.append(fact("tokens that came back, of each", sum(back) / len(back), "tokens"))
    priced = {} if fleet.tier_policy in ("", "priced") else {"kv_tier_policy": "priced"}
    words = "a faster tier, a link for each replica, or no such tier"
    fix = Fix(
        words=f"--kv-tier-policy priced, which computes what comes back too late; or {words}" if priced else words,
        fleet=priced,
    )
    severity = Severity.WARNING if slow else Severity.INFO
    yield RULE.finding(severity, f"{tier.name}: {'; '.join(said)}.", fix, tuple(evidence), subject=tier.name)


RULE = Rule(
    code="PL107",
    title="offload slower than computing again",
    what="Restoring KV over PCIe or a network pays only where it is faster than the prefill of the same tokens.",
    evidence="From a configuration: latency and bytes over the tier's rate, against the cost model's prefill of the "
    "prefixes that the workload shares. From a simulated run: p95 of restores against the prefill of those tokens, and "
    "the share of time that the link was busy.",
    fix="Recompute below the break-even length, or a faster tier.",
    sources=("config", "run"),
    check=check,
    needs=needs,
)
