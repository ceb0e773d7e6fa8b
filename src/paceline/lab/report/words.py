"""Numbers as people read them: three digits, a unit, an interval, and a reason where there is no number."""

from __future__ import annotations

import math
from collections.abc import Callable

from paceline.contracts.artefact import Answer, Estimate

NOTHING = "–"
GAP = "\u00a0"  # a space that does not break
_SHARES = ("share", "1")
_RATIOS = ("ratio", "x", "×")
ANSWER_WORDS = {
    Answer.PASS: "pass",
    Answer.FAIL: "fail",
    Answer.INCONCLUSIVE: "inconclusive",
    Answer.INVALID: "invalid",
    Answer.NOT_MEASURED: "not measured",
}
_OUTCOME_WORDS = {
    "ok": "ended well",
    "truncated": "truncated",
    "http_error": "HTTP error",
    "stream_error": "error in the stream",
    "timeout": "timed out",
    "rejected": "rejected by the server",
    "client_cancel": "cancelled by the client",
    "disconnect": "dropped by the client",
    "not_sent": "never sent",
}


def number(value: float | None, digits: int = 3) -> str:
    """`digits` significant ones, thousands apart, never an exponent below 1e9: 12.3, 1,234, 0.0123."""
    if value is None or math.isnan(value):
        return NOTHING
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value == 0:
        return "0"
    value = float(f"{value:.{digits - 1}e}") if abs(value) < 10**digits else value  # 0.9996 is 1.00, not 1.000
    size = math.floor(math.log10(abs(value)))
    if size >= 9 or size < -6:
        return f"{value:.{digits - 1}e}"
    text = f"{value:,.{max(0, digits - 1 - size)}f}"
    return text.replace("-", "−")


def count(value: int) -> str:
    return f"{value:,}"


def seconds(value: float | None) -> str:
    """Under a second in ms; over two minutes in minutes."""
    if value is None or not math.isfinite(value):
        return number(value)
    if abs(value) < 0.9995:
        return f"{number(value * 1e3)}{GAP}ms"
    return f"{number(value)}{GAP}s" if abs(value) < 120 else f"{number(value / 60)}{GAP}min"


def share(value: float | None) -> str:
    """Per cent with one digit, two near the ends, so that 99.97 % is not called 100 %."""
    if value is None or math.isnan(value):
        return NOTHING
    percent = value * 100
    near_end = 0 < percent < 1 or 99 < percent < 100
    text = f"{percent:.{2 if near_end else 1}f}"
    return f"{text.removesuffix('.0')}{GAP}%".replace("-", "−")


def ratio(value: float | None) -> str:
    return NOTHING if value is None or math.isnan(value) else f"{number(value)}{GAP}×"


def by_unit(value: float | None, unit: str) -> str:
    """A value with the unit an estimate names."""
    if unit == "s":
        return seconds(value)
    if unit in _SHARES:
        return share(value)
    if unit in _RATIOS:
        return ratio(value)
    return f"{number(value)}{GAP}{unit}".rstrip(GAP)


def in_parts(text: str) -> tuple[str, str]:
    """(figure, unit) of a value that was said with its unit."""
    figure, _, unit = text.partition(GAP)
    return figure, unit


def value_of(estimate: Estimate, unit: str | None = None) -> str:
    """`unit`: instead of the estimate's own; "" for none."""
    return NOTHING if estimate.value is None else by_unit(estimate.value, estimate.unit if unit is None else unit)


def interval_of(estimate: Estimate, unit: str | None = None) -> str:
    """`[lo, hi]`, with the unit where it may differ from the value's; or the reason why there is none. Unbreakable."""
    unit = estimate.unit if unit is None else unit
    if estimate.value is None:
        return estimate.reason or "not measured"
    if estimate.lo is None and estimate.hi is None:
        return estimate.reason
    scale, word = 1.0, ""
    top = next((v for v in (estimate.hi, estimate.lo) if v is not None and math.isfinite(v)), 0.0)
    if unit == "s":
        scale, word = (1e3, "ms") if abs(top) < 0.9995 else (1.0, "s")
    elif unit in _SHARES:
        low, high = (share(v).removesuffix(f"{GAP}%") for v in (estimate.lo, estimate.hi))
        return f"[{low},{GAP}{high}]{GAP}%"
    low = "0" if estimate.lo is None else number(estimate.lo * scale)
    high = "∞" if estimate.hi is None else number(estimate.hi * scale)
    return f"[{low},{GAP}{high}]{GAP}{word}".rstrip(GAP)


def exact(value: float, unit: str = "s") -> str:
    """A value somebody wrote down, a limit say: without the zeros that a measured one keeps."""
    text = by_unit(value, unit)
    figure, gap, rest = text.partition(GAP)
    return (figure.rstrip("0").rstrip(".") if "." in figure else figure) + gap + rest


def outcome(name: str) -> str:
    return _OUTCOME_WORDS.get(name, name.replace("_", " "))


def plain(value: object) -> str:
    """A configuration's value."""
    if value is None or value == "":
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list | tuple):
        return ", ".join(plain(item) for item in value) or NOTHING
    if isinstance(value, dict):
        return ", ".join(f"{key} {plain(item)}" for key, item in value.items()) or NOTHING
    return str(value)


def named(name: str, value: object) -> tuple[str, str]:
    """A stored name and value in words: the unit at a name's end goes to the value."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        for end, say in _ENDS.items():
            if name.endswith(end):
                return name.removesuffix(end).replace("_", " "), say(float(value))
    return name.replace("_", " "), plain(value)


def _size(value: float) -> str:
    for factor, unit in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if value >= factor:
            return f"{number(value / factor)}{GAP}{unit}"
    return f"{value:.0f}{GAP}bytes"


_ENDS: dict[str, Callable[[float], str]] = {
    "_bytes": _size,
    "_ms": lambda value: seconds(value / 1e3),
    "_rps": lambda value: f"{number(value)}{GAP}req/s",
    "_watts": lambda value: f"{number(value)}{GAP}W",
    "_s": lambda value: seconds(value) if value == 0 or value >= 1e-6 else f"{value:g}{GAP}s",
}
