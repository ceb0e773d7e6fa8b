"""Draws that are functions of numbers: no generator, no state."""

from __future__ import annotations

_MASK = (1 << 64) - 1


def mix64(value: int) -> int:
    """The finaliser of SplitMix64 (Steele, Lea and Flood, 2014): 64 bits in, 64 well-mixed bits out."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
