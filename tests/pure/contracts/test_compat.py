import pytest

from paceline.contracts.compat import Feature, Matrix
from paceline.errors import UnsupportedError

MATRIX = Matrix(
    [
        Feature(name="offload", needs=(("tier", "offloading needs somewhere to put the blocks"),), instead="recompute"),
        Feature(name="recompute"),
        Feature(name="drafts", conflicts=(("state:fixed", "a rejected draft cannot be taken back"),)),
        Feature(name="fp4", available=False, why_not="no kernel yet", instead="int8"),
        Feature(name="int8"),
    ]
)


def test_sound_sets_pass() -> None:
    MATRIX.check(["recompute", "int8", "device:cpu"])
    MATRIX.check(["offload", "tier"])


@pytest.mark.parametrize(
    ("active", "pair", "nearest"),
    [
        (["offload"], "offload with tier", ["recompute"]),
        (["drafts", "state:fixed"], "drafts with state:fixed", ["state:fixed"]),
        (["fp4", "recompute"], "fp4 cannot be", ["int8", "recompute"]),
    ],
)
def test_unsound_sets_are_refused_with_pair_reason_and_nearest(
    active: list[str], pair: str, nearest: list[str]
) -> None:
    assert MATRIX.nearest_valid(active) == nearest
    MATRIX.check(nearest)
    with pytest.raises(UnsupportedError, match=pair) as refusal:
        MATRIX.check(active)
    assert refusal.value.fix == f"use {', '.join(nearest)}"
