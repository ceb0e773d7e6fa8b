"""What `paceline sim` and `paceline lint` both are told of a fleet, as it is typed."""

from __future__ import annotations


def acceptance_of(text: str) -> tuple[float, ...]:
    """Tokens a step yields with 1, 2, ... drafts: 1.7,2.2,2.5; "" is none. Raises ConfigError."""
    from paceline.errors import ConfigError

    try:
        return tuple(float(part) for part in text.split(",")) if text else ()
    except ValueError:
        raise ConfigError("--speculative was not understood", seen=text, expected="numbers: 1.7,2.2,2.5") from None


def tier_of(text: str) -> dict[str, str | float | bool]:
    """NAME=GIB,GBPS[,US][,shared]: a tier's name, size, rate one way and latency; shared: by all replicas. Raises
    ConfigError."""
    from paceline.errors import ConfigError

    name, equals, rest = text.partition("=")
    sizes = [part.strip() for part in rest.split(",")]
    if shared := sizes[-1] == "shared":
        sizes.pop()
    try:
        gib, gbps, latency_us = (*map(float, sizes), 0.0)[:3]
        good = bool(equals and name.strip()) and len(sizes) <= 3 and gib > 0 and gbps > 0 and latency_us >= 0
    except ValueError:
        good = False
    if not good:
        expected = "NAME=GIB,GBPS[,US][,shared], such as dram=64,25,10"
        raise ConfigError("--kv-tier was not understood", seen=text, expected=expected)
    size = int(gib * 2**30)
    return {"name": name.strip(), "capacity_bytes": size, "gbps": gbps, "latency_us": latency_us, "shared": shared}
