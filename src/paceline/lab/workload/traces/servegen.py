"""ServeGen: clients described by rate, burstiness and length histograms; requests are drawn from them.

A folder or .tar.gz with, per client, `chunk-N-trace.csv` (no header: window start in seconds, requests/s, coefficient
of variation of the gaps, Gamma | Weibull | nothing, shape, scale) and maybe `chunk-N-dataset.json` (period's start in
seconds -> {"input_tokens": "{tokens: share, ...}", "output_tokens": ...}; multi-modal sets say "text_tokens").
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from paceline.errors import ConfigError
from paceline.lab.workload.arrivals import Gamma, Poisson, Weibull
from paceline.lab.workload.draw import Floats, pick, uniforms
from paceline.lab.workload.traces.files import members
from paceline.lab.workload.traces.rows import TraceRows, too_short


@dataclass(frozen=True)
class Rates:
    """One client's windows."""

    start_s: Floats  # [num_windows]
    rate: Floats  # [num_windows] requests/s
    cv: Floats  # [num_windows]
    pattern: tuple[str, ...]


@dataclass(frozen=True)
class Histograms:
    """One client's lengths by period: (values, weights), or None where a period has none."""

    start_s: Floats  # [num_periods]
    inputs: tuple[tuple[Floats, Floats] | None, ...]
    outputs: tuple[tuple[Floats, Floats] | None, ...]


@dataclass(frozen=True)
class ServeGenTrace:
    clients: dict[str, Rates]
    lengths: dict[str, Histograms]
    window_s: float

    @property
    def end_s(self) -> float:
        return max(float(c.start_s[-1]) for c in self.clients.values()) + self.window_s

    def length_for(self, start_s: float, num: float) -> float:
        grid, area = self._expected()
        before = float(np.interp(start_s, grid, area))
        if before + num > area[-1] + 1e-9:
            raise too_short(area[-1] - before, num)
        return float(np.interp(before + num, area, grid)) - start_s

    def rows(self, start_s: float, length_s: float, *names: object) -> TraceRows:
        end_s = start_s + length_s
        times: list[Floats] = []
        inputs: list[Floats] = []
        outputs: list[Floats] = []
        for client, rates in self.clients.items():
            for i in np.flatnonzero((rates.start_s + self.window_s > start_s) & (rates.start_s < end_s)):
                at = self._window(rates, int(i), (*names, client, int(i)))
                at = at[(at >= start_s) & (at < end_s)]
                if client in self.lengths and len(at):
                    drawn = _lengths(self.lengths[client], float(rates.start_s[i]), len(at), (*names, client, int(i)))
                    if drawn is None:
                        continue  # a client without lengths in this period sent nothing that can be repeated
                    inputs.append(drawn[0])
                    outputs.append(drawn[1])
                times.append(at - start_s)
        at = np.concatenate(times) if times else np.zeros(0)
        order = np.argsort(at, kind="stable")
        return TraceRows(
            at_s=at[order],
            num_input=np.concatenate(inputs)[order] if self.lengths and inputs else None,
            num_output=np.concatenate(outputs)[order] if self.lengths and outputs else None,
        )

    def _window(self, rates: Rates, i: int, names: tuple[object, ...]) -> Floats:
        rate, cv = float(rates.rate[i]), float(rates.cv[i])
        if rate <= 0:
            return np.zeros(0)
        if rates.pattern[i] == "Gamma" and cv > 0:
            process: Gamma | Weibull | Poisson = Gamma(rate=rate, cv=cv)
        elif rates.pattern[i] == "Weibull" and cv > 0:
            process = Weibull(rate=rate, cv=min(20.0, max(0.05, cv)))
        else:
            process = Poisson(rate=rate)
        return float(rates.start_s[i]) + process.times(self.window_s, *names)

    def _expected(self) -> tuple[Floats, Floats]:
        """Expected requests up to each time: (time, count).  # [num_windows + 1] each"""
        starts = np.unique(np.concatenate([c.start_s for c in self.clients.values()]))
        rate = np.zeros(len(starts))
        for client, rates in self.clients.items():
            if not self.lengths or client in self.lengths:
                rate[np.searchsorted(starts, rates.start_s)] += rates.rate
        grid = np.append(starts, starts[-1] + self.window_s)
        return grid, np.concatenate([[0.0], np.cumsum(rate * np.diff(grid))])


