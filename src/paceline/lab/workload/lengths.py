"""How long things are: distributions of token counts, each a quantile function, so that one draw gives one length."""

from __future__ import annotations

import math
from functools import lru_cache
from pathlib import Path
from statistics import NormalDist
from typing import TypeAlias

import msgspec
import numpy as np

from paceline.errors import ConfigError
from paceline.lab.workload.draw import Floats

_Z99 = 2.3263478740408408  # 99 % quantile of the standard normal law
_LEAST = 2.0**-53  # a draw nearer to 0 or 1 than any other
_MAX_FILE_BYTES = 64 * 2**20


class Length(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    """What all lengths share. `min` and `max` clip a draw; a length is at least one token."""

    min: int = 1
    max: int | None = None

    def raw(self, draws: Floats) -> Floats:
        """Quantiles of uniform draws, before clipping and rounding.  # [num]"""
        raise NotImplementedError

    def check(self, where: str) -> None:
        """ConfigError for a distribution that cannot be."""
        if self.min < 1 or (self.max is not None and self.max < self.min):
            raise ConfigError(
                f"{where}: no length fits", seen=f"min {self.min}, max {self.max}", expected="1 <= min <= max"
            )

    def sample(self, draws: Floats) -> Floats:
        """Whole tokens, clipped.  # [num]"""
        high = math.inf if self.max is None else float(self.max)
        return np.asarray(np.clip(np.rint(self.raw(draws)), self.min, high), dtype=np.float64)

    def mean(self) -> float:
        """Mean tokens after clipping, by the midpoint rule over 4,096 quantiles."""
        return float(self.sample((np.arange(4096) + 0.5) / 4096).mean())


class Fixed(Length, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="fixed"):
    tokens: int

    def raw(self, draws: Floats) -> Floats:
        return np.full(len(draws), float(self.tokens))

    def check(self, where: str) -> None:
        Length.check(self, where)
        if self.tokens < 1:
            raise ConfigError(f"{where}.tokens must be at least 1", seen=self.tokens)


class Uniform(Length, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="uniform"):
    """Every whole number from `min` to `max` alike."""

    def raw(self, draws: Floats) -> Floats:
        high = self.min if self.max is None else self.max
        return np.floor(self.min + draws * (high - self.min + 1))

    def check(self, where: str) -> None:
        Length.check(self, where)
        if self.max is None:
            raise ConfigError(f"{where}: a uniform length needs max", fix=f"for example max = {2 * self.min}")


class Lognormal(Length, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="lognormal"):
    """By its median and 99th percentile: ln X is normal with sigma = ln(p99 / p50) / 2.326."""

    p50: float
    p99: float

    def raw(self, draws: Floats) -> Floats:
        sigma = math.log(self.p99 / self.p50) / _Z99
        quantile = NormalDist().inv_cdf  # as exact as scipy's, whose import takes longer than a plan's search
        normal = np.array([quantile(q) for q in np.clip(draws, _LEAST, 1 - _LEAST).tolist()])
        with np.errstate(over="ignore"):
            return np.asarray(self.p50 * np.exp(sigma * normal), dtype=np.float64)

    def check(self, where: str) -> None:
        Length.check(self, where)
        if not 0 < self.p50 <= self.p99:
            raise ConfigError(
                f"{where}: a lognormal length needs 0 < p50 <= p99", seen=f"p50 {self.p50}, p99 {self.p99}"
            )


class Histogram(Length, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="histogram"):
    """Bins between `edges`, with `weights` (one fewer, any scale); alike within a bin."""

    edges: tuple[float, ...]
    weights: tuple[float, ...]

    def raw(self, draws: Floats) -> Floats:
        heights = np.concatenate([[0.0], np.cumsum(self.weights)])
        return np.asarray(np.interp(draws * heights[-1], heights, self.edges), dtype=np.float64)

    def check(self, where: str) -> None:
        Length.check(self, where)
        rising = all(a < b for a, b in zip(self.edges, self.edges[1:], strict=False))
        if len(self.edges) != len(self.weights) + 1 or not rising or not self.weights:
            raise ConfigError(
                f"{where}: edges must rise and be one more than weights",
                seen=f"{len(self.edges)} edges, {len(self.weights)} weights",
            )
        if min(self.weights) < 0 or sum(self.weights) <= 0:
            raise ConfigError(f"{where}.weights must be at least 0 and not all 0", seen=self.weights[:8])


class Empirical(Length, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="empirical"):
    """Drawn from what was seen: `values`, or a file with one number a line (or the CSV column named `column`)."""

    values: tuple[float, ...] = ()
    file: str | None = None
    column: str | None = None

    def raw(self, draws: Floats) -> Floats:
        seen = self.seen()
        return np.asarray(seen[np.minimum((draws * len(seen)).astype(np.int64), len(seen) - 1)], dtype=np.float64)

    def seen(self) -> Floats:
        """The sorted values.  # [num_seen]"""
        if self.file is None:
            return np.sort(np.asarray(self.values, dtype=np.float64))
        path = Path(self.file)
        try:
            stat = path.stat()
        except OSError as error:
            raise ConfigError("the file of lengths cannot be read", seen=f"{path}: {error.strerror}") from None
        if stat.st_size > _MAX_FILE_BYTES:
            raise ConfigError("the file of lengths is too big", seen=f"{stat.st_size} bytes", expected="64 MiB at most")
        return _read(path, self.column, stat.st_mtime_ns)

    def check(self, where: str) -> None:
        Length.check(self, where)
        if bool(self.values) == (self.file is not None):
            raise ConfigError(f"{where}: an empirical length needs either values or file", seen="both or neither")


@lru_cache(maxsize=8)
def _read(path: Path, column: str | None, mtime_ns: int) -> Floats:  # noqa: ARG001 - part of the cache's key
    return np.sort(np.asarray(_column(path, column), dtype=np.float64))


def _column(path: Path, column: str | None) -> list[float]:
    lines = path.read_text(encoding="utf-8").splitlines()
    index = 0
    if column is not None:
        names = [name.strip() for name in lines[0].split(",")] if lines else []
        if column not in names:
            raise ConfigError(f"{path} has no column {column!r}", seen=", ".join(names)[:200])
        index, lines = names.index(column), lines[1:]
    values = []
    for number, line in enumerate(lines, start=1 if column is None else 2):
        if not line.strip():
            continue
        try:
            values.append(float(line.split(",")[index]))
        except (ValueError, IndexError):
            raise ConfigError(f"{path}, line {number} is not a number", seen=line[:80]) from None
    if not values:
        raise ConfigError(f"{path} has no lengths")
    return values


AnyLength: TypeAlias = Fixed | Uniform | Lognormal | Histogram | Empirical
