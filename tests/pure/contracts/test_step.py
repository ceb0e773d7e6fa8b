import msgspec
import numpy as np

from paceline.contracts.request import Request, SamplingParams, TokenLogprob, TokenPrompt
from paceline.contracts.step import RowAdmit, RowFault, StepPlan, StepResult, decode, encode


def columns(**given: list[int]) -> dict[str, np.ndarray]:
    names = [f for f in StepPlan.__struct_fields__ if f not in ("step", "admits", "est_ms")]
    return {name: np.asarray(given.get(name, []), dtype=np.int32) for name in names}


def plan(**given: list[int]) -> StepPlan:
    admit = RowAdmit(
        row=0,
        request_id=9,
        epoch=1,
        choice=0,
        token_ids=np.arange(3, dtype=np.int32),
        num_prompt=3,
        sampling=SamplingParams(seed=2**63, logit_bias={5: -1.5}),
    )
    return StepPlan(step=4, admits=(admit,), **columns(**given))


def test_a_plan_survives_encoding_byte_for_byte() -> None:
    before = plan(row=[0], start=[0], count=[3], sample=[1])
    after = decode(encode(before), StepPlan)
    assert encode(after) == encode(before)
    assert after.admits[0].sampling == before.admits[0].sampling
    assert after.admits[0].token_ids.dtype == np.int32
    assert after.num_tokens == 3


def test_the_digest_ignores_the_estimate_and_nothing_else() -> None:
    base = plan(row=[0], start=[0], count=[3])
    assert base.digest() == msgspec.structs.replace(base, est_ms=7.0).digest()
    for other in (plan(row=[1], start=[0], count=[3]), plan(row=[0], start=[1], count=[3]), plan()):
        assert other.digest() != base.digest()


def test_a_plan_is_empty_only_when_an_executor_would_have_nothing_to_do() -> None:
    assert StepPlan(step=0, admits=(), **columns()).is_empty
    assert not plan().is_empty
    assert not StepPlan(step=0, admits=(), **columns(releases=[3])).is_empty


def test_results_and_requests_survive_encoding() -> None:
    result = StepResult(
        step=1,
        row=np.asarray([2], np.int32),
        num_tokens=np.asarray([1], np.int32),
        tokens=np.asarray([42], np.int32),
        logprobs={2: (TokenLogprob(42, -0.5, 1, ((42, -0.5), (7, -1.0))),)},
        faults=(RowFault(row=5, code="nan", message="not a number"),),
    )
    again = decode(encode(result), StepResult)
    assert encode(again) == encode(result)
    assert again.logprobs[2][0].top[1] == (7, -1.0)
    request = Request(request_id=1, prompt=TokenPrompt(ids=np.arange(4, dtype=np.int32)), cache_salt=b"\xff\x00")
    assert encode(decode(encode(request), Request)) == encode(request)
