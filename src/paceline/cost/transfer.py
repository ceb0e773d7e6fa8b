"""Bytes that move: over a link between devices, from a tier of memory, from a disk at load.

`ms = latency + bytes / rate`, rates in one direction. Tables of hardware often give both directions together; whoever
makes a `Link` from one must halve it.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from paceline.errors import ConfigError


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """One way from here to there."""

    gbps: float  # 1e9 bytes per second, one direction
    latency_us: float = 0.0  # of one transfer of nothing

    def __post_init__(self) -> None:
        if not 0.0 < self.gbps < float("inf") or not 0.0 <= self.latency_us < float("inf"):
            raise ConfigError(
                "a link has a rate or a latency that cannot be",
                seen=f"{self.gbps} GB/s, {self.latency_us} us",
                expected="more than 0 GB/s in one direction, 0 us or more",
            )

    def ms(self, num_bytes: float) -> float:
        """Milliseconds until the last of `num_bytes` is there; moving nothing takes no time."""
        if num_bytes <= 0:
            return 0.0
        return self.latency_us / 1e3 + num_bytes / (self.gbps * 1e6)


class Transfers:
    """Links by the name of the tier at their other end: dram, disk, remote."""

    def __init__(self, links: Mapping[str, Link]) -> None:
        self._links = dict(links)

    def transfer_ms(self, tier: str, num_bytes: float) -> float:
        """Milliseconds to bring `num_bytes` from `tier`, or to take them there. Raises ConfigError for a tier that was
        not named."""
        link = self._links.get(tier)
        if link is None:
            raise ConfigError(
                "nothing is known about this tier",
                seen=tier,
                expected=" or ".join(sorted(self._links)) or "a tier; none was given",
                fix="give its link when the transfers are made",
            )
        return link.ms(num_bytes)

    def load_s(self, tier: str, num_bytes: float) -> float:
        """Seconds to read weights of `num_bytes` from `tier`; building layers from them is not in it."""
        return self.transfer_ms(tier, num_bytes) / 1e3
