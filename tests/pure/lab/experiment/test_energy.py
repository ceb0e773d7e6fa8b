"""Joules of the window alone, summed over devices, wrap-around and units right; nothing there is "not measured"."""

from __future__ import annotations

import sys

import pytest

from paceline.errors import ConfigError, LabError
from paceline.lab.experiment.energy import Meter, Reading, Series, joules_between, summarise
from paceline.lab.experiment.energy_sources import Command, LibNvml, Nvml, NvmlError, Rapl, find_sources

S = 1_000_000_000


def series(device: str, watts: list[float], wraps: float | None = None, start: float = 0.0) -> Series:
    """One reading a second: `watts[i]` is the power from second i to i + 1."""
    joules, readings = start, [Reading(0, start)]
    for second, power in enumerate(watts, start=1):
        joules += power
        readings.append(Reading(second * S, joules % wraps if wraps else joules))
    return Series(device=device, source="nvml", wraps_at_j=wraps, readings=readings)


def test_idle_head_and_tail_do_not_count_and_gpus_are_summed():
    idle, busy = [50.0] * 5, [360.0] * 10
    gpus = [series("gpu0", idle + busy + idle), series("gpu1", idle + busy + idle)]
    found = summarise(gpus, 5 * S, 15 * S)
    assert found["joules"] == pytest.approx(2 * 3600)  # 720 W for 10 s, not an average of the two
    assert found["watts"] == pytest.approx(720)
    assert found["devices"] == pytest.approx({"gpu0": 3600, "gpu1": 3600})


def test_a_counter_that_wraps_goes_on():
    wrapping = series("package-0", [100.0] * 10, wraps=262.144, start=200.0)
    assert joules_between(wrapping, 0, 10 * S) == pytest.approx(1000)
    assert joules_between(wrapping, 2 * S, 5 * S) == pytest.approx(300)


def test_a_window_between_readings_gets_its_share():
    assert joules_between(series("gpu0", [10.0, 30.0]), S // 2, S + S // 2) == pytest.approx(5 + 15)


def test_a_window_that_is_not_covered_has_no_number():
    part = series("gpu0", [10.0, 10.0])
    assert joules_between(part, 0, 3 * S) is None
    found = summarise([part, series("gpu1", [10.0] * 5)], 0, 3 * S)
    assert found["joules"] is None
    assert "gpu0" in found["reason"]


def test_a_counter_that_was_set_back_in_the_window_has_no_number():
    readings = [Reading(0, 900.0), Reading(S, 1000.0), Reading(2 * S, 50.0), Reading(3 * S, 150.0)]
    again = Series(device="gpu0", source="nvml", readings=readings)
    assert joules_between(again, 0, 3 * S) is None
    assert joules_between(again, 0, S) == 100.0
    assert joules_between(again, 2 * S, 3 * S) == 100.0


def test_nothing_to_read_is_not_measured():
    assert summarise([], 0, S) == {}
    with Meter([]) as meter:
        pass
    assert meter.summary(0, S) == {}


def zone(root, name: str, label: str, microjoules: int, wraps: int = 1_000_000) -> None:
    folder = root / name
    folder.mkdir()
    (folder / "name").write_text(label + "\n")
    (folder / "energy_uj").write_text(f"{microjoules}\n")
    (folder / "max_energy_range_uj").write_text(f"{wraps}\n")


def test_rapl_reads_packages_and_memory_once_each(tmp_path):
    zone(tmp_path, "intel-rapl:0", "package-0", 5_000_000)
    zone(tmp_path, "intel-rapl:0:0", "core", 4_000_000)  # within the package
    zone(tmp_path, "intel-rapl:0:1", "dram", 1_000_000)
    zone(tmp_path, "intel-rapl:1", "psys", 9_000_000)  # holds the package
    rapl = Rapl(tmp_path)
    assert rapl.read() == {"intel-rapl:0 package-0": 5.0, "intel-rapl:0:1 dram": 1.0}
    assert dict(rapl.devices()) == {"intel-rapl:0 package-0": 1.0, "intel-rapl:0:1 dram": 1.0}
    (tmp_path / "intel-rapl:0" / "energy_uj").unlink()
    assert rapl.read() == {"intel-rapl:0:1 dram": 1.0}
    assert Rapl(tmp_path / "none").devices() == []


class FakeNvml:
    def count(self) -> int:
        return 2

    def handle(self, index: int) -> int:
        return index

    def millijoules(self, handle: int) -> int:
        if handle == 1:
            raise NvmlError("not supported")
        return 2_500


def test_nvml_counts_millijoules_and_leaves_out_gpus_without_a_counter():
    nvml = Nvml(FakeNvml())
    assert nvml.devices() == [("gpu0", None)]
    assert nvml.read() == {"gpu0": 2.5}


def test_a_machine_without_the_driver_says_so():
    with pytest.raises(NvmlError):
        LibNvml("libno-such-driver.so.1")


def test_a_command_in_watts_is_integrated():
    now = iter([0.0, 2.0])
    command = Command([sys.executable, "-c", "print(30)"], "W", clock=lambda: next(now))
    (device,) = [name for name, _ in command.devices()]
    assert command.read() == {device: 0.0}
    assert command.read() == {device: pytest.approx(60.0)}


def test_a_command_that_fails_leaves_the_run_alone():
    broken = Command([sys.executable, "-c", "print('warm')"], "J")
    with pytest.raises(LabError, match="command for energy failed"):
        broken.read()
    with Meter([broken]) as meter:
        pass
    found = meter.summary(0, S)
    assert found["joules"] is None
    assert "failed" in found["reason"]
    with pytest.raises(ConfigError):
        Command(["true"], "kWh")


def test_the_users_command_is_the_only_source():
    (source,) = find_sources([sys.executable, "-c", "print(1)"], "J")
    with Meter([source], every_s=0.01) as meter:
        pass
    (found,) = meter.series
    assert found.source == "command"
    assert found.readings[0].joules == 1.0


def test_a_command_that_says_no_number_is_refused():
    for said in ("nan", "inf", "none"):
        with pytest.raises(LabError, match="the command for energy failed"):
            Command([sys.executable, "-c", f"print('{said}')"], "J").read()