def read_servegen(path: Path) -> ServeGenTrace:
    """Raises ConfigError if there is no client in it, or a file is not of the form above."""
    clients: dict[str, Rates] = {}
    lengths: dict[str, Histograms] = {}
    for name, text in members(path, ("-trace.csv", "-dataset.json")):
        client = name.removesuffix("-trace.csv").removesuffix("-dataset.json")
        read: Callable[[str], Any] = _rates if name.endswith(".csv") else _histograms
        try:
            (clients if name.endswith(".csv") else lengths)[client] = read(text)
        except (ValueError, IndexError, KeyError, csv.Error, msgspec.MsgspecError) as error:
            raise ConfigError(
                f"{path}: {name} is not of ServeGen's form", seen=f"{type(error).__name__}: {error}"[:160]
            ) from None
    clients = {client: rates for client, rates in clients.items() if len(rates.start_s)}
    lengths = {client: lengths[client] for client in clients if client in lengths}
    if not clients:
        raise ConfigError("no ServeGen client found", seen=str(path), expected="files named chunk-N-trace.csv")
    if lengths:
        clients = {client: clients[client] for client in lengths}
    gaps = np.concatenate([np.diff(c.start_s) for c in clients.values()])
    return ServeGenTrace(clients=clients, lengths=lengths, window_s=float(np.median(gaps)) if len(gaps) else 600.0)


def _rates(text: str) -> Rates:
    rows = [row for row in csv.reader(text.splitlines()) if row]
    return Rates(
        start_s=np.asarray([float(row[0]) for row in rows]),
        rate=np.asarray([float(row[1]) for row in rows]),
        cv=np.asarray([float(row[2] or 0) for row in rows]),
        pattern=tuple(row[3].strip() for row in rows),
    )


def _histograms(text: str) -> Histograms:
    periods = msgspec.json.decode(text, type=dict[str, dict[str, str]])
    ordered = sorted(periods.items(), key=lambda item: float(item[0]))
    return Histograms(
        start_s=np.asarray([float(start) for start, _ in ordered]),
        inputs=tuple(_histogram(p.get("input_tokens", p.get("text_tokens"))) for _, p in ordered),
        outputs=tuple(_histogram(p.get("output_tokens")) for _, p in ordered),
    )


def _histogram(text: str | None) -> tuple[Floats, Floats] | None:
    """From a dict as Python prints it, `{45: 0.25, ...}`: numbers only, so it is split rather than evaluated."""
    pairs = [pair.split(":") for pair in (text or "").strip().strip("{}").split(",") if pair.strip()]
    values = np.asarray([float(value) for value, _ in pairs], dtype=np.float64)
    weights = np.asarray([float(weight) for _, weight in pairs], dtype=np.float64)
    usable = bool(len(values)) and math.isfinite(float(weights.sum())) and float(weights.sum()) > 0
    return (values, weights) if usable else None


def _lengths(known: Histograms, at_s: float, num: int, names: tuple[object, ...]) -> tuple[Floats, Floats] | None:
    """Lengths of `num` requests from the period that `at_s` falls into, or the nearest one that has some."""
    usable = [i for i, (a, b) in enumerate(zip(known.inputs, known.outputs, strict=True)) if a and b]
    if not usable:
        return None
    i = min(usable, key=lambda i: (known.start_s[i] > at_s, abs(known.start_s[i] - at_s)))
    drawn = []
    for kind, histogram in (("input", known.inputs[i]), ("output", known.outputs[i])):
        assert histogram is not None
        values, weights = histogram
        drawn.append(np.maximum(1.0, values[pick(weights, uniforms(num, *names, kind))]))
    return drawn[0], drawn[1]
