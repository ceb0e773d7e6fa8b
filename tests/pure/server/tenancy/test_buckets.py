"""The token bucket against a replay of its whole history, and the two promises made from it."""

import math
from dataclasses import dataclass

from hypothesis import given, note, settings
from hypothesis import strategies as st

from paceline.server.tenancy.buckets import TokenBucket

many = settings(deadline=None, max_examples=300, derandomize=True)


@dataclass
class Taken:
    time: float
    amount: float


def replayed_level(rate, burst, history, now):
    """Run the history forward: fill, spill, take. What a settlement changed counts as if it had been so at once."""
    level, at = burst, history[0].time if history else now
    for taken in history:
        level = min(burst, level + rate * (taken.time - at)) - taken.amount
        at = taken.time
    return min(burst, level + rate * (now - at))


@st.composite
def traffic(draw):
    rate = draw(st.sampled_from([0.5, 1.0, 7.0]))
    burst = draw(st.integers(1, 60))
    moves = draw(
        st.lists(
            st.tuples(
                st.sampled_from([0.0, 0.0, 0.25, 1.0, 5.0, 100.0]),  # time that passes before it
                st.sampled_from(["take", "take", "settle", "settle_late"]),
                st.integers(1, 60),
                st.floats(0, 1),
            ),
            max_size=40,
        )
    )
    return rate, float(burst), moves


def play(rate, burst, moves, start=0.0):
    """Yield after each move: now, bucket, history as it stands, waits that were told."""
    bucket = TokenBucket(rate, burst)
    history: list[Taken] = []
    open_charges: list = []
    now = start
    for passed, what, amount, share in moves:
        now += passed
        if what == "take":
            if bucket.wait_s(amount, now) == 0.0:
                open_charges.append((bucket.charge(amount, now), taken := Taken(now, amount)))
                history.append(taken)
        elif open_charges:
            charge, taken = open_charges.pop(0 if what == "settle" else -1)
            taken.amount = math.floor(charge.amount * share)
            bucket.settle(charge, taken.amount)
        yield now, bucket, history


@many
@given(traffic())
def test_the_level_is_that_of_a_history_in_which_nothing_unused_was_ever_taken(case):
    rate, burst, moves = case
    for now, bucket, history in play(rate, burst, moves):
        note(f"{now} {history}")
        assert math.isclose(bucket.level(now), replayed_level(rate, burst, history, now), abs_tol=1e-6)


@many
@given(traffic())
def test_no_window_ever_holds_more_than_its_rate_and_the_burst(case):
    rate, burst, moves = case
    history = []
    for _, _, history in play(rate, burst, moves):  # noqa: B007
        pass
    for i, first in enumerate(history):
        used = 0.0
        for last in history[i:]:
            used += last.amount
            assert used <= rate * (last.time - first.time) + burst + 0.01


@many
@given(traffic(), st.integers(1, 60))
def test_after_the_wait_that_was_told_the_amount_is_there(case, amount):
    rate, burst, moves = case
    for now, bucket, _ in play(rate, burst, moves, start=1e6):
        wait_s = bucket.wait_s(amount, now)
        if amount > burst:
            assert wait_s == math.inf
        else:
            assert bucket.wait_s(amount, now + wait_s) == 0.0
            if wait_s > 0.02:
                assert bucket.wait_s(amount, now + wait_s - 0.02) > 0.0  # and not long before


def test_giving_back_much_later_does_not_fill_what_had_spilled_over():
    bucket = TokenBucket(1.0, 100.0)
    first = bucket.charge(100, 0.0)
    assert bucket.level(100.0) == 100.0  # full again before it was settled
    bucket.charge(100, 100.0)
    bucket.settle(first, 0)
    assert bucket.level(100.0) == 0.0


def test_a_final_charge_is_kept_as_one_number():
    bucket = TokenBucket(1.0, 3.0)
    for _ in range(3):
        bucket.charge(1, 10.0, final=True)
    assert bucket.level(10.0) == 0.0
    assert bucket.wait_s(1, 10.0) == 1.0
    assert not bucket._open


def test_more_than_was_reserved_is_taken_too():
    bucket = TokenBucket(1.0, 10.0)
    charge = bucket.charge(4, 0.0)
    bucket.settle(charge, 13)
    assert bucket.level(0.0) == -3.0
    assert bucket.wait_s(1, 0.0) == 4.0
