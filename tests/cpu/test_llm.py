"""The offline face over a tiny random model whose tokens are single characters."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.fakes.model_folder import CHAT_TEMPLATE, END, START, write_model

from paceline import LLM, SamplingParams
from paceline.config import EngineConfig
from paceline.contracts.request import FinishReason
from paceline.errors import ConfigError, EngineError, ModelError, RequestError
from paceline.runtime.kernels.cpu.native import why_not
from paceline.runtime.threads import kernel_threads

GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
DRAWN = SamplingParams(temperature=1.0, max_tokens=24, ignore_eos=True, seed=7)
PROMPTS = ["Once upon a time", "The sea", "12 + 30 =", "A rather longer prompt than the others, to be cut in chunks."]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "tiny")


def open_llm(folder: Path, **options: Any) -> LLM:
    sizes = {"max_num_seqs": 8, "max_num_batched_tokens": 64, "prefill_chunk_tokens": 32, "expected_context": 128}
    return LLM(str(folder), **{"dtype": "float32", "num_threads": torch.get_num_threads(), **sizes, **options})


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with open_llm(folder) as llm:
        yield llm


@pytest.fixture(autouse=True)
def _nothing_is_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "llm" in request.fixturenames:
        stats = request.getfixturevalue("llm").stats()
        assert stats.num_running == stats.num_waiting == 0
        assert stats.kv.held == stats.kv.limbo == stats.kv.reserved == 0
        assert not request.getfixturevalue("llm")._takers


def text(llm: LLM, prompt: Any, params: SamplingParams | None = None, **more: Any) -> str:
    (result,) = llm.generate(prompt, params, **more)
    return result.outputs[0].text


# --- generate


def test_text_and_its_ids_are_the_same_prompt(llm: LLM) -> None:
    ids = llm.encode("The sea")
    assert ids[0] == START
    assert text(llm, "The sea", GREEDY) == text(llm, ids, GREEDY)
    (result,) = llm.generate("The sea", GREEDY)
    assert result.prompt_token_ids == ids
    (output,) = result.outputs
    assert output.text == llm.decode(output.token_ids)
    assert len(output.token_ids) == output.usage.output_tokens == 24
    assert output.finish_reason is FinishReason.LENGTH
    assert output.usage.prompt_tokens == len(ids)
    assert output.timeline.num_tokens == 24
    assert output.timeline.arrival <= output.timeline.admitted <= output.timeline.chunks[0][0] <= output.timeline.end


def test_many_prompts_come_back_in_order_each_as_if_alone(llm: LLM) -> None:
    alone = [text(llm, prompt, GREEDY) for prompt in PROMPTS]
    assert len(set(alone)) == len(PROMPTS)
    mixed = [PROMPTS[0], llm.encode(PROMPTS[1]), PROMPTS[2], tuple(llm.encode(PROMPTS[3]))]
    assert [result.outputs[0].text for result in llm.generate(mixed, GREEDY)] == alone
    assert llm.generate([]) == []


def test_each_prompt_can_have_its_own_parameters(llm: LLM) -> None:
    params = [SamplingParams(temperature=0.0, max_tokens=n, ignore_eos=True) for n in (3, 9, 5)]
    results = llm.generate(PROMPTS[:3], params)
    assert [len(result.outputs[0].token_ids) for result in results] == [3, 9, 5]
    with pytest.raises(RequestError, match="one for each"):
        llm.generate(PROMPTS, params)
    with pytest.raises(RequestError, match="one for each"):
        llm.generate(PROMPTS[:3], params, max_tokens=4)


def test_the_same_seed_gives_the_same_text_alone_and_in_a_batch(llm: LLM) -> None:
    alone = text(llm, PROMPTS[1], DRAWN)
    assert text(llm, PROMPTS[1], DRAWN) == alone
    assert llm.generate(PROMPTS, DRAWN)[1].outputs[0].text == alone
    assert text(llm, PROMPTS[1], temperature=1.0, max_tokens=24, ignore_eos=True, seed=8) != alone


def test_requests_without_a_seed_differ_and_repeat_with_the_engine_seed(folder: Path) -> None:
    runs = []
    for seed in (1, 1, 2):
        with open_llm(folder, seed=seed) as llm:
            runs.append([text(llm, "The sea", temperature=1.0, max_tokens=24) for _ in range(2)])
    assert runs[0] == runs[1]
    assert len({*runs[0], *runs[2]}) == 4


def test_n_choices_differ_and_share_the_prompt(llm: LLM) -> None:
    prompt = "Four ways to go on from a prompt that nobody has sent before."
    num_prompt = len(llm.encode(prompt))
    (result,) = llm.generate(prompt, n=4, temperature=1.0, max_tokens=12, seed=3, ignore_eos=True)
    assert [output.index for output in result.outputs] == [0, 1, 2, 3]
    assert len({output.text for output in result.outputs}) == 4
    for output in result.outputs[1:]:
        assert output.usage.computed_tokens <= 12  # the last prompt token and what was drawn, the last of it not
    assert result.outputs[0].usage.computed_tokens >= num_prompt
    (again,) = llm.generate(prompt, n=4, temperature=1.0, max_tokens=12, seed=3, ignore_eos=True)
    assert [output.text for output in again.outputs] == [output.text for output in result.outputs]


@pytest.mark.parametrize("length", [1, 3])
def test_a_stop_string_ends_the_text_before_it(llm: LLM, length: int) -> None:
    whole = text(llm, "The sea", GREEDY)
    stop = whole[8 : 8 + length]
    at = whole.index(stop)
    (result,) = llm.generate("The sea", temperature=0.0, max_tokens=24, ignore_eos=True, stop=stop)
    (output,) = result.outputs
    assert output.text == whole[:at]
    assert output.finish_reason is FinishReason.STOP
    assert output.stop_reason == stop
    assert output.usage.output_tokens == len(output.token_ids)
    kept = text(llm, "The sea", temperature=0.0, max_tokens=24, stop=(stop,), include_stop_str_in_output=True)
    assert kept == whole[: at + length]


def test_a_stop_token_ends_the_text(llm: LLM) -> None:
    ids = llm.generate("The sea", GREEDY)[0].outputs[0].token_ids
    stop = ids[5]
    (output,) = llm.generate("The sea", temperature=0.0, max_tokens=24, stop_token_ids=[stop])[0].outputs
    assert output.finish_reason is FinishReason.STOP
    assert output.stop_reason == stop
    assert output.token_ids == ids[: ids.index(stop) + 1]


def test_the_end_token_ends_the_text_unless_ignored(llm: LLM) -> None:
    forced = {"temperature": 0.0, "max_tokens": 5, "logit_bias": {END: 100.0}}
    (output,) = llm.generate("The sea", **forced)[0].outputs
    assert (output.finish_reason, output.text, output.token_ids) == (FinishReason.STOP, "", [END])
    (output,) = llm.generate("The sea", **forced, ignore_eos=True)[0].outputs
    assert (output.finish_reason, output.token_ids) == (FinishReason.LENGTH, [END] * 5)


def test_a_text_ends_at_the_models_length(llm: LLM) -> None:
    prompt = "x" * 200
    (output,) = llm.generate(prompt, temperature=0.0, max_tokens=None, ignore_eos=True)[0].outputs
    assert output.finish_reason is FinishReason.LENGTH
    assert len(llm.encode(prompt)) + len(output.token_ids) == llm.max_model_len == 256


def test_logprobs_come_with_every_token_and_for_the_prompt(llm: LLM) -> None:
    (result,) = llm.generate("The sea", temperature=0.0, max_tokens=6, ignore_eos=True, logprobs=2)
    entries = result.outputs[0].logprobs
    assert entries is not None
    assert [entry.token_id for entry in entries] == result.outputs[0].token_ids
    assert all(entry.rank == 1 and len(entry.top) == 2 and entry.logprob <= 0 for entry in entries)
    assert result.prompt_logprobs is None

    # a text that is scored, not continued: what was drawn above has the same log-probabilities as a prompt
    known = result.prompt_token_ids + result.outputs[0].token_ids
    (scored,) = llm.generate(known, max_tokens=1, prompt_logprobs=0)
    assert scored.prompt_logprobs is not None
    assert scored.prompt_logprobs[0] is None
    again = [entry for entry in scored.prompt_logprobs[-6:] if entry is not None]
    assert [entry.token_id for entry in again] == result.outputs[0].token_ids
    assert [entry.logprob for entry in again] == pytest.approx([entry.logprob for entry in entries], abs=1e-4)


def test_a_prefix_hit_is_told_in_usage_and_changes_no_text(llm: LLM) -> None:
    prompt = "A prefix of some length that nobody else has asked about before. " * 2
    (cold,) = llm.generate(prompt, GREEDY)[0].outputs
    (warm,) = llm.generate(prompt, GREEDY)[0].outputs
    num_prompt, block = len(llm.encode(prompt)), 16
    assert cold.usage.cached_tokens == 0
    assert warm.usage.cached_tokens == (num_prompt - 1) // block * block
    assert warm.usage.computed_tokens == cold.usage.computed_tokens - warm.usage.cached_tokens
    assert warm.token_ids == cold.token_ids


def test_a_smaller_priority_number_goes_first(folder: Path) -> None:
    with open_llm(folder, max_num_seqs=1, policy="priority") as llm:
        running = llm.stream("The first one", GREEDY)
        next(running)
        requests = [llm.prepare(prompt, GREEDY, priority=level)[0] for prompt, level in (("low", 5), ("high", 1))]
        ends: list[int] = []
        for request in requests:
            llm.client.submit(request)
        while llm.stats().num_running or llm.stats().num_waiting:
            ends += [o.request_id for o in llm.client.outputs() if o.finish is not None]
        assert ends.index(requests[1].request_id) < ends.index(requests[0].request_id)
        assert llm.generate("x", GREEDY, priority=3)[0].outputs[0].token_ids


def test_more_prompts_than_the_queue_holds_are_fed_to_it(folder: Path) -> None:
    with open_llm(folder, max_waiting_requests=2, max_num_seqs=2) as llm:
        results = llm.generate([f"prompt {i}" for i in range(9)], temperature=0.0, max_tokens=3, ignore_eos=True)
        assert [len(result.outputs[0].token_ids) for result in results] == [3] * 9
        assert len({result.prompt_token_ids[-1] for result in results}) == 9


def test_reference_and_fast_numerics_write_the_same_greedy_text(folder: Path, llm: LLM) -> None:
    fast = [result.outputs[0].token_ids for result in llm.generate(PROMPTS, GREEDY)]
    with open_llm(folder, numerics="reference") as reference:
        assert [result.outputs[0].token_ids for result in reference.generate(PROMPTS, GREEDY)] == fast


# --- stream


def test_a_stream_adds_up_to_what_generate_gives(llm: LLM) -> None:
    for params in (GREEDY, DRAWN):
        deltas = list(llm.stream("The sea", params))
        (output,) = llm.generate("The sea", params)[0].outputs
        assert "".join(delta.text for delta in deltas) == output.text
        assert [i for delta in deltas for i in delta.token_ids] == output.token_ids
        assert [delta.finish for delta in deltas[:-1]] == [None] * (len(deltas) - 1)
        assert deltas[-1].finish is output.finish_reason
        assert deltas[-1].usage is not None
        assert len(deltas) > 10


def test_leaving_a_stream_early_gives_its_blocks_back(llm: LLM) -> None:
    stream = llm.stream(PROMPTS[3], GREEDY)
    next(stream)
    assert llm.stats().kv.held > 0
    assert llm.stats().num_running == 1
    stream.close()  # type: ignore[attr-defined]  # a generator
    assert llm.stats().kv.held == 0
    assert llm.stats().num_running == 0
    assert len(text(llm, PROMPTS[3], GREEDY)) == 24


def test_streams_and_calls_may_be_interleaved(llm: LLM) -> None:
    whole = [text(llm, prompt, GREEDY) for prompt in PROMPTS[:2]]
    first, second = (llm.stream(prompt, GREEDY) for prompt in PROMPTS[:2])
    heads = [next(first).text, next(second).text]
    assert text(llm, PROMPTS[2], GREEDY)
    assert heads[0] + "".join(delta.text for delta in first) == whole[0]
    assert heads[1] + "".join(delta.text for delta in second) == whole[1]


def test_a_stream_has_one_choice(llm: LLM) -> None:
    with pytest.raises(RequestError, match="one choice"):
        llm.stream("x", n=2)


# --- chat


def test_chat_renders_the_template_and_answers(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "Hello"}]
    with open_llm(write_model(tmp_path / "chatty", chat_template=CHAT_TEMPLATE)) as llm:
        result = llm.chat(messages, GREEDY)
        assert result.prompt_token_ids == [START, *llm.encode("user: Hello")[1:], END]
        assert result.outputs[0].text == "".join(delta.text for delta in llm.chat_stream(messages, GREEDY))


def test_chat_without_a_template_names_the_option(llm: LLM, tmp_path: Path) -> None:
    for ask in (llm.chat, llm.chat_stream):
        with pytest.raises(ConfigError, match="--chat-template"):
            ask([{"role": "user", "content": "Hello"}])
    with pytest.raises(ConfigError, match="--chat-template"):
        llm.require_chat_template()
    file = tmp_path / "template.jinja"
    file.write_text(CHAT_TEMPLATE)
    with open_llm(llm.model_path, chat_template=str(file)) as chatty:
        assert chatty.chat([{"role": "user", "content": "Hello"}], GREEDY).outputs


# --- what is wrong


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ("x" * 256, "no room for an output token"),
        ("x" * 100_000, "too long"),
        ([], "empty"),
        ([3, 4, 9999], "outside the vocabulary"),
        ([3, -1], "outside the vocabulary"),
        ([3, 4.5], "a prompt is text"),
        ([True, False], "a prompt is text"),
        (torch.ones(2, 3, dtype=torch.int64).numpy(), "a prompt is text"),
        (b"bytes", "a prompt is text"),
        (5, "a prompt is text"),
        (None, "a prompt is text"),
        ({"role": "user"}, "a prompt is text"),
    ],
)
def test_a_bad_prompt_is_refused_and_the_good_ones_beside_it_leave_nothing_open(
    llm: LLM, prompt: Any, words: str
) -> None:
    with pytest.raises(RequestError, match=words):
        llm.generate(["good", prompt, "good too"], GREEDY)
    assert llm.stats().num_waiting == 0
    with pytest.raises(RequestError, match=words):
        list(llm.stream(prompt, GREEDY))
    if not isinstance(prompt, list) or prompt:  # an empty list is no prompt at all
        with pytest.raises(RequestError, match=words):
            llm.generate(prompt, GREEDY)
    assert len(text(llm, "fine", GREEDY)) == 24


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("temprature", 1.0, "did you mean temperature"),
        ("max_token", 1, "did you mean max_tokens"),
        ("zzz", 1, "one of n, max_tokens"),
        ("max_tokens", -1, "1 to "),
        ("max_tokens", "8", "wrong type"),
        ("n", 1.5, "wrong type"),
        ("top_p", 0.0, "above 0"),
        ("stop", ("",), "non-empty strings"),
        ("stop_token_ids", (99_999,), "outside the vocabulary"),
    ],
)
def test_a_bad_sampling_parameter_says_what_would_be_right(llm: LLM, name: str, value: Any, words: str) -> None:
    for call in (llm.generate, llm.stream):
        with pytest.raises(RequestError, match=words):
            call("x", **{name: value})


def test_params_of_another_type_are_refused(llm: LLM) -> None:
    for params in ({"max_tokens": 3}, 5, ["a"]):
        with pytest.raises(RequestError, match="params"):
            llm.generate("x", params)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="not both"):
        llm.generate("x", GREEDY, max_tokens=3)


def test_an_unknown_option_names_the_nearest(folder: Path) -> None:
    with pytest.raises(ConfigError, match="max_num_seqs"):
        LLM(str(folder), max_num_seq=3)
    with pytest.raises(RequestError, match="not both"):
        LLM(str(folder), config=EngineConfig())


def test_a_missing_model_is_a_model_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="nowhere"):
        LLM(str(tmp_path / "nowhere"))


# --- the end


def test_a_closed_engine_says_so(folder: Path) -> None:
    llm = open_llm(folder)
    stream = llm.stream("The sea", GREEDY)
    next(stream)
    llm.close()
    llm.close()
    with pytest.raises(EngineError, match="closed"):
        list(stream)
    with pytest.raises(EngineError, match="closed"):
        llm.generate("x", GREEDY)


def test_nobody_waits_for_company_offline_unless_asked_to(folder: Path) -> None:
    with open_llm(folder, profile="batch") as llm:
        assert llm.knobs.max_wait_ms == 0.0
    with open_llm(folder, profile="batch", max_wait_ms=5.0) as llm:
        assert llm.knobs.max_wait_ms == 5.0


@pytest.mark.skipif(bool(why_not()), reason=why_not())
@pytest.mark.parametrize(("numerics", "inside"), [("fast", (1, 3)), ("reference", (3, 3))])
def test_around_a_native_step_torch_computes_alone(folder: Path, numerics: str, inside: tuple[int, int]) -> None:
    before, seen = torch.get_num_threads(), set[tuple[int, int]]()
    try:
        with open_llm(folder, numerics=numerics, num_threads=3) as llm:
            runner = llm._engine.built.core.executor.runner  # type: ignore[attr-defined]
            runner.watch = lambda *_: seen.add((torch.get_num_threads(), kernel_threads()))
            text(llm, PROMPTS[0], max_tokens=4)
            assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    assert seen == {inside}
