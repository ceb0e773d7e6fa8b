"""The demo's ladder: what a server carries within its SLO, step by step, from static batches to the prefix cache.

The spec is a file of this package whose targets follow from the machine: they are multiples of what an unloaded server
needs, and are written down before the first comparison. What was written is left beside the report, so that
`paceline tune` repeats it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

from paceline.config import EngineConfig, option_table

if TYPE_CHECKING:
    from paceline.lab.workload import TargetSize

TTFT_X, TPOT_X = 5.0, 2.0  # targets, as multiples of the unloaded times
WINDOW_S = 17.0  # measured part of a point
DECODE_AT_ONCE = 4
RATES = (0.55, 0.95)  # offered, as parts of what the machine could carry
BASE: dict[str, Any] = {  # the unloaded times are this configuration's too
    "max_num_seqs": 4,  # on a CPU a full batch of more rows would miss the TPOT target by itself
    "max_model_len": 1024,
    "max_wait_ms": 0.0,
    "prefill_chunk_tokens": 512,
    "enable_prefix_caching": False,
}
MEAN_INPUT, MEAN_OUTPUT = 96, 96  # tokens of the workload in specs/ladder.toml
TARGET_TOKENS = 64  # the prompt whose unloaded TTFT the target is a multiple of


def ladder_spec(size: TargetSize, base: Mapping[str, Any], file: Path) -> str:
    """The spec for a machine of this size as TOML. `base`: options that every configuration shares."""
    ttft_s = size.prefill_s(TARGET_TOKENS)
    # what an engine carries that decodes a few answers at once
    capacity = 1 / (size.prefill_s(MEAN_INPUT) + size.decode_s(MEAN_OUTPUT) / DECODE_AT_ONCE)
    rates = [_short(share * capacity) for share in RATES]
    text = files("paceline.cli").joinpath("specs/ladder.toml").read_text()
    return Template(text).substitute(
        file=file.name,
        base="\n".join(f"{name} = {json.dumps(value)}" for name, value in first_rung(base).items()),
        ttft_x=f"{TTFT_X:g}",
        tpot_x=f"{TPOT_X:g}",
        ttft_ms=f"{1000 * ttft_s:.0f}",
        tpot_ms=f"{1000 * size.tpot_s:.1f}",
        ttft_s=_short(TTFT_X * ttft_s),
        tpot_s=_short(TPOT_X * size.tpot_s),
        wait_ms=_short(1000 * ttft_s),
        rates=rates,
        half_rate=_short(rates[0] / 2),
        target_tokens=TARGET_TOKENS,
        duration_s=WINDOW_S,
    )


def first_rung(base: Mapping[str, Any]) -> dict[str, Any]:
    """Options of the ladder's first server, but for `batching`: what all share, and what the ladder begins with."""
    return {**base, **BASE}


def shared_options(config: EngineConfig) -> dict[str, Any]:
    """Option -> value, those that differ from the defaults: every configuration of the ladder has them."""
    found = {}
    for option in option_table().values():
        holder: Any = getattr(config, option.section) if option.section else config
        value = getattr(holder, option.name)
        if value != option.default:
            found[option.name] = value
    return found


def _short(value: float) -> float:
    return float(f"{value:.3g}")
