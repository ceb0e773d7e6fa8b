from typing import Any

import msgspec
import numpy as np
import pytest

from paceline.contracts.request import (
    GREEDY_BELOW,
    MAX_LOGIT_BIAS,
    MAX_LOGPROB_TOKEN_IDS,
    MAX_STOP_BYTES,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
    MediaSpan,
    Request,
    SamplingParams,
    TokenPrompt,
    TracePrompt,
    expand_choices,
    may_share_prompt,
)
from paceline.errors import RequestError


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 0),
        ("max_tokens", -1),
        ("max_tokens", 0),
        ("min_tokens", -1),
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("top_k", -2),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("min_p", 1.5),
        ("typical_p", 0.0),
        ("presence_penalty", 2.1),
        ("frequency_penalty", -2.1),
        ("repetition_penalty", 0.0),
        ("seed", -1),
        ("stop", ("",)),
        ("logprobs", 21),
        ("logprobs", -1),
        ("logit_bias", {1: float("nan")}),
    ],
)
def test_out_of_range_sampling_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(RequestError) as refusal:
        SamplingParams(**{field: value})  # type: ignore[arg-type]
    assert refusal.value.param == field
    assert "expected" in str(refusal.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", True),
        ("n", 2.0),
        ("max_tokens", 2.5),
        ("max_tokens", 2**31),
        ("max_tokens", "4"),
        ("min_tokens", 2**70),
        ("min_tokens", None),
        ("temperature", "1"),
        ("temperature", None),
        ("temperature", True),
        ("temperature", 1e300),
        ("temperature", 10**400),
        ("top_k", 2**63),
        ("top_k", 2**31),
        pytest.param("top_k", 10**9000, id="top_k-too-long-to-write"),
        ("top_k", 3.0),
        ("top_k", np.int64(3)),
        ("top_p", "0.5"),
        ("top_p", [0.5]),
        ("repetition_penalty", 1e300),
        ("seed", 1.5),
        ("seed", 2**64),
        ("seed", True),
        ("logprobs", 2.5),
        ("prompt_logprobs", False),
        ("ignore_eos", 1),
        ("include_stop_str_in_output", None),
        ("stop", "END"),
        ("stop", b"END"),
        ("stop", None),
        ("stop", (b"END",)),
        ("stop", (3,)),
        ("stop", ("x" * (MAX_STOP_BYTES + 1),)),
        ("stop", ("é" * (MAX_STOP_BYTES // 2 + 1),)),
        ("stop", ("\udce4",)),
        ("stop", ("x",) * (MAX_STOP_STRINGS + 1)),
        ("stop_token_ids", 3),
        ("stop_token_ids", (2.0,)),
        ("stop_token_ids", (True,)),
        ("stop_token_ids", (2**31,)),
        ("stop_token_ids", (1,) * (MAX_STOP_TOKEN_IDS + 1)),
        ("logprob_token_ids", {3}),
        ("logprob_token_ids", (1,) * (MAX_LOGPROB_TOKEN_IDS + 1)),
        ("logit_bias", [(1, 1.0)]),
        ("logit_bias", {3.5: 1}),
        ("logit_bias", {2**31: 1.0}),
        ("logit_bias", {1: "1"}),
        ("logit_bias", {1: 1e300}),
        ("logit_bias", dict.fromkeys(range(MAX_LOGIT_BIAS + 1), 1.0)),
    ],
)
def test_what_fits_no_column_or_is_of_another_type_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(RequestError) as refusal:
        SamplingParams(**{field: value})
    assert refusal.value.param == field
    assert refusal.value.seen is not None
    assert "expected" in str(refusal.value)


def test_the_bounds_themselves_lists_and_whole_numbers_for_real_ones_are_taken() -> None:
    params = SamplingParams(
        max_tokens=2**31 - 1,
        top_k=2**31 - 1,
        seed=2**64 - 1,
        temperature=1,
        top_p=1,
        stop=["é" * (MAX_STOP_BYTES // 2)] * MAX_STOP_STRINGS,  # type: ignore[arg-type]
        stop_token_ids=[1] * MAX_STOP_TOKEN_IDS,  # type: ignore[arg-type]
        logprob_token_ids=(2,) * MAX_LOGPROB_TOKEN_IDS,
        logit_bias=dict.fromkeys(range(MAX_LOGIT_BIAS), -100),
    )
    assert isinstance(params.stop, tuple)
    assert isinstance(params.stop_token_ids, tuple)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams) == params


@pytest.mark.parametrize("temperature", [0, 0.0, 1e-50, 7e-46, 9.9e-6])
def test_a_temperature_that_is_as_good_as_zero_is_greedy(temperature: float) -> None:
    assert SamplingParams(temperature=temperature).greedy
    assert not SamplingParams(temperature=GREEDY_BELOW).greedy


def first_and_second(**fields: Any) -> tuple[Request, Request]:
    prompt = TokenPrompt(ids=np.arange(4, dtype=np.int32))
    first, second = expand_choices(Request(request_id=5, prompt=prompt, tenant="a"), [8])
    return first, msgspec.structs.replace(second, **fields)


def test_choices_of_one_call_may_share_the_prompt_also_when_it_was_copied() -> None:
    first, second = first_and_second()
    assert may_share_prompt(second, first)
    copied = TokenPrompt(ids=np.arange(4, dtype=np.int32))
    assert may_share_prompt(msgspec.structs.replace(second, prompt=copied), first)


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": TokenPrompt(ids=np.asarray([0, 1, 2, 4], np.int32))},
        {"prompt": TokenPrompt(ids=np.arange(5, dtype=np.int32))},
        {"prompt": TokenPrompt(ids=np.arange(4, dtype=np.int32), spans=(MediaSpan(start=0, length=1, digest=b"d"),))},
        {"prompt": TracePrompt(num_tokens=4, block_hashes=(), hash_block_size=8)},
        {"tenant": "b"},
        {"cache_salt": b"s"},
        {"adapter_digest": b"a"},
        {"request_id": 5},
    ],
)
def test_others_may_not_share_the_prompt(fields: dict[str, Any]) -> None:
    first, second = first_and_second(**fields)
    assert not may_share_prompt(second, first)


def test_only_a_first_choice_without_a_leader_is_one() -> None:
    first, second = first_and_second()
    assert not may_share_prompt(second, msgspec.structs.replace(first, choice=1))
    assert not may_share_prompt(second, msgspec.structs.replace(first, leader=3))


def test_min_tokens_above_max_tokens_is_refused() -> None:
    with pytest.raises(RequestError, match="min_tokens"):
        SamplingParams(max_tokens=4, min_tokens=5)


@pytest.mark.parametrize("field", ["stop_token_ids", "logprob_token_ids"])
@pytest.mark.parametrize("token", [-1, 100, 2**31])
def test_token_ids_outside_the_vocabulary_are_refused_before_they_index(field: str, token: int) -> None:
    with pytest.raises(RequestError, match=field):
        SamplingParams(**{field: (3, token)}).check_vocabulary(100)  # type: ignore[arg-type]


def test_logit_bias_outside_the_vocabulary_is_refused() -> None:
    with pytest.raises(RequestError, match="logit_bias"):
        SamplingParams(logit_bias={100: 1.0}).check_vocabulary(100)


def test_choices_share_everything_but_their_index() -> None:
    request = Request(request_id=5, prompt=TokenPrompt(ids=np.arange(4, dtype=np.int32)), sampling=SamplingParams(n=3))
    all_of_them = expand_choices(request, [8, 9])
    assert [(r.request_id, r.choice, r.leader) for r in all_of_them] == [(5, 0, None), (8, 1, 5), (9, 2, 5)]


def test_prior_output_joins_the_known_ids() -> None:
    request = Request(request_id=1, prompt=TokenPrompt(ids=np.arange(3, dtype=np.int32)), prior_output=(7, 8))
    assert request.initial_ids().tolist() == [0, 1, 2, 7, 8]
    assert request.num_prompt == 3
