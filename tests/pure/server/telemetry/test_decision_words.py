"""Every decision can be told in plain words."""

import pytest

from paceline.contracts.decision import Decision, Kind, Reason
from paceline.server.telemetry.decision_words import in_words


@pytest.mark.parametrize("reason", list(Reason))
def test_every_reason_has_words(reason):
    words = in_words(Decision(time=0.0, step=0, request_id=1, kind=Kind.WAIT, reason=reason, other=2))
    assert words
    assert "{" not in words
    assert words[0].islower()


def test_words_for_a_request_behind_others_and_for_one_that_gives_way_to_itself():
    behind = Decision(
        time=0.0, step=0, request_id=9, kind=Kind.WAIT, reason=Reason.NO_ROWS, numbers={"behind": 3.0}, other=6
    )
    assert in_words(behind) == "waits behind request 6 and 3 in all"
    itself = Decision(time=0.0, step=0, request_id=9, kind=Kind.PREEMPT, reason=Reason.BLOCKS_FOR_DECODE, other=9)
    assert in_words(itself) == "gives way: no KV block is left for its next token"
