"""The roofline as a small SVG: what a load needs against what each engine made of it. Pure.

Across: operations for each byte of memory that must be read. Up: operations per second. The slope is reading memory,
the flats are the two rates of products; a point below them leaves that much unused. Both axes are logarithmic.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from benchmarks.peers.engines.roofline import Rates

WIDTH, HEIGHT = 760, 430
LEFT, RIGHT, TOP, BOTTOM = 70, 190, 24, 52
COLOURS = ("#d1495b", "#edae49", "#00798c", "#30638e", "#8f6f9f", "#6b7a3a", "#555555")


@dataclass(frozen=True)
class Point:
    column: str
    load: str
    intensity: float  # operations for each byte
    ops_per_s: float


class Scale:
    """Values to pixels; whole decades, so that ticks are powers of ten."""

    def __init__(self, values: Sequence[float], begin: float, end: float) -> None:
        self.low = math.floor(math.log10(min(values)))
        self.high = max(self.low + 1, math.ceil(math.log10(max(values))))
        self._begin, self._end = begin, end

    def __call__(self, value: float) -> float:
        share = (math.log10(value) - self.low) / (self.high - self.low)
        return self._begin + share * (self._end - self._begin)

    @property
    def ticks(self) -> list[int]:
        return list(range(self.low, self.high + 1))


def svg(points: Sequence[Point], rates: Rates, columns: Sequence[str], title: str) -> str:
    across = Scale([p.intensity for p in points] + [1.0, rates.int8_ops / rates.bytes_per_s], LEFT, WIDTH - RIGHT)
    up = Scale([p.ops_per_s for p in points] + [rates.int8_ops], HEIGHT - BOTTOM, TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        f'font-size="12" role="img"><title>{escape(title)}</title>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        *axes(across, up),
        *roofs(across, up, rates),
    ]
    colours = dict(zip(columns, COLOURS, strict=False))
    for point in points:
        x, y = across(point.intensity), up(point.ops_per_s)
        told = f"{point.column}, {point.load}: {point.ops_per_s / 1e9:,.0f} G operations/s"
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{colours[point.column]}">')
        parts.append(f"<title>{escape(told)}</title></circle>")
    parts += loads_below(across, points)
    parts += legend(colours)
    return "\n".join([*parts, "</svg>"]) + "\n"


def axes(across: Scale, up: Scale) -> list[str]:
    parts = []
    right, floor = WIDTH - RIGHT, HEIGHT - BOTTOM
    for power in across.ticks:
        x = across(10.0**power)
        parts.append(f'<path d="M{x:.1f} {TOP}V{floor}" stroke="#e4e4e4"/>')
        parts.append(f'<text x="{x:.1f}" y="{floor + 30}" text-anchor="middle">{10.0**power:g}</text>')
    for power in up.ticks:
        y = up(10.0**power)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{right}" stroke="#e4e4e4"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{10.0 ** (power - 9):g}</text>')
    parts.append(
        f'<text x="{(LEFT + right) / 2}" y="{HEIGHT - 6}" text-anchor="middle">operations for each byte</text>'
    )
    middle = (TOP + floor) / 2
    parts.append(
        f'<text x="16" y="{middle}" text-anchor="middle" transform="rotate(-90 16 {middle})">G operations/s</text>'
    )
    return parts


def roofs(across: Scale, up: Scale, rates: Rates) -> list[str]:
    """The slope ends at the higher flat; each flat begins at the slope."""
    left, right, parts = 10.0**across.low, 10.0**across.high, []
    begin = max(left, 10.0**up.low / rates.bytes_per_s)
    corner = rates.int8_ops / rates.bytes_per_s
    line = f"M{across(begin):.1f} {up(begin * rates.bytes_per_s):.1f}L{across(corner):.1f} {up(rates.int8_ops):.1f}"
    parts.append(f'<path d="{line}" stroke="#222222" fill="none"/>')
    for name, ops in (("int8", rates.int8_ops), ("bfloat16", rates.bf16_ops)):
        x, y = across(max(left, ops / rates.bytes_per_s)), up(ops)
        parts.append(f'<path d="M{x:.1f} {y:.1f}H{across(right):.1f}" stroke="#222222"/>')
        parts.append(f'<text x="{across(right) + 4:.1f}" y="{y + 4:.1f}">{name} {ops / 1e9:,.0f} G/s</text>')
    x, y = (across(begin) + across(corner)) / 2, (up(begin * rates.bytes_per_s) + up(rates.int8_ops)) / 2
    parts.append(f'<text x="{x - 8:.1f}" y="{y - 6:.1f}" text-anchor="end">{rates.bytes_per_s / 1e9:,.0f} GB/s</text>')
    return parts


def loads_below(across: Scale, points: Sequence[Point]) -> list[str]:
    where = {point.load: across(point.intensity) for point in points}
    y = HEIGHT - BOTTOM + 14
    return [f'<text x="{x:.1f}" y="{y}" text-anchor="middle" font-weight="bold">{n}</text>' for n, x in where.items()]


def legend(colours: Mapping[str, str]) -> list[str]:
    parts, x = [], WIDTH - RIGHT + 20
    for i, (name, colour) in enumerate(colours.items()):
        y = HEIGHT - BOTTOM - 20 * (len(colours) - i)
        parts.append(f'<circle cx="{x}" cy="{y}" r="5" fill="{colour}"/><text x="{x + 10}" y="{y + 4}">')
        parts.append(f"{escape(name)}</text>")
    return parts
