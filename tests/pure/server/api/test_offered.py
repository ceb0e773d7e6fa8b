"""What keeps required calls within an answer."""

from __future__ import annotations

import pytest

from paceline.server.api.offered import Limits, limits_within
from paceline.text.tools import Bounds


@pytest.mark.parametrize(
    ("budget", "parallel", "limits"),
    [
        (1, True, Limits(1, Bounds(16, 8))),
        (100, True, Limits(1, Bounds(64, 8))),
        (512, True, Limits(4, Bounds(256, 8))),
        (512, False, Limits(1, Bounds(512, 16))),
        (1023, True, Limits(4, Bounds(256, 8))),
        (8191, True, Limits(16, Bounds(2048, 64))),
        (8192, True, Limits(16, None)),
        (100_000, False, Limits(1, None)),
    ],
)
def test_calls_and_strings_fit_the_answer(budget: int, parallel: bool, limits: Limits):
    assert limits_within(budget, parallel=parallel) == limits
