from __future__ import annotations

import pytest

from paceline.errors import EngineError
from paceline.router import Ledger


def numbers(ledger: Ledger, replica: int) -> tuple[int, int, int, int]:
    load = ledger.load(replica)
    return load.num_waiting, load.num_decoding, load.prefill_tokens, load.context_tokens


def made() -> Ledger:
    ledger = Ledger()
    for replica in (0, 1):
        ledger.join(replica)
    return ledger


def test_a_request_moves_from_waiting_to_decoding_to_gone() -> None:
    ledger = made()
    ledger.sent(1, 7, num_prompt=100, num_cached=60)
    assert numbers(ledger, 1) == (1, 0, 40, 0)
    ledger.first_token(7)
    ledger.first_token(7)  # told twice: once counts
    assert numbers(ledger, 1) == (0, 1, 0, 100)
    ledger.ended(7)
    ledger.ended(7)
    assert numbers(ledger, 1) == (0, 0, 0, 0)
    assert numbers(ledger, 0) == (0, 0, 0, 0)


def test_one_that_never_had_a_token_gives_back_what_it_waited_for() -> None:
    ledger = made()
    ledger.sent(0, 1, 30)
    ledger.sent(0, 2, 20)
    ledger.ended(1)
    assert numbers(ledger, 0) == (1, 0, 20, 0)


def test_a_replica_that_leaves_takes_its_requests_along() -> None:
    ledger = made()
    ledger.sent(0, 1, 30)
    ledger.sent(1, 2, 30)
    ledger.leave(0)
    assert [load.replica for load in ledger.loads] == [1]
    ledger.ended(1)  # nobody knows it any more
    ledger.join(0)
    assert numbers(ledger, 0) == (0, 0, 0, 0)
    assert numbers(ledger, 1) == (1, 0, 30, 0)


def test_an_id_is_open_once() -> None:
    ledger = made()
    ledger.sent(0, 1, 30)
    with pytest.raises(EngineError, match="sent already"):
        ledger.sent(1, 1, 30)
