from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.fakes.plans import make_admit

from paceline.contracts.request import SamplingParams
from paceline.contracts.step import SampleInputs
from paceline.runtime.logit_rules import RowRules, TokenCounts, masked_draws, masks_by_row

CPU = torch.device("cpu")


def rules_of(prompt: list[int], output: list[int], stops: tuple[int, ...] = (), **sampling: Any) -> RowRules:
    admit = make_admit(
        0, prompt + output, num_prompt=len(prompt), sampling=SamplingParams(seed=0, **sampling), stop_token_ids=stops
    )
    rules = RowRules.of(admit, CPU)
    assert rules is not None
    return rules


def test_a_row_without_rules_has_none() -> None:
    plain = SamplingParams(seed=0, temperature=0.7, top_p=0.5, logprobs=3)
    assert RowRules.of(make_admit(0, [1, 2], sampling=plain, stop_token_ids=(2,)), CPU) is None


def test_repetition_counts_prompt_and_output_and_depends_on_the_sign() -> None:
    logits = torch.tensor([2.0, -2.0, 3.0, 0.0, 5.0])
    rules_of([0, 1], [2], repetition_penalty=2.0).apply(logits, 1, [], None)
    assert logits.tolist() == [1.0, -4.0, 1.5, 0.0, 5.0]


def test_presence_and_frequency_count_the_output_alone() -> None:
    logits = torch.zeros(5)
    rules_of([0, 1], [2, 2, 3], presence_penalty=0.5, frequency_penalty=0.25).apply(logits, 3, [], None)
    assert logits.tolist() == [0.0, 0.0, -1.0, -0.75, 0.0]


def test_order_is_bias_then_penalties() -> None:
    logits = torch.tensor([-2.0, 0.0])
    rules_of([0], [], repetition_penalty=2.0, logit_bias={0: 3.0}).apply(logits, 0, [], None)
    assert logits.tolist() == [0.5, 0.0]  # (-2 + 3) / 2, not -2 * 2 + 3


def test_min_tokens_forbids_stops_until_enough_came() -> None:
    rules = rules_of([5], [], stops=(1, 3), min_tokens=2)
    for position, allowed in ((0, False), (1, False), (2, True)):
        logits = torch.zeros(4)
        rules.apply(logits, position, [], None)
        assert torch.isfinite(logits).tolist() == [True, allowed, True, allowed]


def test_draft_tokens_count_for_their_position_and_are_forgotten_again() -> None:
    rules = rules_of([9], [4], repetition_penalty=1.5, frequency_penalty=0.5, presence_penalty=0.25)
    drafts = [4, 7, 7]
    for size in (3, 0, 2, 1):
        logits = torch.arange(10, dtype=torch.float32)
        rules.apply(logits, 1 + size, drafts[:size], None)
        fresh = torch.arange(10, dtype=torch.float32)
        again = rules_of([9], [4, *drafts[:size]], repetition_penalty=1.5, frequency_penalty=0.5, presence_penalty=0.25)
        again.apply(fresh, 1 + size, [], None)
        assert torch.equal(logits, fresh)


def test_counts_equal_a_recount_after_any_pushes_and_undos() -> None:
    rng = np.random.default_rng(0)
    prompt = rng.integers(0, 50, 20).astype(np.int32)
    counts, output = TokenCounts(prompt, []), []
    for _ in range(300):
        drafts = rng.integers(0, 400, rng.integers(0, 5)).tolist()
        size = len(counts)
        for token in drafts:
            counts.push(token)
        counts.truncate(drafts, size)
        token = int(rng.integers(0, 400))
        counts.push(token)
        output.append(token)
    expected = {int(t): 0 for t in prompt}
    for token in output:
        expected[token] = expected.get(token, 0) + 1
    n = len(counts)
    assert dict(zip(counts.ids[:n].tolist(), counts.counts[:n].tolist(), strict=True)) == expected


def words_of(*allowed: int, vocab_size: int = 40) -> np.ndarray:
    words = np.zeros(-(-vocab_size // 32), dtype=np.uint32)
    for token in allowed:
        words[token // 32] |= np.uint32(1 << token % 32)
    return words


def test_masks_go_to_their_rows_in_draft_order() -> None:
    words = np.stack([words_of(0, 2), words_of(35), words_of(31)])
    first = masks_by_row(SampleInputs(mask_row=np.asarray([4, 4, 2], np.int32), masks=words))
    assert first == {4: 0, 2: 2}  # row 4 draws twice
    assert masks_by_row(None) == {}


@pytest.mark.parametrize(
    ("mask_row", "draws"),
    [([3, 3, 1], [1, 2, 4]), ([1, 3, 3], [4, 1, 2]), ([7], [0]), ([1, 7, 3, 3], [4, 0, 1, 2])],
)
def test_a_mask_is_for_the_draw_of_its_row(mask_row: list[int], draws: list[int]) -> None:
    draw_row = np.asarray([7, 3, 3, 0, 1], dtype=np.int32)
    assert masked_draws(np.asarray(mask_row, dtype=np.int32), draw_row).tolist() == draws


@pytest.mark.parametrize("with_penalty", [False, True])
def test_a_mask_survives_bias_and_penalties(with_penalty: bool) -> None:
    fields: dict[str, Any] = {"repetition_penalty": 3.0, "presence_penalty": -2.0} if with_penalty else {}
    rules = rules_of([1], [1], logit_bias={1: 100.0}, **fields)
    logits = torch.zeros(3)
    rules.apply(logits, 1, [1], words_of(0, 2))
    assert logits[1] == -torch.inf
    assert torch.isfinite(logits[[0, 2]]).all()


@pytest.mark.parametrize(
    ("allowed", "stop_stays"),
    [
        ((3, 33), True),  # nothing but ids that stop: the text is complete, however short
        ((3, 33, 39), False),
        ((3, 33, 40), True),  # beyond the vocabulary there is nothing
        ((3, 5), False),
    ],
)
def test_min_tokens_gives_way_to_a_grammar_that_allows_only_an_end(allowed: tuple[int, ...], stop_stays: bool) -> None:
    rules = rules_of([9], [], stops=(3, 33), min_tokens=2)
    logits = torch.zeros(40)
    rules.apply(logits, 0, [], words_of(*allowed, vocab_size=64))
    assert bool(torch.isfinite(logits[3])) is stop_stays
    assert torch.isfinite(logits).nonzero()[:, 0].tolist() == [
        token for token in sorted(allowed) if token < 40 and (stop_stays or token not in (3, 33))
    ]
