"""What a request must be, said before anything is changed: the parameter, the limit, the fix."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.pure.engine.driver import BYTES, EOS, VOCAB, Driver, request

from paceline.contracts.request import FinishReason, MediaSpan, TokenPrompt, TracePrompt, expand_choices
from paceline.contracts.slo import Slo
from paceline.engine.stop import StopRules
from paceline.errors import QueueFullError, RequestError


def refused(driver: Driver, wrong: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        driver.add(wrong)
    assert not driver.scheduler.has_work
    assert driver.scheduler.num_waiting == 0
    return caught.value


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        (request(1, []), "prompt"),
        (request(1, [1, VOCAB]), "prompt"),
        (request(1, [-1, 2]), "prompt"),
        (request(1, 128), "prompt"),
        (request(1, 3, prior_output=(VOCAB,)), "prior_output"),
        (request(1, 100, prior_output=(1,) * 28, max_tokens=None), "prompt"),
        (request(1, 3, prior_output=(1, 2), max_tokens=2), "max_tokens"),
        (request(1, 3, stop_token_ids=(VOCAB,)), "stop_token_ids"),
        (request(1, 3, stop_token_ids=(-1,)), "stop_token_ids"),
        (request(1, 3, logit_bias={VOCAB: 1.0}), "logit_bias"),
        (request(1, 3, logprobs=1, logprob_token_ids=(-1,)), "logprob_token_ids"),
        (request(1, 3, logprobs=1, logprob_token_ids=(VOCAB,)), "logprob_token_ids"),
        (request(1, 3, grammar=b"{}"), "grammar"),
        (request(1, 3, adapter_digest=b"x"), "adapter_digest"),
        (request(1, 3, tenant="\ud800"), "tenant"),
        (request(1, 3, stop_strings=(b"",)), "stop"),
        (request(1, 3, stop_strings=(b"x",) * 17), "stop"),
        (request(1, 3, stop_strings=(b"x" * 1025,)), "stop"),
        (request(1, 3, leader=1), "leader"),
        (request(1, 3, priority=2**31), "priority"),
        (request(1, 3, priority=1.0), "priority"),
        (request(1, 3, priority=True), "priority"),
        (request(1, 3, arrival=float("nan")), "arrival"),
        (request(1, 3, arrival=None), "arrival"),
        (request(1, 3, deadline=float("nan")), "deadline"),
        (request(1, 3, deadline=float("inf")), "deadline"),
        (request(1, 3, deadline=10**400), "deadline"),
        (request(1, 3, deadline="1"), "deadline"),
        (request(1, 3, queue_deadline=float("nan")), "queue_deadline"),
        (request(1, 3, slo=Slo(ttft_s=float("nan"))), "slo"),
        (request(1, 3, slo=Slo(tpot_s=float("inf"))), "slo"),
        (request(1, 3, slo=Slo(e2e_s=float("nan"))), "slo"),
    ],
)
def test_a_wrong_request_is_refused_with_its_parameter_and_changes_nothing(wrong: Any, param: str) -> None:
    assert refused(Driver(), wrong).param == param


def test_media_and_trace_prompts_are_refused_where_they_cannot_run() -> None:
    span = MediaSpan(start=0, length=1, digest=b"d")
    media = TokenPrompt(ids=np.asarray([1, 2], np.int32), spans=(span,))
    trace = TracePrompt(num_tokens=20, block_hashes=(1, 2), hash_block_size=8)
    base = request(1, 3)
    assert refused(Driver(), msgspec.structs.replace(base, prompt=media)).param == "prompt"
    traced = msgspec.structs.replace(base, prompt=trace)
    assert "token ids" in str(refused(Driver(), traced))
    driver = Driver(needs_token_ids=False).add(traced).run()
    assert len(driver.ids(1)) == 8


def test_prompt_ids_must_be_a_row_of_integers() -> None:
    for ids in (np.ones(3, np.float32), np.ones((2, 2), np.int32)):
        wrong = msgspec.structs.replace(request(1, 3), prompt=TokenPrompt(ids=ids))
        assert refused(Driver(), wrong).param == "prompt"


def test_t1_a_prompt_larger_than_the_pool_is_refused_naming_the_limit_and_the_next_one_completes() -> None:
    driver = Driver(num_blocks=8, block_size=4)
    error = refused(driver, request(1, 40))
    assert "31 tokens" in error.expected
    assert "8 blocks" in error.expected
    driver.add(request(2, 6)).run()
    assert len(driver.ids(2)) == 8


def test_an_id_in_use_is_refused_and_is_free_again_after_the_end() -> None:
    driver = Driver().add(request(1, 3))
    with pytest.raises(RequestError, match="in use"):
        driver.add(request(1, 5))
    driver.run()
    driver.add(request(1, 5)).run()


def test_stop_strings_need_the_bytes_of_tokens() -> None:
    assert refused(Driver(token_bytes=None), request(1, 3, stop=("x",))).param == "stop"


def test_stop_strings_given_only_as_text_are_matched_too() -> None:
    wrong = msgspec.structs.replace(request(1, 3, stop=("\x02\x03",)), stop_strings=())
    driver = Driver().add(wrong).run()
    assert driver.ids(1) == [0, 1]


def test_the_queue_is_bounded_in_requests_and_in_tokens() -> None:
    driver = Driver(max_waiting_requests=2, max_waiting_tokens=20)
    driver.add(request(1, 8))
    with pytest.raises(QueueFullError, match="8 tokens waiting and 13 more"):
        driver.add(request(2, 13))
    driver.add(request(3, 12))
    with pytest.raises(QueueFullError, match="2 requests waiting"):
        driver.add(request(4, 1))
    driver.step()
    driver.add(request(4, 1))
    assert driver.scheduler.num_waiting == 1


def test_a_deadline_that_is_no_number_keeps_nobody_elses_from_coming_due() -> None:
    driver = Driver()
    with contextlib.suppress(RequestError):
        driver.add(request(0, 3, None, deadline=float("nan")))
    driver.add(request(1, 3, None, deadline=0.5))
    driver.step(1.0)
    assert driver.last(1).finish is FinishReason.TIMEOUT


@pytest.mark.parametrize(
    "fields",
    [{"tenant": "other"}, {"cache_salt": b"other"}, {"prompt": TokenPrompt(ids=np.arange(10, dtype=np.int32))}],
)
def test_a_leader_of_another_call_is_refused(fields: dict[str, Any]) -> None:
    first, second = expand_choices(request(1, 10), [2])
    driver = Driver().add(first)
    with pytest.raises(RequestError, match="same call") as caught:
        driver.add(msgspec.structs.replace(second, **fields))
    assert caught.value.param == "leader"
    driver.add(second).run()
    assert driver.ids(2) == driver.ids(1)


def test_a_follower_is_nobodys_leader_so_there_are_no_cycles() -> None:
    first, second = expand_choices(request(1, 10), [2])
    driver = Driver().add(second)  # its leader is not there, which is normal
    with pytest.raises(RequestError) as caught:
        driver.add(msgspec.structs.replace(first, leader=2))
    assert caught.value.param == "leader"
    driver.run()


def test_choices_share_the_automaton_of_their_stop_strings() -> None:
    driver = Driver()
    one, other = rules_of(driver, stop=("END",)).matcher, rules_of(driver, stop=("END",)).matcher
    assert one is not None
    assert other is not None
    assert one is not other
    assert one._automaton is other._automaton


def rules_of(driver: Driver, **fields: Any) -> StopRules:
    return driver.scheduler._admission.make_state(request(1, 3, **fields), 0.0).rules


def test_end_of_sequence_stops_unless_it_is_ignored() -> None:
    driver = Driver()
    assert rules_of(driver).stop_ids == {EOS}
    assert rules_of(driver, ignore_eos=True).stop_ids == set()
    assert rules_of(driver, stop_token_ids=(5, EOS, 5)).stop_ids == {5, EOS}
    own = request(1, 3, stop_token_ids=(5, EOS, 5))
    assert driver.scheduler._admission.stop_token_ids(own) == (EOS, 5)
    assert rules_of(driver).stop_text_bytes is BYTES
    assert rules_of(driver, include_stop_str_in_output=True).stop_text_bytes is None


def test_the_limit_is_the_least_of_max_tokens_model_length_and_cache() -> None:
    assert rules_of(Driver(), max_tokens=7).limit == 10
    assert rules_of(Driver(), max_tokens=None).limit == 128
    assert rules_of(Driver(num_blocks=8, block_size=4), max_tokens=None).limit == 32
