"""Stop strings over bytes: found in any split, first come, nothing ever taken back; and the order of all rules."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.contracts.request import FinishReason, TokenLogprob
from paceline.engine.stop import StopAutomata, StopAutomaton, StopMatcher, StopRules

TOKENS = [b"a", b"b", b"c", b"ab", b"abc", b"bca", b"", b"aa", b"xyz"]


def matcher(*patterns: bytes, include_stop: bool = False) -> StopMatcher:
    return StopMatcher(StopAutomaton(patterns), TOKENS, include_stop=include_stop)


def ids(*words: bytes) -> list[int]:
    return [TOKENS.index(w) for w in words]


def test_the_automaton_finds_the_first_match_and_of_those_the_longest() -> None:
    automaton = StopAutomaton([b"she", b"he", b"hers"])
    node, read, index = automaton.run(0, b"ushers")
    assert (read, automaton.patterns[index]) == (4, b"she")
    assert automaton.run(0, b"xxhxe")[2] == -1
    node, read, index = automaton.run(0, b"us")
    assert (read, index, automaton.depth[node]) == (2, -1, 1)
    assert automaton.patterns[automaton.run(node, b"he")[2]] == b"she"


def test_a_failed_match_falls_back_to_the_longest_suffix_that_may_still_match() -> None:
    automaton = StopAutomaton([b"aab"])
    node, _, index = automaton.run(0, b"aaa")
    assert index == -1
    assert automaton.depth[node] == 2
    assert automaton.run(node, b"b")[2] == 0


def test_automata_are_shared_and_bounded_in_number_and_size() -> None:
    automata = StopAutomata(max_count=3, max_bytes=10)
    first = automata.of((b"a", b"b"))
    assert automata.of((b"a", b"b")) is first
    for patterns in ((b"c",), (b"d",)):
        automata.of(patterns)
        assert automata.of((b"a", b"b")) is first
    automata.of((b"e",))
    assert len(automata) == 3
    assert automata.of((b"a", b"b")) is first  # the one asked for longest ago had to go
    big = automata.of((b"x" * 50,))
    assert len(automata) == 1
    assert automata.of((b"x" * 50,)) is big
    assert automata.of((b"a", b"b")) is not first
    assert len(automata) == 1


@pytest.mark.parametrize("special", [b"]", b"^", b"\\", b"-", b"\x00", b"\xff"])
def test_any_byte_may_begin_a_pattern(special: bytes) -> None:
    automaton = StopAutomaton([special + b"z", b"q"])
    assert automaton.run(0, b"aaa" + special + b"z")[1:] == (5, 0)


def test_a_token_that_may_belong_to_a_stop_waits_until_that_is_decided() -> None:
    match = matcher(b"abca")
    seen = []
    for token in ids(b"xyz", b"ab", b"c", b"b"):
        assert not match.push(token, None, may_stop=True)
        seen.append(match.take())
    x, ab, c, b = ids(b"xyz", b"ab", b"c", b"b")
    assert seen == [([x], [], 0), ([], [], 0), ([], [], 0), ([ab, c, b], [], 0)]


def test_tokens_within_the_stop_are_dropped_with_their_logprobs() -> None:
    match = matcher(b"abc")
    logprobs = [TokenLogprob(t, -1.0, 1) for t in range(len(TOKENS))]
    for token in ids(b"xyz", b"a", b"b"):
        assert not match.push(token, logprobs[token], may_stop=True)
    assert match.push(ids(b"c")[0], logprobs[2], may_stop=True)
    kept, kept_logprobs, hold = match.take(everything=True)
    assert (kept, kept_logprobs, hold) == (ids(b"xyz"), [logprobs[8]], 0)
    assert (match.found, match.cut_bytes, match.num_dropped) == (b"abc", 0, 3)


def test_a_token_that_straddles_the_stops_beginning_is_kept_and_its_rest_cut() -> None:
    match = matcher(b"ca")
    (bca,) = ids(b"bca")
    assert match.push(bca, None, may_stop=True)
    assert match.take(everything=True) == ([bca], [], 0)
    assert match.cut_bytes == 2


def test_a_straddler_handed_out_before_says_how_many_bytes_to_hold() -> None:
    match = matcher(b"caab")
    assert not match.push(ids(b"bca")[0], None, may_stop=True)
    assert match.take() == (ids(b"bca"), [], 2)
    assert match.push(ids(b"ab")[0], None, may_stop=True)
    assert match.take(everything=True) == ([], [], 0)
    assert match.cut_bytes == 2  # of the token handed out before


def test_with_the_stop_included_nothing_waits_and_the_text_ends_with_it() -> None:
    match = matcher(b"ab", include_stop=True)
    assert not match.push(ids(b"a")[0], None, may_stop=True)
    assert match.take() == (ids(b"a"), [], 0)
    assert match.push(ids(b"bca")[0], None, may_stop=True)
    assert match.take(everything=True) == (ids(b"bca"), [], 0)
    assert match.cut_bytes == 2


def test_a_match_too_early_is_forgotten_and_matching_starts_anew_behind_it() -> None:
    match = matcher(b"aba")
    for token in ids(b"a", b"b", b"a"):
        assert not match.push(token, None, may_stop=False)
    assert not match.push(ids(b"b")[0], None, may_stop=True)
    assert not match.push(ids(b"c")[0], None, may_stop=True)
    for token in ids(b"ab"):
        assert not match.push(token, None, may_stop=True)
    assert match.push(ids(b"a")[0], None, may_stop=True)


def test_tokens_without_bytes_before_the_stop_are_kept_and_within_it_dropped() -> None:
    match = matcher(b"ab")
    empty = ids(b"")[0]
    tokens = [*ids(b"c"), empty, *ids(b"a"), empty, *ids(b"b")]
    assert [match.push(t, None, may_stop=True) for t in tokens] == [False] * 4 + [True]
    assert match.take(everything=True) == ([*ids(b"c"), empty], [], 0)


def test_the_rules_are_asked_in_order_ids_strings_length() -> None:
    a, ab = ids(b"a", b"ab")
    rules = StopRules(stop_ids=frozenset([ab]), min_tokens=0, limit=2, matcher=matcher(b"ab"), stop_text_bytes=TOKENS)
    assert rules.check(ab, None, 0, 2) is FinishReason.STOP
    assert (rules.stop_reason, rules.cut_bytes) == (ab, 2)
    rules = StopRules(stop_ids=frozenset(), min_tokens=0, limit=2, matcher=matcher(b"ab"))
    assert rules.check(ab, None, 0, 2) is FinishReason.STOP
    assert rules.stop_reason == "ab"
    rules = StopRules(stop_ids=frozenset(), min_tokens=0, limit=2, matcher=matcher(b"ab"))
    assert rules.check(a, None, 0, 1) is None
    assert rules.check(a, None, 1, 2) is FinishReason.LENGTH
    assert rules.stop_reason is None


def test_neither_ids_nor_strings_stop_before_the_minimum() -> None:
    a, ab = ids(b"a", b"ab")
    rules = StopRules(stop_ids=frozenset([a]), min_tokens=2, limit=9, matcher=matcher(b"ab"))
    assert rules.check(a, None, 0, 1) is None
    assert rules.check(ab, None, 1, 2) is None
    assert rules.check(a, None, 2, 3) is FinishReason.STOP


def test_a_stop_id_keeps_its_token_and_hides_its_text() -> None:
    (xyz,) = ids(b"xyz")
    shown = StopRules(stop_ids=frozenset([xyz]), min_tokens=0, limit=9)
    hidden = StopRules(stop_ids=frozenset([xyz]), min_tokens=0, limit=9, stop_text_bytes=TOKENS)
    for rules, cut in ((shown, 0), (hidden, 3)):
        assert rules.check(xyz, None, 0, 1) is FinishReason.STOP
        assert rules.cut_bytes == cut


def naive(tokens: list[int], patterns: list[bytes], minimum: int) -> tuple[int, int] | None:
    """(first byte of the stop, end byte of the token it ends in): by looking at every end of every prefix."""
    text, since = b"", 0
    for index, token in enumerate(tokens):
        begin = len(text)
        text += TOKENS[token]
        for end in range(begin + 1, len(text) + 1):
            found = [p for p in patterns if end - len(p) >= since and text[:end].endswith(p)]
            if found and index >= minimum:
                return end - max(len(p) for p in found), len(text)
            if found:
                since = end
    return None


@settings(deadline=None, max_examples=300)
@given(
    st.lists(st.integers(0, len(TOKENS) - 1), max_size=12),
    st.lists(st.sampled_from([b"ab", b"abc", b"ca", b"aab", b"b", b"cabc", b"zx", b"bca"]), min_size=1, max_size=3),
    st.integers(0, 4),
)
def test_any_split_agrees_with_looking_at_the_whole_text(
    tokens: list[int], patterns: list[bytes], minimum: int
) -> None:
    expected = naive(tokens, patterns, minimum)
    match = matcher(*patterns)
    handed: list[int] = []
    text = b"".join(TOKENS[t] for t in tokens)
    for index, token in enumerate(tokens):
        stopped = match.push(token, None, may_stop=index >= minimum)
        out, _, hold = match.take(everything=stopped)
        handed += out
        size = sum(len(TOKENS[t]) for t in handed)
        if stopped:
            assert expected is not None
            assert text[: size - match.cut_bytes] == text[: expected[0]]
            return
        if expected is not None:  # what may be shown already never reaches into the stop to come
            assert size - hold <= expected[0]
    assert expected is None
    handed += match.take(everything=True)[0]
    assert handed == tokens
