"""Numbers as a sentence says them."""

from __future__ import annotations

from paceline.contracts.lint import Evidence

CONFIGURED, RECOMPUTED, SERVER = "configured", "recomputed", "server metrics"


def ms(seconds: float) -> str:
    """Seconds as milliseconds, or as seconds from one on."""
    return f"{seconds:.3g} s" if abs(seconds) >= 1 else f"{1e3 * seconds:.3g} ms"


def share(value: float) -> str:
    return f"{100 * value:.3g} %"


def plural(count: int, noun: str, nouns: str = "") -> str:
    """`noun` for one; else `nouns`, which is `noun` with an s if not given."""
    return f"{count:,} {noun if count == 1 else nouns or noun + 's'}"


def listed(names: list[str], most: int = 4) -> str:
    """At most so many names, and how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def flag(option: str) -> str:
    """`max_num_seqs` as the command line has it."""
    return "--" + option.rpartition(".")[2].replace("_", "-")


def fact(name: str, value: float | str, unit: str = "", origin: str = RECOMPUTED) -> Evidence:
    return Evidence(name=name, value=value, unit=unit, origin=origin)
