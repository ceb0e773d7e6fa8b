import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.lab.workload.draw import deck, key, pick, uniforms, zipf_weights


@given(st.integers(0, 2**31), st.integers(1, 200), st.integers(1, 200))
def test_first_draws_do_not_depend_on_how_many_are_drawn(seed: int, few: int, more: int) -> None:
    assert list(uniforms(few + more, seed, "x")[:few]) == list(uniforms(few, seed, "x"))


def test_names_do_not_run_together() -> None:
    assert len({key("ab", "c"), key("a", "bc"), key("abc"), key("a", "b", "c"), key(1, 12), key(11, 2)}) == 6


def test_keys_stay_what_they_are() -> None:
    """Plans are stored by seed: a change of this number changes every plan."""
    assert key(0, "stream", "default") == 5586347751690199492


@given(st.integers(0, 1000), st.integers(1, 300), st.lists(st.floats(0, 0.5), min_size=1, max_size=2))
@settings(max_examples=60)
def test_a_deck_holds_every_share_within_one_per_run_of_twenty(seed: int, num: int, shares: list[float]) -> None:
    wanted = {f"c{i}": share for i, share in enumerate(shares)}
    dealt = deck(num, wanted, seed)
    assert len(dealt) == num
    for name, share in wanted.items():
        whole = num // 20 * 20
        assert abs(dealt[:whole].count(name) - share * whole) <= 1 + 1e-9


@given(st.integers(0, 1000), st.integers(1, 100), st.integers(1, 100))
def test_a_deck_is_dealt_the_same_however_long_it_is(seed: int, few: int, more: int) -> None:
    shares = {"a": 0.3, "b": 0.1}
    assert deck(few + more, shares, seed)[:few] == deck(few, shares, seed)


def test_a_deck_is_not_in_step() -> None:
    places = [i % 20 for i, c in enumerate(deck(2000, {"a": 0.05}, 1)) if c]
    assert len(places) == 100
    assert len(set(places)) > 15


@pytest.mark.parametrize("exponent", [0.0, 1.0, 1.5])
def test_zipf_picks_follow_their_weights(exponent: float) -> None:
    weights = zipf_weights(10, exponent)
    picked = list(pick(weights, uniforms(20_000, "zipf")))
    for k in (0, 4, 9):
        share = picked.count(k) / 20_000
        assert abs(share - weights[k]) < 5 * (weights[k] / 20_000) ** 0.5 + 1e-4
