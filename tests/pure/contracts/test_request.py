import numpy as np
import pytest

from paceline.contracts.request import Request, SamplingParams, TokenPrompt, expand_choices
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


def test_min_tokens_above_max_tokens_is_refused() -> None:
    with pytest.raises(RequestError, match="min_tokens"):
        SamplingParams(max_tokens=4, min_tokens=5)


@pytest.mark.parametrize("field", ["stop_token_ids", "logprob_token_ids"])
@pytest.mark.parametrize("token", [-1, 100, 2**31])
def test_token_ids_outside_the_vocabulary_are_refused_before_they_index(field: str, token: int) -> None:
    params = SamplingParams(**{field: (3, token)})  # type: ignore[arg-type]
    with pytest.raises(RequestError, match=field):
        params.check_vocabulary(100)


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
