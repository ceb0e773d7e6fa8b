"""The choices of a router. Each looks at the loads of the replicas that are up, and names one.

    round-robin        one after the other, whatever they do
    least-loaded       fewest open requests, then fewest prompt tokens to compute
    power-of-two       the less loaded of two drawn at random: nearly as good, and looks at two (Mitzenmacher, 2001)
    longest-prefix     whoever has most of the prompt cached: a popular prefix then draws all to one replica
    prefix-affinity    the same where enough of the prompt is cached, else the least loaded
    predicted-seconds  where the first token is expected soonest: what waits there, and what is not cached, priced

Ties go to the replica that joined first, so the same requests take the same way again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from paceline.contracts.mix import mix64
from paceline.contracts.ports import CostModel, StepShape
from paceline.errors import ConfigError
from paceline.router.ledger import Load

POLICIES = (
    "round-robin",
    "least-loaded",
    "power-of-two",
    "longest-prefix",
    "prefix-affinity",
    "predicted-seconds",
)


def _nothing_cached(_replica: int) -> int:
    return 0


class Ask(msgspec.Struct, frozen=True):
    """A request that looks for a replica."""

    request_id: int
    num_prompt: int  # tokens
    cached: Callable[[int], int] = _nothing_cached  # replica -> leading prompt tokens its cache holds


class Policy(Protocol):
    """`choose` may remember what it chose; it looks at nothing but its arguments."""

    looks_at_cache: bool  # asks `Ask.cached`

    def choose(self, ask: Ask, loads: Sequence[Load]) -> Load:
        """One of `loads`, of which there is at least one."""
        ...


class RoundRobin:
    looks_at_cache = False

    def __init__(self) -> None:
        self._turn = 0

    def choose(self, ask: Ask, loads: Sequence[Load]) -> Load:
        chosen = loads[self._turn % len(loads)]
        self._turn += 1
        return chosen


def _busy(load: Load) -> tuple[int, int]:
    return load.num_waiting + load.num_decoding, load.prefill_tokens


class LeastLoaded:
    looks_at_cache = False

    def choose(self, ask: Ask, loads: Sequence[Load]) -> Load:
        return min(loads, key=_busy)


class PowerOfTwo:
    """The two are functions of the seed and the request's id."""

    looks_at_cache = False

    def __init__(self, seed: int = 0) -> None:
        self._mixed = mix64(seed)

    def choose(self, ask: Ask, loads: Sequence[Load]) -> Load:
        num = len(loads)
        if num == 1:
            return loads[0]
        drawn = mix64(self._mixed ^ ask.request_id)
        first = drawn % num
        second = (first + 1 + (drawn >> 32) % (num - 1)) % num
        one, other = loads[first], loads[second]
        return other if _busy(other) < _busy(one) else one


class PrefixAffinity:
    """`min_share`: below this share of the prompt a hit does not count; 0: the longest hit wins always."""

    looks_at_cache = True

    def __init__(self, min_share: float = 0.3) -> None:
        if not 0.0 <= min_share <= 1.0:
            raise ConfigError("min_share is out of range", seen=min_share, expected="0 to 1")
        self._min_share = min_share

    def choose(self, ask: Ask, loads: Sequence[Load]) -> Load:
        best = max(loads, key=lambda load: (ask.cached(load.replica), *(-n for n in _busy(load))))
        enough = ask.cached(best.replica) >= self._min_share * ask.num_prompt
        return best if enough else min(loads, key=_busy)


class PredictedSeconds:
    """Expected time to the first token, from the loads and the prices of a step.

    Prompt tokens that wait there and those of this request that are not cached are computed in steps of at most
    `step_tokens`, shared out evenly, and each such step also carries a token for each row that decodes. Prompts that
    wait count as equally long. When all `max_rows` are taken, a row comes free about every
    `mean_output_tokens / max_rows` steps.
    """

    looks_at_cache = True

    def __init__(self, cost: CostModel, *, step_tokens: int, max_rows: int, mean_output_tokens: float = 128.0) -> None:
        if step_tokens < 1 or max_rows < 1:
            raise ConfigError("a size is out of range", seen=f"{step_tokens}, {max_rows}", expected="at least 1")
        self._cost = cost
        self._step_tokens = step_tokens
        self._max_rows = max_rows
        self._mean_output_tokens = mean_output_tokens

    def choose(self, ask: Ask, loads: Sequence[Load]) -> Load:
        return min(loads, key=lambda load: self.seconds(ask, load))

    def seconds(self, ask: Ask, load: Load) -> float:
        """To the first token of `ask` on that replica."""
        cached = min(ask.cached(load.replica), max(0, ask.num_prompt - 1))
        own = max(1, ask.num_prompt - cached)
        rows, context = min(load.num_decoding, self._max_rows), load.context_tokens
        ahead, waiting = load.prefill_tokens, load.num_waiting
        pairs = own * cached + _pairs(own) + (waiting * _pairs(ahead / waiting) if waiting else 0.0)
        num_steps = -(-(ahead + own) // self._step_tokens)
        prompts = -(-(waiting + 1) // num_steps)
        tokens = rows + -(-(ahead + own) // num_steps)
        ms = num_steps * self._cost.step_ms(
            StepShape(
                num_tokens=tokens,
                num_rows=rows + prompts,
                num_sampled=rows + prompts,
                context_tokens=context + cached // num_steps,
                attention_pairs=context + rows + round(pairs / num_steps),
            )
        )
        missing = load.num_open + 1 - self._max_rows
        if missing > 0:
            num_waited = round(missing * self._mean_output_tokens / self._max_rows)
            ms += num_waited * self._decode_ms(rows, context)
        return ms / 1e3

    def _decode_ms(self, rows: int, context: int) -> float:
        rows = max(1, rows)
        return self._cost.step_ms(
            StepShape(
                num_tokens=rows,
                num_rows=rows,
                num_sampled=rows,
                context_tokens=context,
                attention_pairs=context + rows,
            )
        )


def _pairs(num_tokens: float) -> float:
    """Query-key pairs of a prompt of so many tokens."""
    return num_tokens * (num_tokens + 1) / 2


def make_policy(
    name: str,
    cost: CostModel,
    *,
    step_tokens: int,
    max_rows: int,
    mean_output_tokens: float = 128.0,
    seed: int = 0,
) -> Policy:
    """The policy of that name. Raises ConfigError for an unknown one."""
    if name == "round-robin":
        return RoundRobin()
    if name == "least-loaded":
        return LeastLoaded()
    if name == "power-of-two":
        return PowerOfTwo(seed)
    if name == "longest-prefix":
        return PrefixAffinity(0.0)
    if name == "prefix-affinity":
        return PrefixAffinity()
    if name == "predicted-seconds":
        return PredictedSeconds(cost, step_tokens=step_tokens, max_rows=max_rows, mean_output_tokens=mean_output_tokens)
    raise ConfigError("no router policy has this name", seen=name, expected=", ".join(POLICIES))
