from __future__ import annotations

import pytest

from paceline.cost import Estimate, Link, Transfers, exact, sum_of
from paceline.errors import ConfigError


def test_a_sum_is_as_weak_as_its_weakest_part() -> None:
    firm = exact(2.0, "counted")
    weak = Estimate(value=10.0, lo=5.0, hi=20.0, tier="extrapolated", why="beyond")
    total = sum_of([firm, weak, weak.times(0.5)])
    assert (total.value, total.lo, total.hi) == (17.0, 9.5, 32.0)
    assert (total.tier, total.why) == ("extrapolated", "beyond")
    assert sum_of([firm], why="one").why == "one"
    assert (sum_of([]).value, sum_of([]).tier) == (0.0, "measured")


def test_an_estimate_says_its_tier_when_printed() -> None:
    assert str(Estimate(value=10.0, lo=5.0, hi=20.0, tier="interpolated", why="")) == "10 (5 to 20, interpolated)"


def test_a_transfer_is_its_latency_and_its_bytes() -> None:
    link = Link(gbps=50.0, latency_us=10.0)
    assert link.ms(50e6) == pytest.approx(1.01)
    assert link.ms(0) == 0.0
    tiers = Transfers({"dram": Link(gbps=20.0), "disk": Link(gbps=2.0, latency_us=100.0)})
    assert tiers.transfer_ms("dram", 20e6) == pytest.approx(1.0)
    assert tiers.load_s("disk", 4e9) == pytest.approx(2.0001)


def test_a_tier_without_a_link_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"tape.*disk or dram"):
        Transfers({"dram": Link(gbps=20.0), "disk": Link(gbps=2.0)}).transfer_ms("tape", 1)


@pytest.mark.parametrize("wrong", [{"gbps": 0.0}, {"gbps": -1.0}, {"gbps": 1.0, "latency_us": -1.0}])
def test_a_link_that_cannot_be_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="cannot be"):
        Link(**wrong)
