"""The state machine of a request and the arithmetic that every plan follows."""

from __future__ import annotations

import numpy as np
import pytest
from tests.pure.engine.driver import request

from paceline.engine.request_state import NO_ROW, TRANSITIONS, Phase, RequestState
from paceline.engine.stop import StopRules


def make_state(prompt: int = 5, **fields: object) -> RequestState:
    rules = StopRules(stop_ids=frozenset(), min_tokens=0, limit=100)
    return RequestState(request(1, prompt, **fields), rules=rules, limit=100, priority=0, tenant="", now=2.0)


@pytest.mark.parametrize("before", list(Phase))
@pytest.mark.parametrize("after", list(Phase))
def test_only_the_listed_transitions_are_possible(before: Phase, after: Phase) -> None:
    state = make_state()
    state.phase = before
    if after in TRANSITIONS[before]:
        state.move_to(after)
        assert state.phase is after
    else:
        with pytest.raises(AssertionError):
            state.move_to(after)


def test_terminal_phases_absorb() -> None:
    assert all(TRANSITIONS[phase] == () for phase in Phase if phase.is_terminal)
    assert [phase for phase in Phase if not phase.is_terminal] == [Phase.WAITING, Phase.RUNNING]


def test_the_ids_are_prompt_and_output_and_follow_as_it_grows() -> None:
    state = make_state(5, prior_output=(1, 2))
    for token in range(200):
        expected = [*state.request.prompt.ids.tolist(), *state.output]
        assert state.ids().tolist() == expected
        assert state.ids().dtype == np.int32
        state.output.append(token)
        state.known += 1


def test_losing_the_residency_keeps_the_history_and_raises_the_epoch() -> None:
    state = make_state()
    state.move_to(Phase.RUNNING)
    state.row, state.computed, state.planned, state.pending = 3, 4, 6, 1
    state.drafts = [1]
    wasted = state.drop_residency()
    assert wasted == 2  # positions in flight
    assert (state.row, state.computed, state.planned, state.pending, state.drafts) == (NO_ROW, 0, 0, 0, ())
    assert (state.epoch, state.frontier, state.known, state.todo) == (1, 4, 5, 5)


def test_a_position_in_flight_for_the_second_time_is_not_wasted_twice() -> None:
    state = make_state()
    state.computed, state.planned = 4, 4
    state.drop_residency()
    state.computed, state.planned = 0, 3  # computed again up to 3, counted as waste when it was planned
    assert state.drop_residency() == 0
    state.computed, state.planned = 0, 5
    assert state.drop_residency() == 1


def test_without_an_arrival_of_its_own_it_arrived_when_it_was_taken_in() -> None:
    assert make_state().arrival == 2.0
    early = make_state(arrival=1.5)
    assert (early.arrival, early.timeline.planned, early.timeline.arrival) == (1.5, 1.5, 2.0)
