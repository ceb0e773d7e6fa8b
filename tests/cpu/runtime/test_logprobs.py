from __future__ import annotations

import pytest
import torch

from paceline.runtime.logprobs import report


def test_report_matches_log_softmax() -> None:
    torch.manual_seed(0)
    logits = torch.randn(3, 50)
    expected = torch.log_softmax(logits.double(), dim=1)
    entries = report(logits, [4, 49, 0], [5, 0, 2], [(), (7, 7, 1), (0,)])
    for row, (entry, num_top) in enumerate(zip(entries, (5, 0, 2), strict=True)):
        token = (4, 49, 0)[row]
        assert entry.token_id == token
        assert entry.logprob == pytest.approx(float(expected[row, token]), abs=1e-5)
        order = expected[row].argsort(descending=True)
        assert entry.rank == order.tolist().index(token) + 1
        assert [t for t, _ in entry.top] == order[:num_top].tolist()
        assert [p for _, p in entry.top] == pytest.approx(expected[row, order[:num_top]].tolist(), abs=1e-5)
    assert [t for t, _ in entries[1].extra] == [7, 7, 1]
    assert [p for _, p in entries[1].extra] == pytest.approx(expected[1, [7, 7, 1]].tolist(), abs=1e-5)


def test_equal_logits_share_a_rank_and_are_listed_by_id() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0, 0.0]])
    entry = report(logits, [2], [2], [()])[0]
    assert entry.rank == 1
    assert [t for t, _ in entry.top] == [1, 2]


def test_a_row_is_reported_alike_in_any_company() -> None:
    torch.manual_seed(1)
    logits = torch.randn(9, 5000)
    tokens = list(range(9))
    together = report(logits, tokens, [3] * 9, [(1, 2)] * 9)
    alone = [report(logits[i : i + 1], [i], [3], [(1, 2)])[0] for i in range(9)]
    assert together == alone


def test_nothing_asked_gives_nothing() -> None:
    assert report(torch.empty(0, 10), [], [], []) == []
