"""Where joules can be read: RAPL's files, NVML, or a command. See `energy` for how readings become a number."""

from __future__ import annotations

import ctypes
import math
import shlex
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from paceline.errors import ConfigError, LabError

POWERCAP = Path("/sys/class/powercap")


class EnergySource(Protocol):
    """Counters of joules, by device."""

    name: str

    def devices(self) -> list[tuple[str, float | None]]:
        """Each device, and the joules at which its counter wraps (None: never)."""
        ...

    def read(self) -> dict[str, float]:
        """Joules on each counter now. A counter that cannot be read just then is left out."""
        ...


class NvmlLibrary(Protocol):
    def count(self) -> int: ...
    def handle(self, index: int) -> Any: ...
    def millijoules(self, handle: Any) -> int: ...


class Rapl:
    """The CPU packages' and memory's counters under /sys/class/powercap. On many systems only root may read them."""

    name = "rapl"

    def __init__(self, root: Path = POWERCAP) -> None:
        self._files: dict[str, tuple[Path, float | None]] = {}
        for zone in sorted(root.glob("intel-rapl:*")):
            # intel-rapl:N is a package; intel-rapl:N:M lies within it, and only memory ("dram") is counted apart
            inner = zone.name.count(":") > 1
            try:
                name = (zone / "name").read_text().strip()
                if inner and name != "dram":
                    continue
                if not inner and name.startswith("psys"):
                    continue  # the whole board: it holds the packages, so their sum would count twice
                wraps = int((zone / "max_energy_range_uj").read_text()) / 1e6
                int((zone / "energy_uj").read_text())
            except (OSError, ValueError):
                continue
            self._files[f"{zone.name} {name}"] = (zone / "energy_uj", wraps or None)

    def devices(self) -> list[tuple[str, float | None]]:
        return [(device, wraps) for device, (_, wraps) in self._files.items()]

    def read(self) -> dict[str, float]:
        found = {}
        for device, (file, _) in self._files.items():
            try:
                found[device] = int(file.read_text()) / 1e6  # microjoules
            except (OSError, ValueError):
                continue
        return found


class NvmlError(Exception):
    """A call of NVML failed."""


class LibNvml:
    """The few calls of the driver's own library that are needed. Raises NvmlError where there is no driver."""

    def __init__(self, name: str = "libnvidia-ml.so.1") -> None:
        try:
            self._library = ctypes.CDLL(name)
        except OSError as error:
            raise NvmlError(str(error)) from None
        self._call("nvmlInit_v2")

    def count(self) -> int:
        found = ctypes.c_uint()
        self._call("nvmlDeviceGetCount_v2", ctypes.byref(found))
        return found.value

    def handle(self, index: int) -> Any:
        found = ctypes.c_void_p()
        self._call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(found))
        return found

    def millijoules(self, handle: Any) -> int:
        """Since the driver was loaded."""
        found = ctypes.c_ulonglong()
        self._call("nvmlDeviceGetTotalEnergyConsumption", handle, ctypes.byref(found))
        return found.value

    def _call(self, name: str, *arguments: Any) -> None:
        try:
            code = getattr(self._library, name)(*arguments)
        except AttributeError:
            raise NvmlError(f"this driver has no {name}") from None
        if code != 0:
            raise NvmlError(f"{name} failed with {code}")


class Nvml:
    """Energy counters of NVIDIA GPUs since the driver was loaded: all GPUs, or those named by index."""

    name = "nvml"

    def __init__(self, library: NvmlLibrary, indices: Sequence[int] | None = None) -> None:
        self._library = library
        self._handles: dict[str, Any] = {}
        for index in range(library.count()) if indices is None else indices:
            handle = library.handle(index)
            try:
                library.millijoules(handle)
            except NvmlError:
                continue  # older than Volta: no counter
            self._handles[f"gpu{index}"] = handle

    def devices(self) -> list[tuple[str, float | None]]:
        return [(device, None) for device in self._handles]

    def read(self) -> dict[str, float]:
        found = {}
        for device, handle in self._handles.items():
            try:
                found[device] = self._library.millijoules(handle) / 1e3
            except NvmlError:
                continue
        return found


class Command:
    """A command that prints one number: joules since some moment, or watts just now (then power is integrated here)."""

    name = "command"

    def __init__(
        self, argv: Sequence[str], unit: str, *, timeout_s: float = 5.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        if unit not in ("J", "W"):
            raise ConfigError("a command for energy prints joules or watts", seen=unit, expected="J or W")
        self._argv = list(argv)
        self._unit = unit
        self._timeout_s = timeout_s
        self._clock = clock
        self._last: tuple[float, float] | None = None  # time, watts
        self._joules = 0.0

    def devices(self) -> list[tuple[str, float | None]]:
        return [(shlex.join(self._argv), None)]

    def read(self) -> dict[str, float]:
        value = self._ask()
        if self._unit == "W":
            now = self._clock()
            if self._last is not None:
                before, watts = self._last
                self._joules += (watts + value) / 2 * (now - before)
            self._last = (now, value)
            value = self._joules
        return {shlex.join(self._argv): value}

    def _ask(self) -> float:
        try:
            done = subprocess.run(
                self._argv,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=self._timeout_s,
                check=True,
            )
            value = float(done.stdout.split()[0])
            if not math.isfinite(value):
                raise ValueError(f"it said {value}")
            return value
        except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
            raise LabError(
                f"the command for energy failed: {error}",
                seen=shlex.join(self._argv),
                expected=f"one number on standard output, in {self._unit}",
            ) from None


def find_sources(command: Sequence[str] | None = None, unit: str = "J") -> list[EnergySource]:
    """The user's command alone, where given; else every counter this machine lets us read. May be empty."""
    if command:
        return [Command(command, unit)]
    found: list[EnergySource] = []
    rapl = Rapl()
    if rapl.devices():
        found.append(rapl)
    try:
        nvml = Nvml(LibNvml())
    except NvmlError:
        return found
    return [*found, nvml] if nvml.devices() else found
