"""Rates as pure arithmetic: a bucket that fills at a steady rate, and pays back what was reserved and not used.

Time is passed in (seconds, never going back), so a day of traffic is tested in a moment.
"""

from __future__ import annotations

import math

_SLACK = 1e-3  # units; of the level's rounding, so that whoever waited as long as told is not sent away again


class Charge:
    """One reservation: `amount` units, taken at one moment and open until it is settled."""

    __slots__ = ("amount", "floor")

    def __init__(self, amount: float, floor: float) -> None:
        self.amount = amount
        self.floor = floor  # see `TokenBucket`


class TokenBucket:
    """At most `burst + rate * t` units in any window of t seconds, exactly, whatever is given back and when.

    A unit counts at the moment its charge was taken. Giving back says that the charge was smaller all along, so the
    level becomes what it would have been then: units that would have spilled over the full bucket do not come back.

    With G the sum of all charges ever, the level at `now` is the least of `burst` and, over all moments s at which
    something was charged, `burst + rate * (now - s)` minus what was charged from s on. That is `F(s) - G + rate * now`
    with a constant `F(s) = burst - rate * s + (G just before s)`. Giving back r of a charge taken at s' lowers G by r
    for good and must not raise the level for moments after s': their F falls by r too. So the bucket keeps one number
    per open charge, the least F since the open charge before it, and one for the moments after the last open charge.
    A charge costs O(1), a settlement O(open charges).
    """

    def __init__(self, rate: float, burst: float) -> None:
        assert 0.0 < rate < math.inf
        assert 0.0 < burst < math.inf
        self.rate = rate  # units per second
        self.burst = burst
        self._taken = 0.0  # G
        self._tail = math.inf  # least F of moments after the last open charge
        self._open: list[Charge] = []

    def level(self, now: float) -> float:
        """Units that may be taken now, 0 to `burst`."""
        least = min(self._tail, min((charge.floor for charge in self._open), default=math.inf))
        return min(self.burst, least - self._taken + self.rate * now)

    def wait_s(self, amount: float, now: float) -> float:
        """Seconds after which `amount` can be taken, if nothing else is until then; inf: it is more than the burst."""
        if amount > self.burst:
            return math.inf
        missing = amount - self.level(now)
        return missing / self.rate if missing > _SLACK else 0.0

    def charge(self, amount: float, now: float, *, final: bool = False) -> Charge:
        """Take `amount`, which the level may not have: whoever calls has asked `wait_s`. A `final` charge cannot be
        settled, and costs no memory."""
        floor = min(self._tail, self.burst - self.rate * now + self._taken)
        self._taken += amount
        charge = Charge(amount, floor)
        if final:
            self._tail = floor
        else:
            self._tail = math.inf
            self._open.append(charge)
        return charge

    def settle(self, charge: Charge, used: float) -> None:
        """The charge was really `used` (more than reserved is taken as well). Once per charge."""
        index = next(i for i, other in enumerate(self._open) if other is charge)
        back = charge.amount - used
        self._taken -= back
        later = self._open[index + 1 :]
        for other in later:
            other.floor -= back
        self._tail -= back
        del self._open[index]
        if later:
            later[0].floor = min(later[0].floor, charge.floor)
        else:
            self._tail = min(self._tail, charge.floor)
