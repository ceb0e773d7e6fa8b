from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from paceline.contracts.ports import StepShape
from paceline.errors import ConfigError
from paceline.router import (
    POLICIES,
    Ask,
    LeastLoaded,
    Load,
    PowerOfTwo,
    PredictedSeconds,
    PrefixAffinity,
    RoundRobin,
    make_policy,
)


class PerToken:
    """Two milliseconds a step, one a position, and `pair_ms` for each pair beyond those of a step of decode rows."""

    def __init__(self, pair_ms: float = 0.0) -> None:
        self._pair_ms = pair_ms

    def step_ms(self, shape: StepShape) -> float:
        further = shape.attention_pairs - shape.context_tokens - shape.num_tokens
        return 2.0 + shape.num_tokens + self._pair_ms * further

    def prefill_ms(self, num_tokens: int, num_cached: int = 0) -> float:
        return float(num_tokens)

    def tokens_within(self, ms: float, shape: StepShape, num_cached: int = 0, *, at_most: int) -> int:
        return at_most

    def observe(self, shape: StepShape, ms: float) -> None:
        pass


def loads(*states: tuple[int, int]) -> list[Load]:
    """(waiting, prompt tokens they wait for) of each replica."""
    made = []
    for replica, (waiting, tokens) in enumerate(states):
        load = Load(replica)
        load.num_waiting, load.prefill_tokens = waiting, tokens
        made.append(load)
    return made


def ask(request_id: int = 0, num_prompt: int = 100, cached: Sequence[int] = ()) -> Ask:
    return Ask(request_id, num_prompt, lambda replica: cached[replica] if cached else 0)


def test_round_robin_goes_round_whoever_is_up() -> None:
    policy, all_up = RoundRobin(), loads((0, 0), (9, 9), (0, 0))
    assert [policy.choose(ask(), all_up).replica for _ in range(5)] == [0, 1, 2, 0, 1]
    assert policy.choose(ask(), all_up[:1]).replica == 0


def test_least_loaded_counts_requests_first_and_prompt_tokens_then() -> None:
    policy = LeastLoaded()
    assert policy.choose(ask(), loads((2, 10), (1, 900), (1, 800))).replica == 2
    assert policy.choose(ask(), loads((1, 5), (1, 5))).replica == 0


def test_power_of_two_takes_the_better_of_two_and_draws_alike_for_equal_seeds() -> None:
    busy = loads(*[(9, 9)] * 3, (0, 0))
    chosen = Counter(PowerOfTwo(1).choose(ask(i), busy).replica for i in range(2000))
    assert chosen[3] / 2000 == pytest.approx(0.5, abs=0.05)  # it is one of the two in half of all draws
    again = [PowerOfTwo(1).choose(ask(i), busy).replica for i in range(50)]
    assert again == [PowerOfTwo(1).choose(ask(i), busy).replica for i in range(50)]
    assert PowerOfTwo(0).choose(ask(), busy[:1]).replica == 0


def test_a_prefix_counts_from_a_share_of_the_prompt_on() -> None:
    some = loads((5, 5), (0, 0), (3, 3))
    assert PrefixAffinity(0.3).choose(ask(cached=(40, 0, 20)), some).replica == 0
    assert PrefixAffinity(0.5).choose(ask(cached=(40, 0, 20)), some).replica == 1
    assert PrefixAffinity(0.0).choose(ask(cached=(1, 0, 0)), some).replica == 0
    assert PrefixAffinity(0.3).choose(ask(cached=(40, 0, 40)), some).replica == 2  # of equal hits the less loaded


def test_predicted_seconds_weighs_the_queue_against_the_cache() -> None:
    policy = PredictedSeconds(PerToken(), step_tokens=50, max_rows=4)
    assert policy.seconds(ask(), loads((0, 0))[0]) == pytest.approx((100 + 2 * 2.0) / 1e3)  # two steps
    two = loads((1, 60), (0, 0))
    assert policy.choose(ask(cached=(80, 0)), two).replica == 0  # 60 + 20 against 100
    assert policy.choose(ask(cached=(30, 0)), two).replica == 1  # 60 + 70 against 100
    assert policy.seconds(ask(cached=(100,)), loads((0, 0))[0]) > 0  # the last token is computed in any case


def test_predicted_seconds_waits_for_a_row_when_all_are_taken() -> None:
    policy = PredictedSeconds(PerToken(), step_tokens=1000, max_rows=4, mean_output_tokens=40)
    load = Load(0)
    load.num_decoding = 4
    free = Load(1)
    free.num_decoding = 3
    waits_ms = 10 * (2.0 + 4)  # until a row ends, in steps of four
    assert policy.seconds(ask(), load) - policy.seconds(ask(), free) == pytest.approx((waits_ms + 1) / 1e3)


def test_predicted_seconds_prices_prompts_that_wait_each_by_itself() -> None:
    """Eight prompts of 100 tokens have fewer pairs than one of 700."""
    policy = PredictedSeconds(PerToken(pair_ms=1.0), step_tokens=2000, max_rows=64)
    many, one = loads((8, 800), (1, 700))
    pairs = 8 * 100 * 99 / 2 + 100 * 99 / 2
    assert policy.seconds(ask(), many) == pytest.approx((2 + 900 + pairs) / 1e3)
    assert policy.choose(ask(), [many, one]).replica == 0


@pytest.mark.parametrize("name", POLICIES)
def test_every_name_makes_a_policy_that_chooses(name: str) -> None:
    policy = make_policy(name, PerToken(), step_tokens=10, max_rows=2)
    some = loads((1, 1), (0, 0))
    assert policy.choose(ask(cached=(0, 0)), some) in some


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ConfigError, match="no router policy"):
        make_policy("random", PerToken(), step_tokens=10, max_rows=2)
    with pytest.raises(ConfigError, match="min_share"):
        PrefixAffinity(1.5)
    with pytest.raises(ConfigError, match="size is out of range"):
        PredictedSeconds(PerToken(), step_tokens=0, max_rows=2)
