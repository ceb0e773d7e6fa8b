from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.pure.lab.workload.content.counters import ByteCounter, GluedCounter, NoSystemCounter
from tests.pure.lab.workload.specs import spec_of

from paceline.contracts.workload import Endpoint, PlannedRequest, RenderedPrompt
from paceline.errors import ConfigError, LabError
from paceline.lab.workload import Content, EstimateCounter, Plan, TokenCounter, WordCounter, WorkloadSpec, make_plan
from paceline.lab.workload.content.counter import texts_of

WIDE = {"kind": "uniform", "min": 1, "max": 400}


def prepared(
    spec: WorkloadSpec, *, seed: int = 0, salt: str = "s", counter: TokenCounter | None = None
) -> tuple[Content, Plan]:
    plan = make_plan(spec, seed=seed)
    content = Content(spec, seed, salt, counter or WordCounter(chat_overhead=3))
    asyncio.run(content.prepare(plan.requests))
    return content, plan


def words(prompt: RenderedPrompt) -> list[str]:
    return " ".join(texts_of(prompt)).split()


def counted(prompt: RenderedPrompt, counter: TokenCounter) -> int:
    if prompt.messages is not None:
        return asyncio.run(counter.count_chat(prompt.messages))
    return asyncio.run(counter.count(list(texts_of(prompt))))[0]


SHAPES: list[dict[str, Any]] = [
    {},
    {"content": "synthetic"},
    {"endpoint": "completions"},
    {"prefix": {"groups": 3, "tokens": 50}},
    {"prefix": {"groups": 1, "tokens": 300, "kind": "tools"}},
    {"endpoint": "completions", "content": "synthetic", "prefix": {"groups": 3, "tokens": 50}},
    {"documents": {"pool": 5, "per_request": 2, "tokens": 40}},
    {"content": "structured"},
]


@pytest.mark.parametrize("shape", SHAPES)
@given(seed=st.integers(0, 10**6))
@settings(max_examples=4)
def test_prompts_have_exactly_the_asked_tokens(shape: dict[str, Any], seed: int) -> None:
    counter = WordCounter(chat_overhead=3)
    content, plan = prepared(spec_of({"input": WIDE, **shape}, duration_s=10), seed=seed, counter=counter)
    assert content.exact
    for request in plan.requests:
        prompt = content.render(request)
        # room for the template, the tool's sentence, and at least a word
        if request.num_input_tokens - request.num_prefix_tokens >= 32:
            assert prompt.num_tokens == request.num_input_tokens
        assert prompt.num_tokens == counted(prompt, counter)


@pytest.mark.parametrize("counter", [NoSystemCounter(), GluedCounter(), ByteCounter()])
@pytest.mark.parametrize("shape", [{}, {"endpoint": "completions"}, {"prefix": {"groups": 2, "tokens": 64}}])
def test_other_tokenizers_get_exact_prompts_too(counter: TokenCounter, shape: dict[str, Any]) -> None:
    spec = spec_of({"input": {"kind": "uniform", "min": 200, "max": 700}, **shape}, duration_s=6)
    content, plan = prepared(spec, counter=counter)
    for request in plan.requests:
        assert counted(content.render(request), counter) == request.num_input_tokens


def test_rendering_repeats_itself_in_another_process_too() -> None:
    spec = spec_of({"prefix": {"groups": 3, "tokens": 50}, "turns": {"max": 2}})
    (first, plan), (second, _) = prepared(spec), prepared(spec)
    backwards = {r.id: second.render(r) for r in reversed(plan.requests)}
    assert [first.render(r) for r in plan.requests] == [backwards[r.id] for r in plan.requests]


@pytest.mark.parametrize("shape", SHAPES)
def test_salts_and_seeds_make_every_prompt_new(shape: dict[str, Any]) -> None:
    """No two prompts share their first words: neither within a run nor between runs (but for groups and passages)."""
    spec = spec_of({**shape, "input": 64}, duration_s=20)
    starts: list[tuple[str, ...]] = []
    for seed, salt in ((0, "a"), (0, "b"), (1, "a")):
        content, plan = prepared(spec, seed=seed, salt=salt)
        firsts = {tuple(words(content.render(r))[:8]) for r in plan.requests}
        if "prefix" not in shape and "documents" not in shape:
            assert len(firsts) == len(plan.requests)
        starts += firsts
    assert len(set(starts)) == len(starts)
    assert len({start[:4] for start in starts}) == len(starts)


