"""Energy over the measured window: the sum over all devices, in joules.

Sources, in this order: a command the user names; NVML's energy counters (GPUs) together with RAPL's (CPU packages).
None of them there means "not measured", never 0.

A source gives readings of counters that only grow, apart from wrapping at a known range; `Meter` reads them while a
load runs, and `joules_between` takes out of the readings what lies in the window. Idle power before and after the
window therefore never counts. What a counter covers is the device, not the server: other work on it counts too.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import msgspec

from paceline.errors import LabError
from paceline.lab.experiment.energy_sources import EnergySource, find_sources

SAMPLE_S = 0.2


class Reading(msgspec.Struct, frozen=True, array_like=True):
    """One counter, once. `t_ns` is on the monotonic clock."""

    t_ns: int
    joules: float  # of the counter; only differences mean anything


class Series(msgspec.Struct, kw_only=True):
    """All readings of one device, in time order."""

    device: str
    source: str  # rapl, nvml, command
    wraps_at_j: float | None = None  # the counter starts again from 0 there
    readings: list[Reading] = []


def joules_between(series: Series, start_ns: int, end_ns: int) -> float | None:
    """What the device used from `start_ns` to `end_ns`; between readings the power is taken as constant.

    None where the readings do not reach over the whole window, or the counter was set back within it.
    """
    readings = series.readings
    if len(readings) < 2 or readings[0].t_ns > start_ns or readings[-1].t_ns < end_ns:
        return None
    times = [r.t_ns for r in readings]
    total, grown = 0.0, [0.0]
    for before, after in pairwise(readings):
        step = after.joules - before.joules
        if step < 0 and series.wraps_at_j:
            step += series.wraps_at_j
        if step < 0 and after.t_ns > start_ns and before.t_ns < end_ns:
            return None  # a part is not a total
        total += max(0.0, step)
        grown.append(total)

    def at(t_ns: int) -> float:
        right = min(max(bisect_right(times, t_ns), 1), len(times) - 1)
        span = times[right] - times[right - 1]
        share = (t_ns - times[right - 1]) / span if span else 1.0
        return grown[right - 1] + share * (grown[right] - grown[right - 1])

    return at(end_ns) - at(start_ns)


def summarise(series: Sequence[Series], start_ns: int, end_ns: int, idle_watts: float | None = None) -> dict[str, Any]:
    """`RunInfo.energy`: joules of the window by device and in sum; {} where nothing could be read.

    One device whose readings miss the window makes the sum unknown: a part is not a total.
    """
    if not series:
        return {}
    by_device = {s.device: joules_between(s, start_ns, end_ns) for s in series}
    seconds = (end_ns - start_ns) / 1e9
    found = {
        "source": "+".join(sorted({s.source for s in series})),
        "devices": {device: joules for device, joules in by_device.items() if joules is not None},
        "window_s": seconds,
        "covers": "the whole devices: other programs on them count too",
    }
    missing = [device for device, joules in by_device.items() if joules is None]
    if missing:
        return {**found, "joules": None, "reason": f"no readings over the whole window from {', '.join(missing)}"}
    joules = sum(j for j in by_device.values() if j is not None)
    found |= {"joules": joules, "watts": joules / seconds if seconds > 0 else None}
    if idle_watts is not None:
        found["idle_watts"] = idle_watts
    return found


class Meter:
    """Reads all sources in a thread of its own. `with Meter(sources) as meter: load(); meter.series`."""

    def __init__(
        self,
        sources: Sequence[EnergySource] | None = None,
        *,
        every_s: float = SAMPLE_S,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.sources = list(find_sources() if sources is None else sources)
        self._every_s = every_s
        self._clock = clock
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.series: list[Series] = []
        self.idle_watts: float | None = None
        self.trouble = ""  # why reading ended early

    def summary(self, start_ns: int, end_ns: int) -> dict[str, Any]:
        """`RunInfo.energy` for a window on the monotonic clock."""
        found = summarise(self.series, start_ns, end_ns, self.idle_watts)
        return {**found, "reason": self.trouble} if found and self.trouble else found

    def measure_idle(self, seconds: float = 1.0) -> float | None:
        """Watts while nothing is asked of the server, shown beside the load's."""
        with self:
            time.sleep(seconds)
        ends = [(s.readings[0].t_ns, s.readings[-1].t_ns) for s in self.series if s.readings]
        if not ends:
            return None
        start_ns, end_ns = max(a for a, _ in ends), min(b for _, b in ends)
        joules = summarise(self.series, start_ns, end_ns).get("joules")
        self.idle_watts = None if joules is None or end_ns <= start_ns else joules / ((end_ns - start_ns) / 1e9)
        return self.idle_watts

    def __enter__(self) -> Meter:
        self._stop.clear()
        self.trouble = ""
        self.series = [
            Series(device=device, source=source.name, wraps_at_j=wraps)
            for source in self.sources
            for device, wraps in source.devices()
        ]
        if self.series:
            self.read_once()
            self._thread = threading.Thread(target=self._run, name="energy", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
            self.read_once()

    def read_once(self) -> None:
        by_device = {s.device: s for s in self.series}
        try:
            for source in self.sources:
                for device, joules in source.read().items():
                    if device in by_device:
                        by_device[device].readings.append(Reading(self._clock(), joules))
        except LabError as error:  # a meter never ends a run: its number is missing, and says why
            self.trouble = str(error)
            self._stop.set()

    def _run(self) -> None:
        while not self._stop.wait(self._every_s):
            self.read_once()
