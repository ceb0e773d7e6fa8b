from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.fakes.sampling_reference import reference_kept, reference_token

from paceline.contracts.request import SamplingParams
from paceline.runtime import noise, sampler
from paceline.runtime.sampler import Draws, best, draw


def make_draws(params: list[SamplingParams], positions: list[int], choices: list[int] | None = None) -> Draws:
    greedy = np.asarray([p.greedy or p.top_k == 1 for p in params])
    choices = choices or [0] * len(params)
    keys = [noise.choice_key(p.seed or 0, c) for p, c in zip(params, choices, strict=True)]
    multiplier, offset = noise.position_keys(np.asarray(keys, dtype=np.uint64), np.asarray(positions))
    return Draws(
        greedy=greedy,
        temperature=np.asarray([1.0 if g else p.temperature for p, g in zip(params, greedy, strict=True)], np.float32),
        top_k=np.asarray([max(0, p.top_k) for p in params], np.int64),
        top_p=np.asarray([p.top_p for p in params]),
        min_p=np.asarray([p.min_p for p in params]),
        typical_p=np.asarray([p.typical_p for p in params]),
        multiplier=multiplier,
        offset=offset,
    )


def tokens_of(logits: torch.Tensor, params: list[SamplingParams], positions: list[int]) -> list[int]:
    return draw(logits.clone(), make_draws(params, positions))[0].tolist()


def params_of(**fields: Any) -> SamplingParams:
    return SamplingParams(**{"seed": 0, **fields})


MIXES: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {},
    {"temperature": 0.3},
    {"temperature": 2.0},
    {"top_k": 1},
    {"top_k": 5},
    {"top_k": 40, "top_p": 0.9},
    {"top_k": 300, "top_p": 0.97},
    {"top_k": 100_000},
    {"top_p": 0.05},
    {"top_p": 0.9},
    {"top_p": 0.999},
    {"min_p": 0.02},
    {"min_p": 0.5, "top_p": 0.95},
    {"typical_p": 0.3},
    {"typical_p": 0.9, "top_k": 50},
    {"typical_p": 0.95, "top_p": 0.9, "min_p": 0.001, "temperature": 0.8},
]


@pytest.mark.parametrize("vocab_size", [3, 100, 128, 1000, 5003])
@pytest.mark.parametrize("scale", [0.5, 3.0])
def test_draws_follow_the_written_rules(vocab_size: int, scale: float) -> None:
    rng = np.random.default_rng(vocab_size)
    logits = (rng.standard_normal((len(MIXES) * 4, vocab_size)) * scale).astype(np.float32)
    params = [params_of(**mix, seed=seed) for seed in range(4) for mix in MIXES]
    positions = rng.integers(0, 1000, len(params)).tolist()
    got = tokens_of(torch.from_numpy(logits), params, positions)
    expected = [reference_token(x, p, 0, at) for x, p, at in zip(logits, params, positions, strict=True)]
    assert got == expected


def test_a_row_is_drawn_alike_alone_and_in_any_company() -> None:
    torch.manual_seed(1)
    logits = torch.randn(3 * len(MIXES), 2500) * 2
    params = [params_of(**mix, seed=seed) for seed in range(3) for mix in MIXES]
    positions = list(range(len(params)))
    together = tokens_of(logits, params, positions)
    order = torch.randperm(len(params)).tolist()
    shuffled = tokens_of(logits[order], [params[i] for i in order], [positions[i] for i in order])
    alone = [tokens_of(logits[i : i + 1], [params[i]], [positions[i]])[0] for i in range(len(params))]
    assert [together[i] for i in order] == shuffled
    assert together == alone