@pytest.mark.parametrize("shape", [SHAPES[3], SHAPES[4], SHAPES[5]])
def test_a_group_shares_exactly_its_prefix(shape: dict[str, Any]) -> None:
    content, plan = prepared(spec_of({"input": 64, **shape}))
    by_group: dict[int | None, list[list[str]]] = {}
    for request in plan.requests:
        by_group.setdefault(request.prefix_group, []).append(words(content.render(request)))
    num = shape["prefix"]["tokens"]
    for prompts in by_group.values():
        assert len(prompts) > 10
        assert len({tuple(p[:num]) for p in prompts}) == 1
        assert len({tuple(p[num : num + 4]) for p in prompts}) == len(prompts)
    assert len({tuple(prompts[0][:4]) for prompts in by_group.values()}) == len(by_group)


def test_passages_are_the_same_wherever_they_stand() -> None:
    content, plan = prepared(spec_of({"documents": {"pool": 4, "per_request": 2, "tokens": 40}}))
    texts: dict[int, set[tuple[str, ...]]] = {}
    for request in plan.requests:
        seen = words(content.render(request))
        for place, passage in enumerate(request.shared):
            texts.setdefault(passage, set()).add(tuple(seen[40 * place : 40 * place + 40]))
    assert len(texts) == 4
    assert all(len(versions) == 1 for versions in texts.values())
    assert len(set.union(*texts.values())) == 4


def test_token_ids_are_exact_without_a_counter() -> None:
    shape = {"endpoint": "token_ids", "content": "token_ids", "prefix": {"groups": 2, "tokens": 30}}
    spec = spec_of({**shape, "token_id_range": [10, 5000]})
    plan = make_plan(spec)
    content = Content(spec, 0, "s")
    seen: dict[int | None, set[tuple[int, ...]]] = {}
    for request in plan.requests:
        ids = content.render(request).token_ids
        assert ids is not None
        assert len(ids) == request.num_input_tokens == 94
        assert 10 <= min(ids) <= max(ids) < 5000
        seen.setdefault(request.prefix_group, set()).add(tuple(ids[:30]))
    assert {group: len(starts) for group, starts in seen.items()} == {0: 1, 1: 1}
    assert Content(spec, 0, "t").render(plan.requests[0]) != content.render(plan.requests[0])


def test_later_turns_come_after_the_history() -> None:
    content, plan = prepared(spec_of({"turns": {"max": 2}}))
    first, second = plan.requests[:2]
    history = [*(content.render(first).messages or []), {"role": "assistant", "content": "An answer."}]
    prompt = content.render(second, history)
    assert prompt.messages is not None
    assert prompt.messages[:-1] == history
    assert prompt.messages[-1]["role"] == "user"
    assert prompt.num_tokens is None
    # the word counter adds 3 tokens for the question and 3 for the answer: half of the pair's is the question's
    assert len(prompt.messages[-1]["content"].split()) + 3 == second.num_input_tokens


def test_natural_prompts_are_sentences_and_end_with_a_task() -> None:
    content, plan = prepared(spec_of({"input": 200}))
    for request in plan.requests[:20]:
        system, user = content.render(request).messages or [{}, {}]
        assert (system["role"], user["role"]) == ("system", "user")
        assert user["content"].endswith((".", "?"))
        assert user["content"].count(".") >= 6
        assert "  " not in user["content"]


def test_tools_and_schemas_go_with_their_request() -> None:
    content, plan = prepared(spec_of({"content": "tools"}))
    names = set()
    for request in plan.requests:
        prompt = content.render(request)
        wanted = prompt.body["tool_choice"]["function"]["name"]
        offered = {t["function"]["name"]: t["function"]["parameters"] for t in prompt.body["tools"]}
        assert prompt.schema == offered[wanted]
        assert prompt.num_tokens is None, "what tools add is not counted"
        assert not request.exact_output
        names.add(wanted)
    assert len(names) >= 6
    content, plan = prepared(spec_of({"content": "structured"}))
    for request in plan.requests:
        prompt = content.render(request)
        assert prompt.body["response_format"]["json_schema"]["schema"] == prompt.schema


