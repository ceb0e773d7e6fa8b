"""Results: stop rules at one place on the accepted tokens, drafts, logprobs, faults, and results that came too late."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from tests.pure.engine.driver import EOS, Driver, Script, request

from paceline.contracts.request import FinishReason, Usage
from paceline.contracts.step import Logits


def spelled(text: str) -> Script:
    """A script whose output spells `text`, byte by byte, for every request."""
    data = text.encode()
    return lambda _, index: data[index] if index < len(data) else EOS


class Oracle:
    """A drafter that knows the text."""

    def __init__(self, text: str, num_prompt: int) -> None:
        self._data = list(text.encode())
        self._num_prompt = num_prompt

    def propose(self, token_ids: np.ndarray, max_drafts: int) -> Sequence[int]:
        at = len(token_ids) - self._num_prompt
        return self._data[at : at + max_drafts]


def drafting(text: str, **kw: Any) -> Driver:
    return Driver(script=spelled(text), spec_kinds=("host",), num_draft_tokens=5, drafter=Oracle(text, 3), **kw)


def usage(driver: Driver, request_id: int = 1) -> Usage:
    found = driver.last(request_id).usage
    assert found is not None
    return found


@pytest.mark.parametrize("depth", [1, 2])
def test_t7_a_first_token_that_stops_ends_the_turn_with_empty_text(depth: int) -> None:
    driver = Driver(depth=depth, script=lambda i, k: EOS if i == 1 else k)
    driver.add(request(1, 3), request(2, 3)).run()
    assert driver.ids(1) == [EOS]
    assert driver.text(1) == b""
    assert (driver.last(1).finish, driver.last(1).stop_reason) == (FinishReason.STOP, EOS)
    assert driver.ids(2) == list(range(8))
    assert driver.held_blocks() == 0


def test_a_stop_id_of_its_own_hides_its_text_unless_it_is_wanted() -> None:
    for include, text in ((False, b"ab"), (True, b"abc")):
        driver = Driver(script=spelled("abcd"))
        driver.add(request(1, 3, stop_token_ids=(ord("c"),), include_stop_str_in_output=include)).run()
        assert driver.ids(1) == list(b"abc")
        assert driver.text(1) == text
        assert driver.last(1).stop_reason == ord("c")


def test_ignored_end_of_sequence_goes_on_to_the_length() -> None:
    driver = Driver(script=lambda *_: EOS).add(request(1, 3, 4, ignore_eos=True)).run()
    assert driver.ids(1) == [EOS] * 4
    assert driver.last(1).finish is FinishReason.LENGTH


def test_it_ends_at_the_models_length_when_nothing_else_ends_it() -> None:
    driver = Driver(max_model_len=12).add(request(1, 5, None)).run()
    assert len(driver.ids(1)) == 7
    assert driver.last(1).finish is FinishReason.LENGTH


@pytest.mark.parametrize("drafts", [False, True])
def test_a_stop_string_cuts_text_ids_logprobs_and_usage_at_one_place(drafts: bool) -> None:
    """Also when it ends inside several tokens accepted at once (T24)."""
    text = "hello END there"
    driver = drafting(text) if drafts else Driver(script=spelled(text))
    driver.add(request(1, 3, 40, stop=("END",), logprobs=0)).run()
    assert driver.text(1) == b"hello "
    assert driver.ids(1) == list(b"hello ")
    logprobs = [p for o in driver.outputs for p in o.logprobs or []]
    assert [p.token_id for p in logprobs] == driver.ids(1)
    assert driver.last(1).stop_reason == "END"
    meter = usage(driver)
    assert meter.output_tokens == 6
    assert meter.computed_tokens - meter.wasted_tokens == 3 + 6 - 1
    if not drafts:
        assert meter.computed_tokens == 3 + 9 - 1
    timeline = driver.last(1).timeline
    assert timeline is not None
    assert timeline.num_tokens == 6


def test_the_same_text_whatever_the_drafts() -> None:
    for text, stops in (("aaabaab!", ("aab",)), ("xyxyxz", ("xyxz", "z")), ("ab" * 9, ("nothing",))):
        plain, drafted = Driver(script=spelled(text)), drafting(text)
        for driver in (plain, drafted):
            driver.add(request(1, 3, 18, stop=stops)).run()
        assert plain.ids(1) == drafted.ids(1)
        assert plain.text(1) == drafted.text(1)
        assert plain.last(1).stop_reason == drafted.last(1).stop_reason
        assert len(drafted.plans) < len(plain.plans)


def test_with_the_stop_included_the_text_ends_with_it() -> None:
    driver = Driver(script=spelled("hello END there"))
    driver.add(request(1, 3, 40, stop=("END",), include_stop_str_in_output=True)).run()
    assert driver.text(1) == b"hello END"
    assert usage(driver).output_tokens == 9


@pytest.mark.parametrize("drafts", [False, True])
def test_t23_neither_a_stop_string_nor_a_stop_id_ends_it_before_the_minimum(drafts: bool) -> None:
    text = "ENDxENDy"
    driver = drafting(text) if drafts else Driver(script=spelled(text))
    driver.add(request(1, 3, 8, stop=("END",), min_tokens=3)).run()
    assert driver.text(1) == b"ENDx"
    ids = drafting("abcabc") if drafts else Driver(script=spelled("abcabc"))
    ids.add(request(1, 3, 6, stop_token_ids=(ord("b"),), min_tokens=3)).run()
    assert ids.ids(1) == list(b"abcab")


def test_the_row_tells_the_sampler_which_ids_the_minimum_suppresses() -> None:
    driver = Driver().add(request(1, 3, stop_token_ids=(9,), min_tokens=2))
    assert driver.plan().admits[0].stop_token_ids == (EOS, 9)


def test_tokens_that_may_belong_to_a_stop_are_withheld_and_come_when_they_do_not() -> None:
    driver = Driver(script=spelled("aENbEN")).add(request(1, 3, 6, stop=("END",)))
    seen = []
    while driver.scheduler.has_work:
        before = len(driver.outputs)
        driver.step()
        seen.append([bytes(o.token_ids) for o in driver.outputs[before:]])
    assert seen == [[b"a"], [], [], [b"ENb"], [], [b"EN"]]
    assert driver.last(1).finish is FinishReason.LENGTH


def test_a_token_handed_out_may_be_asked_to_hold_its_last_bytes() -> None:
    words = [b"ab-", b"-c", b"x"]
    bytes_of = [*words, *[b"?"] * 252, b""]
    driver = Driver(token_bytes=bytes_of, script=lambda _, k: [0, 2, 0, 1][k]).add(request(1, 3, 4, stop=("--",)))
    driver.run()
    assert [(o.token_ids, o.hold_bytes) for o in driver.outputs[:3]] == [([0], 1), ([2], 0), ([0], 1)]
    assert driver.last(1).token_ids == []
    assert driver.last(1).cut_bytes == 1  # of the token before; the one that ends the stop is dropped


def test_at_depth_two_what_was_drawn_past_the_end_is_dropped_and_counted() -> None:
    driver = Driver(depth=2, script=spelled("ab")).add(request(1, 3, 20), request(2, 3, 2)).run()
    assert driver.ids(1) == [*b"ab", EOS]
    meter = usage(driver)
    assert (meter.output_tokens, meter.wasted_tokens) == (3, 1)
    assert meter.computed_tokens == 3 + 3 - 1 + 1
    assert usage(driver, 2).wasted_tokens == 0


def test_a_fault_ends_its_own_request_and_nothing_else() -> None:
    driver = Driver().add(request(1, 3), request(2, 3))
    driver.step()
    driver.faults[1] = "nan"
    driver.run()
    assert driver.last(1).finish is FinishReason.ERROR
    assert driver.last(1).error == "nan: broken"
    assert driver.ids(1) == [0]
    assert driver.ids(2) == list(range(8))
    assert driver.held_blocks() == 0


@pytest.mark.parametrize("chunk", [None, 3])
def test_prompt_logprobs_come_once_with_the_first_output(chunk: int | None) -> None:
    driver = Driver(prefill_chunk_tokens=chunk)
    driver.add(request(1, [5] * 9, 3)).run()
    driver.add(request(2, [5] * 9, 3, prompt_logprobs=0)).run()
    first, *rest = [o for o in driver.outputs if o.request_id == 2]
    assert first.prompt_logprobs is not None
    assert first.prompt_logprobs[0] is None
    assert [p.token_id for p in first.prompt_logprobs[1:] if p is not None] == list(range(1, 9))
    assert all(o.prompt_logprobs is None for o in rest)
    assert usage(driver, 2).cached_tokens == 0  # it needs their logits, so it computes them
    kinds = {p.logits.tolist()[0] for p in driver.plans if 2 in [a.request_id for a in p.admits]}
    assert kinds == {Logits.ALL}


def test_prompt_logprobs_survive_a_preemption() -> None:
    driver = Driver(num_blocks=9, block_size=4, prefill_chunk_tokens=4)
    driver.add(request(1, 20, 4, priority=1, prompt_logprobs=0))
    driver.step()
    driver.step()
    driver.add(request(2, 20, 4, priority=0))
    driver.run()
    assert usage(driver, 1).preemptions == 1
    first = next(o for o in driver.outputs if o.request_id == 1)
    assert first.prompt_logprobs is not None
    assert [p.token_id for p in first.prompt_logprobs[1:] if p is not None] == list(range(1, 20))


def test_t17_a_resumed_request_draws_nothing_before_its_last_known_token() -> None:
    driver = Driver(max_rows=1, prefill_chunk_tokens=4, prefix_caching=False).add(request(1, 6, 12, priority=1))
    for _ in range(8):
        driver.step()
    driver.add(request(2, 3, 1, priority=0)).run()
    assert usage(driver, 1).preemptions == 1
    resumed = next(p for p in driver.plans if [a.epoch for a in p.admits if a.request_id == 1] == [1])
    assert len(resumed.admits[0].token_ids) > 6
    later = driver.plans[driver.plans.index(resumed) :]
    replayed = [p for p in later if p.num_rows and p.count[0] > 1]
    assert len(replayed) >= 2
    assert [int(p.sample[0]) for p in replayed[:-1]] == [0] * (len(replayed) - 1)
    assert driver.ids(1) == list(range(12))


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("max_tokens", [3, 4, 5])
def test_t37_an_end_exactly_at_a_blocks_edge_frees_each_block_once(depth: int, max_tokens: int) -> None:
    driver = Driver(depth=depth, block_size=4, windows=(None, 5))  # the driver checks the ledger after each result
    driver.add(request(1, 5, max_tokens), request(2, 4, 9)).run()
    assert driver.held_blocks() == 0
    assert driver.ids(1) == list(range(max_tokens))


def test_results_come_in_the_order_of_the_plans() -> None:
    driver = Driver(depth=2).add(request(1, 3))
    first, second = driver.plan(), driver.plan()
    driver.answer(first)
    with pytest.raises(AssertionError, match="expected 0"):
        driver.scheduler.apply(driver.answer(second), driver.now)
