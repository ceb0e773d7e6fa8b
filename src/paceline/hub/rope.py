"""Rotary settings as configurations write them, turned into a `RopeSpec`.

Three spellings are in use: `rope_scaling` with "type" (old), `rope_scaling` with "rope_type", and `rope_parameters`,
which holds theta too and may be one dictionary per layer type. GGUF has its own keys, and keeps the llama3 kind only as
a tensor of divisors (`rope_freqs.weight`), from which the four numbers are found again here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from paceline.contracts.specs import RopeSpec
from paceline.errors import UnsupportedError
from paceline.hub.fields import Fields

KNOWN_KINDS = ("default", "linear", "dynamic", "llama3", "yarn")
LOW_FREQ_FACTOR, HIGH_FREQ_FACTOR, LLAMA3_ORIGINAL = 1.0, 4.0, 8192  # every published llama3 scaling uses these


def rope_spec(params: Mapping[str, Any] | None, *, theta: float, max_position: int, where: str) -> RopeSpec:
    """One dictionary of rotary parameters. `theta` and `max_position` are what holds when it does not say."""
    values = Fields(params or {}, f"the rope parameters of {where}", {"rope_theta": theta})
    kind = values.get("rope_type", values.get("type", "default")) or "default"
    theta = values.number("rope_theta")
    if values.get("partial_rotary_factor", 1.0) != 1.0:
        raise UnsupportedError(
            f"{where} rotates only a part of each head", seen=values.get("partial_rotary_factor"), expected="1.0"
        )
    match kind:
        case "default":
            return RopeSpec(theta=theta)
        case "linear":
            return RopeSpec(theta=theta, kind="linear", factor=values.number("factor"))
        case "dynamic":
            # The unscaled range is max_position_embeddings itself, whatever else is written.
            return RopeSpec(
                theta=theta, kind="dynamic", factor=values.number("factor"), original_max_position=max_position
            )
        case "llama3":
            return RopeSpec(
                theta=theta,
                kind="llama3",
                factor=values.number("factor"),
                original_max_position=values.integer("original_max_position_embeddings", max_position),
                low_freq_factor=values.number("low_freq_factor", LOW_FREQ_FACTOR),
                high_freq_factor=values.number("high_freq_factor", HIGH_FREQ_FACTOR),
            )
        case "yarn":
            original = int(values.number("original_max_position_embeddings", max_position))
            return RopeSpec(
                theta=theta,
                kind="yarn",
                factor=values.optional_number("factor") or max_position / original,
                original_max_position=original,
                beta_fast=values.optional_number("beta_fast") or 32.0,
                beta_slow=values.optional_number("beta_slow") or 1.0,
                attention_factor=values.optional_number("attention_factor"),
                mscale=values.optional_number("mscale"),
                mscale_all_dim=values.optional_number("mscale_all_dim"),
                truncate=values.get("truncate", True) is not False,
            )
    raise UnsupportedError(
        f"{where} scales its rotary embedding in an unknown way", seen=kind, expected=f"one of {', '.join(KNOWN_KINDS)}"
    )


def longest_context(rope: RopeSpec, max_position: int) -> int:
    """Longest sequence the checkpoint was made for, in tokens.

    Dynamic scaling starts beyond `max_position_embeddings`, and yarn configurations often keep the unscaled number
    there. With linear scaling some checkpoints state the stretched length and some the old one; the smaller reading is
    kept.
    """
    if rope.kind == "dynamic":
        return int(max_position * rope.factor)
    if rope.kind == "yarn" and rope.original_max_position is not None:
        return max(max_position, int(rope.original_max_position * rope.factor))
    return max_position


def rope_of_gguf(values: Fields, prefix: str, *, theta: float, max_position: int) -> RopeSpec:
    """`<prefix>.rope.*` keys of a GGUF file."""
    theta = values.number(f"{prefix}.rope.freq_base", theta)
    kind = values.get(f"{prefix}.rope.scaling.type")
    factor = values.optional_number(f"{prefix}.rope.scaling.factor") or values.optional_number(
        f"{prefix}.rope.scale_linear"
    )
    if kind == "none" or factor is None or factor == 1.0:
        return RopeSpec(theta=theta)
    if kind == "yarn":
        original = values.integer(f"{prefix}.rope.scaling.original_context_length", max_position)
        extra = values.optional_number(f"{prefix}.rope.scaling.attn_factor")
        # The GGUF factor multiplies the usual 0.1 ln(factor) + 1; ours replaces it.
        attention = None if extra is None or extra == 1.0 else extra * (0.1 * math.log(factor) + 1.0)
        return RopeSpec(
            theta=theta, kind="yarn", factor=factor, original_max_position=original, attention_factor=attention
        )
    if kind in (None, "linear"):
        return RopeSpec(theta=theta, kind="linear", factor=factor)
    raise UnsupportedError(
        f"{values.where} scales its rotary embedding in an unknown way", seen=kind, expected="none, linear or yarn"
    )


def llama3_divisors(rope: RopeSpec, head_dim: int) -> np.ndarray:
    """What llama3 scaling divides each frequency by: [head_dim / 2] float64.

    Wavelengths beyond original / low are slowed by the whole factor, those under original / high not at all, with a
    straight blend of the two frequencies between (Llama 3.1 reference code).
    """
    assert rope.original_max_position is not None
    wavelength = 2 * math.pi * rope.theta ** (np.arange(0, head_dim, 2) / head_dim)
    low, high = rope.low_freq_factor, rope.high_freq_factor
    keep = np.clip((rope.original_max_position / wavelength - low) / (high - low), 0.0, 1.0)
    return np.asarray(1.0 / (keep + (1.0 - keep) / rope.factor))


def rope_from_divisors(rope: RopeSpec, divisors: np.ndarray, where: str) -> RopeSpec:
    """The llama3 scaling that gives these divisors ([head_dim / 2] float32). Raises UnsupportedError when none does."""
    factor = float(divisors.max())
    if factor == 1.0 and float(divisors.min()) == 1.0:
        return rope
    found = RopeSpec(
        theta=rope.theta,
        kind="llama3",
        factor=factor,
        original_max_position=LLAMA3_ORIGINAL,
        low_freq_factor=LOW_FREQ_FACTOR,
        high_freq_factor=HIGH_FREQ_FACTOR,
    )
    if not np.allclose(llama3_divisors(found, 2 * len(divisors)), divisors, rtol=1e-3):
        raise UnsupportedError(
            f"tensor 'rope_freqs.weight' of {where} is no llama3 scaling that paceline knows",
            seen=f"divisors from {divisors.min():g} to {factor:g}",
            expected=f"low {LOW_FREQ_FACTOR:g}, high {HIGH_FREQ_FACTOR:g}, original {LLAMA3_ORIGINAL}",
            fix="use the safetensors files of this model",
        )
    return found
