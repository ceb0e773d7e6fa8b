"""What the prefix-timing probe measured, and what it says. Pure.

Three arms, in random order within each round; every measured prompt is new:

    control  tenant B asks what nobody asked before
    test     tenant A asks something, then B asks the same
    own      A asks something, then A asks the same: what a hit looks like

If B's times in `test` are shorter than in `control`, B can tell what A asked. The test is Mann-Whitney's, one-sided.
Hodges-Lehmann on the differences within rounds gives the advantage in seconds, and the advantage of a true hit beside
it. A probe that cannot see its own hits sees nothing, and says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec

from paceline.contracts.artefact import Answer, Estimate, GateResult
from paceline.lab.gates.limits import shown
from paceline.lab.stats.paired import hodges_lehmann

ARMS = ("control", "test", "own")
_ALARM = 0.01  # one-sided p of a leak: a false alarm in a hundred probes
_QUIET = 0.05
_SHARE = 0.25  # of a true hit's advantage: less than this is not an advantage one can use in few tries
MIN_ROUNDS = 12


class ProbeResult(msgspec.Struct, kw_only=True):
    """Seconds by arm, one for each round."""

    control_s: list[float] = []
    test_s: list[float] = []
    own_s: list[float] = []
    cached_tokens: dict[str, int] = {}  # by arm, summed over rounds: as usage tells; absent where it does not
    prompt_tokens: int = 0  # of one prompt
    num_failed: int = 0  # rounds left out, for a call failed
    model: str = ""

    @property
    def num_rounds(self) -> int:
        return len(self.control_s)

    def gate_result(self) -> GateResult:
        """Pass, fail or inconclusive, for the safety gate."""
        n = self.num_rounds
        if n < MIN_ROUNDS:
            return _result(Answer.INCONCLUSIVE, f"{n} rounds were measured, {MIN_ROUNDS} are needed")
        p = faster_p(self.test_s, self.control_s)
        own_p = faster_p(self.own_s, self.control_s)
        advantage = _advantage(self.control_s, self.test_s)
        hit = _advantage(self.control_s, self.own_s)
        evidence: dict[str, Any] = {
            "p": p,
            "p_own": own_p,
            "hit_advantage_s": hit.value,
            "rounds": n,
            "failed": self.num_failed,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": dict(self.cached_tokens),
            "visible_order_share": visible_order_share(n, n),
        }
        leaked = self.cached_tokens.get("test", 0) - self.cached_tokens.get("control", 0)
        if leaked > 0:
            words = f"usage says that {leaked} tokens of another tenant's prompts came from the cache"
            return _result(Answer.FAIL, words, advantage, evidence)
        numbers = (
            f"{shown(advantage, scale=1e3, unit='ms')} faster after another tenant asked the same, "
            f"{shown(hit, scale=1e3, unit='ms')} after the own tenant did "
            f"(Mann-Whitney p {p:.3f}, {n} rounds)"
        )
        if p < _ALARM and (advantage.value or 0) > 0:
            return _result(Answer.FAIL, f"a tenant can time what another asked: {numbers}", advantage, evidence)
        if own_p >= _ALARM or (hit.value or 0) <= 0:
            words = f"not even a tenant's own repeat is faster, so the probe sees nothing here: {numbers}"
            return _result(Answer.INCONCLUSIVE, words, advantage, evidence)
        small = advantage.hi is not None and hit.value is not None and advantage.hi <= _SHARE * hit.value
        if p >= _QUIET and small:
            words = f"nothing to time: {numbers}; an advantage above a quarter of a hit's is excluded"
            return _result(Answer.PASS, words, advantage, evidence)
        return _result(Answer.INCONCLUSIVE, f"more rounds would decide: {numbers}", advantage, evidence)


def faster_p(a: Sequence[float], b: Sequence[float]) -> float:
    """One-sided p of Mann-Whitney's test for "a is shorter than b"."""
    from scipy.stats import mannwhitneyu

    return float(mannwhitneyu(a, b, alternative="less").pvalue)


def visible_order_share(n: int, m: int, *, power_z: float = 0.8416, alarm_z: float = 2.3263) -> float:
    """P(a control time exceeds a test time) that the test finds with 80 % power at its alarm level; 0.5 is no leak.

    Normal approximation of U under no difference: its deviation is sqrt((n + m + 1) / (12 n m)) of the share.
    """
    return 0.5 + (power_z + alarm_z) * math.sqrt((n + m + 1) / (12 * n * m))


def _advantage(slow: Sequence[float], fast: Sequence[float]) -> Estimate:
    found = hodges_lehmann([a - b for a, b in zip(slow, fast, strict=True)])
    value, lo, hi = (None if math.isnan(each) else each for each in found)
    return Estimate(value=value, lo=lo, hi=hi, n=len(slow), method="Hodges-Lehmann 95 %, within rounds", unit="s")


def _result(
    answer: Answer, sentence: str, estimate: Estimate | None = None, evidence: dict[str, Any] | None = None
) -> GateResult:
    return GateResult(
        gate="safety",
        answer=answer,
        subject="prefix timing across tenants",
        sentence=sentence,
        estimate=estimate,
        evidence=evidence or {},
    )
