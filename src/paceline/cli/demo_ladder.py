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
WINDOW_S = 7.0  # measured part of a point
DECODE_AT_ONCE = 4
# Offered, as parts of what four clients drew from a server without a prefix cache: static batches fall behind from the
# first on, continuous batching at the last at least, where the cache still keeps up.
RATES = (0.55, 0.85, 1.2)
GROUP, TOGETHER = 3, 0.6  # requests of a stream that come together, and within which part of the time to the next ones
BASE: dict[str, Any] = {  # the unloaded times are this configuration's too
    "max_num_seqs": 4,  # on a CPU a full batch of more rows would miss the TPOT target by itself
    "max_model_len": 2048,
    "max_wait_ms": 0.0,
    "prefill_chunk_tokens": 512,
    "enable_prefix_caching": False,
}
TEXTS = "ladder_texts.txt"  # beside the spec
OWN, OUTPUT = (16, 48), (32, 64)  # tokens of a question and of its answer
LEAST_SHARED, MOST_SHARED = 128, 1536  # tokens of a system prompt; half of the questions stand behind one


def probe_load(size: TargetSize) -> dict[str, Any]:
    """The ladder's requests from as many clients as there are rows, one after another: what the machine carries when it
    is never idle, the load generator beside it included."""
    question = {
        "arrival": {"kind": "closed", "slots": DECODE_AT_ONCE // 2, "requests": 40},
        "input": {"kind": "uniform", "min": OWN[0], "max": OWN[1]},
        "output": {"kind": "uniform", "min": OUTPUT[0], "max": OUTPUT[1]},
    }
    prefix = {"groups": 2, "tokens": shared_tokens(size), "zipf": 1.0}
    return {"duration_s": 6.0, "warmup_s": 1.0, "drain_s": 4.0, "stream": [question, {**question, "prefix": prefix}]}


def write_ladder(size: TargetSize, capacity_rps: float, base: Mapping[str, Any], folder: Path) -> Path:
    """The spec and the texts it names, in `folder`. `capacity_rps`: requests/s under `probe_load`. Returns the spec's
    path."""
    file = folder / "ladder.toml"
    (folder / TEXTS).write_text(files("paceline.cli").joinpath("specs", TEXTS).read_text(encoding="utf-8"), "utf-8")
    file.write_text(ladder_spec(size, capacity_rps, base, file), "utf-8")
    return file


def ladder_spec(size: TargetSize, capacity_rps: float, base: Mapping[str, Any], file: Path) -> str:
    """The spec for a machine of this size as TOML. `base`: options that every configuration shares."""
    shared = shared_tokens(size)
    mean_input = round(sum(OWN) / 2 + shared / 2)
    ttft_s = size.prefill_s(mean_input)
    rates = [_short(share * capacity_rps) for share in RATES]
    every_s = GROUP / (rates[0] / 2)  # half of the requests are of either stream
    text = files("paceline.cli").joinpath("specs/ladder.toml").read_text()
    return Template(text).substitute(
        file=file.name,
        texts=TEXTS,
        base="\n".join(f"{name} = {json.dumps(value)}" for name, value in first_rung(base).items()),
        ttft_x=f"{TTFT_X:g}",
        tpot_x=f"{TPOT_X:g}",
        ttft_ms=f"{1000 * ttft_s:.0f}",
        tpot_ms=f"{1000 * size.tpot_s:.1f}",
        ttft_s=_short(TTFT_X * ttft_s),
        tpot_s=_short(TPOT_X * size.tpot_s),
        wait_ms=_short(1000 * ttft_s),
        rates=rates,
        group=GROUP,
        every_s=_short(every_s),
        spread_s=_short(TOGETHER * every_s),
        target_tokens=mean_input,
        shared_tokens=shared,
        own="min = {}, max = {}".format(*OWN),
        output="min = {}, max = {}".format(*OUTPUT),
        duration_s=WINDOW_S,
    )


def shared_tokens(size: TargetSize) -> int:
    """Tokens of a system prompt that take as long to compute as an answer takes of the machine: where they are fewer, a
    cache of them could not show, however well it works. In steps of 64."""
    tokens = _decode_share_s(size) / size.prefill_s(size.ttft_tokens) * size.ttft_tokens
    return min(MOST_SHARED, max(LEAST_SHARED, round(tokens / 64) * 64))


def _decode_share_s(size: TargetSize) -> float:
    """What decoding one answer takes of an engine that decodes a few at once."""
    return size.decode_s(sum(OUTPUT) / 2) / DECODE_AT_ONCE


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
