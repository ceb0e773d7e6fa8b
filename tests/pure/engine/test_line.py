"""A tenant's line: least slack first, the late behind, and nobody for ever."""

from __future__ import annotations

from math import inf

from hypothesis import given
from hypothesis import strategies as st
from tests.pure.engine.driver import request

from paceline.engine.line import TURN, Line
from paceline.engine.request_state import RequestState
from paceline.engine.stop import StopRules

RULES = StopRules(stop_ids=frozenset(), min_tokens=0, limit=100)


def state(request_id: int, start_by: float = inf, arrival: float = 1.0) -> RequestState:
    made = RequestState(
        request(request_id, 3, arrival=arrival), rules=RULES, limit=100, priority=0, tenant="", now=arrival
    )
    made.due, made.start_by, made.by_slack, made.queued = start_by, start_by, True, True
    return made


def line_of(*states: RequestState) -> tuple[Line, list[RequestState]]:
    late: list[RequestState] = []
    line = Line(late)
    for serial, each in enumerate(states):
        line.push(each, serial)
    return line, late


def take(line: Line, now: float) -> int:
    head = line.peek(now)
    assert head is not None
    line.pop(now)
    head.queued = False
    return head.request_id


def test_least_slack_goes_first_whatever_the_arrival_and_those_without_a_target_last() -> None:
    line, late = line_of(state(1, inf, 0.1), state(2, 9.0, 0.2), state(3, 5.0, 0.3), state(4, inf, 0.05))
    assert [take(line, 1.0) for _ in range(4)] == [3, 2, 4, 1]
    assert not late


def test_who_cannot_make_it_any_more_gives_way_to_those_who_can_and_is_told() -> None:
    lost, savable = state(1, 2.0), state(2, 3.0)
    line, late = line_of(lost, savable)
    assert line.peek(1.9) is lost
    assert [take(line, 2.5) for _ in range(2)] == [2, 1]
    assert late == [lost]


def test_one_turn_in_so_many_is_the_oldests_behind() -> None:
    old = state(0, inf, 0.0)
    line, _ = line_of(old, *(state(i, 100.0 + i) for i in range(1, 60)))
    order = [take(line, 1.0) for _ in range(TURN + 1)]
    assert order == [*range(1, TURN + 1), 0]


def test_a_preempted_request_is_not_late_and_goes_first() -> None:
    resumed = state(1, -inf)
    resumed.preemptions = 1
    line, late = line_of(state(2, 4.0), resumed)
    assert [take(line, 3.0), take(line, 3.0)] == [1, 2]
    assert not late


@given(st.lists(st.tuples(st.sampled_from([inf, 0.5, 1.0, 2.0, 4.0]), st.booleans()), max_size=40))
def test_everybody_leaves_once_and_marks_do_not_stay(drawn: list[tuple[float, bool]]) -> None:
    states = [state(i, start_by, float(i)) for i, (start_by, _) in enumerate(drawn)]
    line, _ = line_of(*states)
    gone = [each for each, (_, leaves) in zip(states, drawn, strict=True) if leaves]
    for each in gone:
        each.queued = False
        line.note_dead()
    left = {each.request_id for each in states} - {each.request_id for each in gone}
    assert {each.request_id for each in line.live()} == left
    now, found = 0.0, []
    while line.peek(now) is not None:
        found.append(take(line, now))
        now += 0.3
    assert sorted(found) == sorted(left)
    assert len(line) == 0
