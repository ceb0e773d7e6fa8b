"""Lower tiers of a simulated KV cache: how they are asked for, and what is told of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paceline.assemble.sim_engine import SimulatedEngine
from paceline.contracts.slo import percentile
from paceline.cost.transfer import Link
from paceline.errors import ConfigError, UnsupportedError
from paceline.sim.restores import RESTORE_POLICIES
from paceline.sim.tiered import TieredCluster, Tiering
from paceline.sim.tiers import Tier, TierSpec

_FORM = "NAME=GIB,GBPS[,US][,shared], such as dram=64,25,10 or store=2000,3,500,shared"


def tiering_of(texts: Sequence[str], policy: str, engine: SimulatedEngine) -> Tiering | None:
    """The tiers asked for, nearest first; None without any. Raises ConfigError for what was not understood, or cannot
    be, and UnsupportedError where tiers are not simulated."""
    found = next((each for each in RESTORE_POLICIES if each == policy), None)
    if found is None:
        raise ConfigError("no policy of tiers has this name", seen=policy, expected=", ".join(RESTORE_POLICIES))
    if not texts:
        return None
    if engine.degrees.ep > 1:
        raise UnsupportedError(
            "lower tiers are not simulated with expert groups, each of which has a cache of its own",
            seen=f"expert_parallel_size {engine.degrees.ep}",
            expected="1",
        )
    return Tiering(tiers=tuple(map(tier_of, texts)), policy=found)


def tier_of(text: str) -> TierSpec:
    """One tier as it is typed. Raises ConfigError."""
    name, _, rest = text.partition("=")
    parts = [part.strip() for part in rest.split(",")]
    shared = parts[-1] == "shared"
    try:
        gib, gbps, *more = map(float, parts[:-1] if shared else parts)
        (latency_us,) = more or (0.0,)
        capacity_bytes = round(gib * 2**30)
    except (ValueError, OverflowError):  # OverflowError: an endless store
        raise ConfigError("--kv-tier was not understood", seen=text, expected=_FORM) from None
    return TierSpec(
        name=name.strip(), capacity_bytes=capacity_bytes, link=Link(gbps=gbps, latency_us=latency_us), shared=shared
    )


def tier_rows(cluster: TieredCluster, specs: Sequence[TierSpec], end_s: float) -> list[dict[str, Any]]:
    """What became of each tier, for the run's artefact: sums over replicas; the link is the busiest one, its busier
    way. Times in ms, None where nothing was restored."""
    return [_row(spec, cluster.tiers[spec.name], end_s) for spec in specs]


def _row(spec: TierSpec, tiers: Sequence[Tier], end_s: float) -> dict[str, Any]:
    restores = [ms for tier in tiers for ms in tier.restore_ms]
    recomputes = [ms for tier in tiers for ms in tier.recompute_ms]
    return {
        "name": spec.name,
        "capacity_bytes": spec.capacity_bytes,
        "gbps": spec.link.gbps,
        "latency_us": spec.link.latency_us,
        "shared": spec.shared,
        "stored_blocks": sum(tier.num_stored for tier in tiers),
        "restored_blocks": sum(tier.num_read for tier in tiers),
        "restored_requests": len(restores),
        "restore_ms_p50": _at(restores, 0.50),
        "restore_ms_p95": _at(restores, 0.95),
        "recompute_ms_p50": _at(recomputes, 0.50),
        "recompute_ms_p95": _at(recomputes, 0.95),
        "link_busy_share": round(max((tier.busy_share(end_s) for tier in tiers), default=0.0), 6),
        "refused_restores": sum(tier.num_refused for tier in tiers),
    }


def _at(samples: Sequence[float], q: float) -> float | None:
    return round(percentile(samples, q), 6) if samples else None


def tier_words(row: dict[str, Any]) -> str:
    """One tier in a line."""
    restored = f"restored {row['restored_blocks']} blocks for {row['restored_requests']} requests"
    if row["restored_requests"]:
        restored += (
            f" in {row['restore_ms_p50']:.3g} ms (p95 {row['restore_ms_p95']:.3g}), "
            f"computing them takes {row['recompute_ms_p50']:.3g} ms (p95 {row['recompute_ms_p95']:.3g})"
        )
    return (
        f"tier {row['name']}: {row['stored_blocks']} blocks stored; {restored}; {row['refused_restores']} requests "
        f"computed what it had; busiest link {row['link_busy_share']:.1%}"
    )
