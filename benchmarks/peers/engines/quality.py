"""KL of each arithmetic against float32, on one file and the same positions: llama.cpp's and ours.

llama.cpp writes its distributions with `llama-perplexity --kl-divergence-base`: the second half of each run of tokens,
log-probabilities rounded to 16 bits. The reference is this project's float32 with the file's weights as floats; ours
are given the same rounding, so that nobody is judged more finely than another.
"""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paceline.config import load_config

RUN_TOKENS = 512
_MAGIC = b"_logits_"
_RANGE = 16.0  # nats: what is less likely than the likeliest by more is written as if by that much


@dataclass(frozen=True)
class Base:
    """What the file holds: the tokens of each run, and the rounded log-probabilities of its second half."""

    num_run: int  # tokens of a run
    vocab_size: int
    tokens: np.ndarray[Any, np.dtype[np.int32]]  # [runs, num_run]
    rounded: np.ndarray[Any, np.dtype[np.uint16]]  # [runs, positions, 4 + vocab, even]: scale and least value first

    @property
    def first(self) -> int:
        """Position of the first distribution in a run: it is of the next token."""
        return self.num_run // 2

    def log_probs(self, run: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        """[positions, vocab]"""
        rows = self.rounded[run]
        head = rows[:, :4].copy().view(np.float32)
        return rows[:, 4 : 4 + self.vocab_size] * head[:, :1] + head[:, 1:2]


def read_base(path: Path, bos: int | None = None) -> Base:
    """`bos` stands in place of each run's first token where the model wants one, which the file does not show. Raises
    ValueError for another kind of file."""
    with path.open("rb") as file:
        head = file.read(20)
        if head[:8] != _MAGIC:
            raise ValueError(f"{path} does not begin with {_MAGIC!r}")
        num_run, vocab_size, num_runs = struct.unpack("<iii", head[8:])
        tokens = np.fromfile(file, np.int32, num_run * num_runs).reshape(num_runs, num_run)
        if bos is not None:
            tokens[:, 0] = bos
        width = 2 * ((vocab_size + 1) // 2) + 4
        positions = num_run - 1 - num_run // 2
        rounded = np.fromfile(file, np.uint16).reshape(num_runs, positions, width)
    return Base(num_run, vocab_size, tokens, rounded)


def rounded(logits: np.ndarray[Any, np.dtype[np.float32]]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Log-probabilities [positions, vocab] as llama.cpp writes them: 16 bits between the least, or 16 nats below the
    likeliest, and the likeliest."""
    most = logits.max(-1, keepdims=True)
    least = np.maximum(logits.min(-1, keepdims=True), most - _RANGE)
    norm = np.log(np.exp(logits - most).sum(-1, keepdims=True, dtype=np.float64)).astype(np.float32)
    scale = (most - least) / 65535.0
    codes = np.rint((np.maximum(logits, least) - least) / np.where(scale > 0, scale, 1.0))
    return codes * scale + (least - most - norm)


def divergence(
    reference: np.ndarray[Any, np.dtype[np.float32]], other: np.ndarray[Any, np.dtype[np.float32]]
) -> tuple[np.ndarray[Any, np.dtype[np.float64]], np.ndarray[Any, np.dtype[np.bool_]]]:
    """KL(reference || other) in nats and whether both like the same token best, by position [positions]. Both are
    normalised anew, since rounding has moved them."""
    p, q = (normal(side.astype(np.float64)) for side in (reference, other))
    return (np.exp(p) * (p - q)).sum(-1), reference.argmax(-1) == other.argmax(-1)


def normal(logits: np.ndarray[Any, np.dtype[np.float64]]) -> np.ndarray[Any, np.dtype[np.float64]]:
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def write_base(program: Path, model: Path, text: Path, out: Path, *, runs: int, threads: int, log: Path) -> None:
    """llama.cpp's distributions. Raises CalledProcessError where it fails."""
    command = [str(program), "-m", str(model), "-f", str(text), "--kl-divergence-base", str(out)]
    command += ["-c", str(RUN_TOKENS), "-b", str(RUN_TOKENS), "--chunks", str(runs), "-t", str(threads)]
    with log.open("w") as sink:
        subprocess.run(command, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, check=True)


def compare(base: Base, model: Path, arms: Mapping[str, Mapping[str, Any]], llama: str) -> Iterator[dict[str, Any]]:
    """A record for llama.cpp (`llama`) and each of `arms`, column -> engine options."""
    import torch
    from benchmarks.quality.kl import Side

    reference = {"dtype": "float32", "quantization": "none"}
    flags = {name: {"model": str(model), **options} for name, options in {"": reference, **arms}.items()}
    sides = {name: Side(load_config(None, given), base.num_run, base.num_run) for name, given in flags.items()}
    found: dict[str, list[tuple[Any, Any]]] = {llama: [], **{name: [] for name in arms}}
    with torch.inference_mode():
        for run, ids in enumerate(base.tokens.tolist()):
            logits = {}
            for name, side in sides.items():
                side.begin()
                logits[name] = rounded(side.step(ids)[base.first : -1].float().numpy())
            reference = logits.pop("")
            for name, other in ((llama, base.log_probs(run)), *logits.items()):
                found[name].append(divergence(reference, other))
    for name, parts in found.items():
        kl, first = (np.concatenate(part) for part in zip(*parts, strict=True))
        yield {
            "kind": "quality",
            "column": name,
            "num_positions": len(kl),
            "kl": float(kl.mean()),
            "kl_p99": float(np.percentile(kl, 99)),
            "first": float(first.mean()),
        }