def test_schemas_are_schemas() -> None:
    from jsonschema import Draft202012Validator

    from paceline.lab.workload.content.tools import SCHEMAS, TOOLS

    for form in (*TOOLS, *SCHEMAS):
        Draft202012Validator.check_schema(form.schema)


def test_estimates_never_claim_a_count() -> None:
    content, plan = prepared(spec_of(), counter=EstimateCounter())
    assert not content.exact
    prompt = content.render(plan.requests[0])
    assert prompt.num_tokens is None
    assert 20 <= len(words(prompt)) <= 110


def test_a_users_prompts_are_sent_as_they_are(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(
        '{"prompt": "one"}\n{"messages": [{"role": "system", "content": "x"}, {"role": "user", "content": "two"}]}\n'
    )
    spec = spec_of({"content": "file", "file": str(file)})
    content, plan = prepared(spec)
    seen = {tuple(texts_of(content.render(r))) for r in plan.requests}
    assert seen == {("one",), ("x", "two")}
    assert not content.salted
    history = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "An answer."}]
    longer = next(m for r in plan.requests if len(m := content.render(r, history).messages or []) == 3)
    assert longer[:2] == history
    assert longer[2]["role"] == "user"
    assert {len(content.render(r, history).messages or []) for r in plan.requests} == {3}
    file.write_text('{"question": "secret"}\n')
    with pytest.raises(ConfigError, match="line 1 has no prompt") as caught:
        Content(spec, 0, "s")
    assert "secret" not in str(caught.value)


def test_unprepared_content_says_so() -> None:
    spec = spec_of()
    with pytest.raises(LabError, match="not prepared"):
        Content(spec, 0, "s").render(make_plan(spec).requests[0])


def test_what_was_measured_is_used_again() -> None:
    class Counting(WordCounter):
        calls = 0

        async def count(self, texts: list[str]) -> list[int]:
            self.calls += 1
            return await super().count(texts)

        async def count_chat(self, messages: list[dict[str, Any]]) -> int:
            self.calls += 1
            return await super().count_chat(messages)

    spec, counter = spec_of(), Counting(chat_overhead=3)
    first, plan = prepared(spec, counter=counter)
    before = counter.calls
    second = Content(spec, 0, "s", counter)
    asyncio.run(second.prepare(plan.requests, like=first))
    assert counter.calls == before > 0
    assert [second.render(r) for r in plan.requests] == [first.render(r) for r in plan.requests]
    # one that had no chat to measure leaves the template to be measured
    texts, _ = prepared(spec_of({"endpoint": "completions"}), counter=counter)
    third = Content(spec, 0, "s", counter)
    asyncio.run(third.prepare(plan.requests, like=texts))
    assert third.render(plan.requests[0]) == first.render(plan.requests[0])


def test_a_server_that_counts_nonsense_is_refused() -> None:
    class Broken(WordCounter):
        async def count(self, texts: list[str]) -> list[int]:
            return [0] * len(texts)

    spec = spec_of()
    with pytest.raises(LabError, match="make no sense"):
        asyncio.run(Content(spec, 0, "s", Broken()).prepare())


def test_any_request_of_a_trace_is_rendered() -> None:
    """Passages that cover the whole prompt: it still has a user's word, and its length."""
    content, _ = prepared(spec_of({"input": 64}))
    request = PlannedRequest(id=0, stream="default", num_input_tokens=700, shared=(4, 5), num_shared_tokens=512)
    prompt = content.render(request)
    assert prompt.num_tokens == 700
    again = content.render(
        PlannedRequest(id=1, stream="default", num_input_tokens=900, shared=(4, 6), num_shared_tokens=512)
    )
    assert words(prompt)[:512] == words(again)[:512]
    assert words(prompt)[512:520] != words(again)[512:520]
    assert prompt.messages is not None
    assert prompt.messages[-1]["role"] == "user"
    assert request.endpoint is Endpoint.CHAT