@pytest.mark.parametrize("way", ["narrow", "dense"])
def test_the_fast_ways_agree_with_the_wide_one(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(2)
    logits = torch.randn(200, 3000) * 2.5
    fields = {"top_p": 0.8, "temperature": 0.7} if way == "narrow" else {"top_p": 0.95}
    params = [params_of(**fields, seed=i) for i in range(200)]
    settled: list[int] = []
    original = getattr(sampler._Ways, way)

    def count(self: Any, token: torch.Tensor, which: np.ndarray) -> None:
        before = int((token < 0).sum())
        original(self, token, which)
        settled.append(before - int((token < 0).sum()))

    monkeypatch.setattr(sampler._Ways, way, count)
    fast = tokens_of(logits, params, list(range(200)))
    assert sum(settled) > 50, "the way under test decided next to nothing"
    for name in ("narrow", "dense"):
        monkeypatch.setattr(sampler._Ways, name, lambda *_: None)
    assert tokens_of(logits, params, list(range(200))) == fast


@pytest.mark.parametrize("fields", [{"top_p": 0.9}, {"top_k": 5}, {"typical_p": 0.5}, {}])
def test_a_temperature_that_is_zero_in_float32_or_nearly_so_is_greedy(fields: dict[str, Any]) -> None:
    torch.manual_seed(5)
    logits = torch.randn(4, 3000)
    params = [params_of(temperature=t, **fields) for t in (1e-50, 7e-46, 9e-6, 1e-5)]
    assert tokens_of(logits, params, [0] * 4) == logits.argmax(1).tolist()


def test_largest_logit_wins_and_ties_go_to_the_lowest_id() -> None:
    logits = torch.randn(4, 1000).clamp(max=5.0)
    logits[0, [17, 400, 999]] = 7.0
    logits[1, [128, 127]] = 7.0
    logits[2, 999] = 7.0
    logits[3, :] = 1.0
    assert best(logits)[1].tolist() == [17, 127, 999, 0]
    greedy = [params_of(temperature=0.0), params_of(top_k=1), params_of(temperature=0.0), params_of(temperature=0.0)]
    assert tokens_of(logits, greedy, [0] * 4) == [17, 127, 999, 0]


def test_best_equals_arg_max_for_any_width() -> None:
    for vocab_size in (1, 2, 127, 128, 129, 1000, 4096):
        logits = torch.randn(5, vocab_size)
        assert torch.equal(best(logits)[1], logits.argmax(dim=1))
        assert torch.equal(best(logits)[0], logits.amax(dim=1))


def test_equal_logits_are_kept_or_dropped_together() -> None:
    logits = np.full(600, -4.0, dtype=np.float32)
    logits[[10, 200, 300, 599]] = 2.0
    seen = {tokens_of(torch.from_numpy(logits)[None], [params_of(top_k=2, seed=s)], [0])[0] for s in range(200)}
    assert seen == {10, 200, 300, 599}


def test_ties_wider_than_the_narrow_way_are_seen() -> None:
    logits = torch.zeros(1, 1000)
    seen = {tokens_of(logits, [params_of(top_k=3, seed=s)], [0])[0] for s in range(60)}
    assert max(seen) > 500, "all thousand ids are equal, so all are kept"


def test_forbidden_ids_are_never_drawn() -> None:
    torch.manual_seed(3)
    logits = torch.full((1, 900), -torch.inf)
    allowed = [3, 130, 899]
    logits[0, allowed] = torch.tensor([-50.0, 4.0, 4.5])
    for mix in MIXES:
        drawn = {tokens_of(logits, [params_of(**mix, seed=s)], [s])[0] for s in range(30)}
        assert drawn <= set(allowed), mix


def test_tiny_temperature_is_greedy_without_overflow() -> None:
    torch.manual_seed(4)
    logits = torch.randn(6, 500) * 30
    got = tokens_of(logits, [params_of(temperature=1e-30, seed=s) for s in range(6)], [0] * 6)
    assert got == logits.argmax(dim=1).tolist()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_broken_row_leaves_its_neighbours_alone(bad: float) -> None:
    torch.manual_seed(5)
    logits = torch.randn(len(MIXES), 700)
    params = [params_of(**mix) for mix in MIXES]
    clean = tokens_of(logits, params, [0] * len(MIXES))
    for row in range(0, len(MIXES), 3):
        broken = logits.clone()
        broken[row, 333] = bad
        token, largest = draw(broken, make_draws(params, [0] * len(MIXES)))
        assert not torch.isfinite(largest[row])
        assert [t for i, t in enumerate(token.tolist()) if i != row] == [t for i, t in enumerate(clean) if i != row]


def chi_square(counts: np.ndarray, p: np.ndarray) -> float:
    expected = p * counts.sum()
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("over", ["positions", "seeds"])
@pytest.mark.parametrize(
    "mix", [{}, {"temperature": 0.6}, {"top_k": 6}, {"top_p": 0.8}, {"min_p": 0.1}, {"typical_p": 0.8}]
)
def test_draws_are_distributed_like_the_filtered_softmax(over: str, mix: dict[str, Any]) -> None:
    num_draws = 1500 if "typical_p" in mix else 20_000  # typical_p goes one row at a time
    logits = np.random.default_rng(7).standard_normal(12).astype(np.float32) * 1.5
    params = params_of(**mix, seed=11)
    rows = torch.from_numpy(logits).expand(num_draws, -1).clone()
    if over == "positions":
        draws = make_draws([params] * num_draws, list(range(num_draws)))
    else:
        draws = make_draws([params_of(**mix, seed=s) for s in range(num_draws)], [3] * num_draws)
    counts = np.bincount(draw(rows, draws)[0].numpy(), minlength=12)
    z, keep = reference_kept(logits, params)
    p = np.where(keep, np.exp(z), 0.0)
    p /= p.sum()
    assert counts[~keep].sum() == 0
    assert chi_square(counts[keep], p[keep]) < 45  # at most 11 degrees of freedom: p < 1e-5


def test_consecutive_positions_choices_and_seeds_are_drawn_independently() -> None:
    num_draws, vocab = 16_000, 5
    logits = torch.zeros(num_draws, vocab)
    by_position = make_draws([params_of(seed=5)] * num_draws, list(range(num_draws)))
    other_choice = make_draws([params_of(seed=5)] * num_draws, list(range(num_draws)), [1] * num_draws)
    other_seed = make_draws([params_of(seed=6)] * num_draws, list(range(num_draws)))
    first, second, third = (draw(logits.clone(), d)[0].numpy() for d in (by_position, other_choice, other_seed))
    flat = np.full(vocab * vocab, 1 / vocab**2)
    for a, b in ((first[:-1], first[1:]), (first, second), (first, third)):
        counts = np.bincount(a * vocab + b, minlength=vocab * vocab)
        assert chi_square(counts, flat) < 65  # 24 degrees of freedom: p < 1e-5


def test_a_dense_draw_over_a_large_vocabulary_follows_the_softmax() -> None:
    """Groups of ids far apart in value: the far ones together must still get their share."""
    vocab, num_draws = 20_000, 1000
    logits = torch.full((vocab,), -6.0)
    logits[:10] = 2.0
    p_far = float((torch.softmax(logits.double(), 0))[10:].sum())
    assert 0.3 < p_far < 0.7
    drawn = draw(
        logits.expand(num_draws, -1).clone(), make_draws([params_of(seed=1)] * num_draws, list(range(num_draws)))
    )
    far = int((drawn[0] >= 10).sum())
    assert abs(far - p_far * num_draws) < 5 * np.sqrt(num_draws * p_far * (1 - p_far))
