"""How much must be measured before a change of a given size shows?

For a paired comparison of logs with spread `sd` (standard deviation of log(B) - log(A) over requests, or over pairs of
runs), by the normal approximation: n = ((z_alpha/2 + z_power) * sd / log(ratio))^2.
"""

from __future__ import annotations

import math

from paceline.errors import ConfigError
from paceline.lab.stats.distributions import normal_quantile


def pairs_needed(ratio: float, sd: float, *, power: float = 0.8, alpha: float = 0.05) -> int:
    """Independent pairs that show a true `ratio` (1.05: five per cent more) in a share `power` of experiments."""
    if ratio <= 0 or ratio == 1 or sd < 0 or not 0 < power < 1:
        raise ConfigError(
            "no number of pairs follows",
            seen=f"ratio {ratio}, sd {sd}, power {power}",
            expected="ratio > 0, not 1; sd >= 0",
        )
    wanted = (normal_quantile(1 - alpha / 2) + normal_quantile(power)) * sd / abs(math.log(ratio))
    return max(2, math.ceil(wanted**2))


def detectable_ratio(n: int, sd: float, *, power: float = 0.8, alpha: float = 0.05) -> float:
    """The least ratio above 1 that `n` independent pairs show with that power."""
    if n < 2:
        raise ConfigError("a change cannot be seen in so few pairs", seen=n, expected="at least 2")
    return math.exp((normal_quantile(1 - alpha / 2) + normal_quantile(power)) * sd / math.sqrt(n))
