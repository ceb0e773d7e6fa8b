"""Rates of made-up machines, on a clock that moves as they compute."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from paceline.runtime.probe import TOTAL_S, TRY_S, best_rates

RUN_S = 0.002  # of a run that nobody disturbs


class Machine:
    """A run takes RUN_S at its fastest, `slowdown(time)` times that otherwise. `work` is what one run does."""

    def __init__(self, slowdown: Callable[[float], float] = lambda _now: 1.0) -> None:
        self.now = 100.0
        self.pauses = 0
        self.runs = 0
        self.slowdown = slowdown

    def run(self) -> None:
        self.runs += 1
        self.now += RUN_S * self.slowdown(self.now - 100.0)

    def sleep(self, seconds: float) -> None:
        self.pauses += 1
        self.now += seconds

    def rates(self, *work: float) -> list[float]:
        return best_rates([(self.run, w) for w in work], clock=lambda: self.now, sleep=self.sleep)

    @property
    def seconds(self) -> float:
        return self.now - 100.0


def test_a_quiet_machine_gives_its_rates_and_is_left_alone_between_tries() -> None:
    machine = Machine()
    assert machine.rates(10.0, 30.0) == pytest.approx([10.0 / RUN_S, 30.0 / RUN_S])
    assert machine.pauses >= 4
    assert machine.seconds <= TOTAL_S + 2 * (TRY_S + RUN_S)


@pytest.mark.parametrize("quiet", [0.0, 0.05, 0.12, 0.2])
def test_a_quiet_moment_in_a_busy_time_is_found(quiet: float) -> None:
    machine = Machine(lambda now: 1.0 if quiet <= now < quiet + 0.05 else 12.0)
    (rate,) = machine.rates(10.0)
    assert rate == pytest.approx(10.0 / RUN_S)


def test_bursts_of_others_do_not_lower_the_rate() -> None:
    machine = Machine(lambda now: 8.0 if now % 0.05 < 0.04 else 1.0)
    (rate,) = machine.rates(10.0)
    assert rate > 0.9 * 10.0 / RUN_S


def test_the_time_is_bounded_however_slow_the_machine() -> None:
    slow = Machine(lambda _now: 40.0)
    assert slow.rates(10.0) == pytest.approx([10.0 / RUN_S / 40])
    assert slow.seconds <= TOTAL_S + RUN_S * 40
    frozen = Machine(lambda _now: 1000.0)  # one run alone takes longer than there is
    assert frozen.rates(10.0) == pytest.approx([10.0 / RUN_S / 1000])
    assert frozen.runs == 2  # the warm-up and one that counts
