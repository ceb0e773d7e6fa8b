"""Request bodies: whatever is wrong in whatever field is an error that names the field, and nothing else."""

import json
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import RequestError
from paceline.server.api.protocol import ChatRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest
from paceline.server.api.protocol import body as body_module
from paceline.server.api.protocol.body import MAX_DEPTH, check, names_of, parse, parse_json, request_schema

CHAT = {"messages": [{"role": "user", "content": "hi"}]}
BASES = {
    ChatRequest: CHAT,
    CompletionRequest: {"prompt": "hi"},
    TokenizeRequest: {"prompt": "hi"},
    DetokenizeRequest: {"tokens": [1]},
}
# Every kind of JSON value; a field accepts few of them.
VALUES = [
    True,
    7,
    -7,
    2**63,
    10**40,
    0.5,
    -1e300,
    "",
    "x",
    "x" * 300,
    [],
    [1],
    ["x"],
    [None],
    [[1]],
    {},
    {"x": 1},
    {"1": "x"},
]
IDLE = {"user", "safety_identifier", "metadata", "store", "service_tier", "prompt_cache_key", "prompt_cache_retention"}


def use(model, body):
    """All that an endpoint does with a body before it knows a prompt."""
    parsed = parse(json.dumps(body).encode(), model)
    if isinstance(parsed, ChatRequest):
        parsed.template_options()
    if isinstance(parsed, (ChatRequest, CompletionRequest)):
        return parsed.sampling()
    if isinstance(parsed, TokenizeRequest):
        parsed.check()
    return parsed


def shown(value):
    return json.dumps(value)


def error_of(model, body):
    try:
        use(model, body)
    except RequestError as error:
        return error
    return None


@pytest.mark.parametrize("model", BASES, ids=lambda m: m.__name__)
def test_every_wrong_value_of_every_field_is_an_error_that_names_it(model):
    for field in names_of(model):
        errors = {shown(value): error_of(model, {**BASES[model], field: value}) for value in VALUES}
        refused = {value: error for value, error in errors.items() if error is not None}
        assert len(refused) >= 5, f"{field} takes nearly anything"
        also = {"min_tokens", "max_tokens", "prompt", "add_generation_prompt", model.ALIASES.get(field)}
        for value, error in refused.items():
            assert error.param.split(".")[0].split("[")[0] in {field, *also}, (field, value, error)
            assert len(str(error)) < 1000


@pytest.mark.parametrize("model", BASES, ids=lambda m: m.__name__)
def test_null_means_not_given(model):
    for field in names_of(model):
        if field not in BASES[model]:
            use(model, {**BASES[model], field: None})


def test_fields_that_describe_the_caller_are_taken():
    given = {"user": "u", "safety_identifier": "s", "metadata": {"a": "b"}, "store": False, "service_tier": "auto"}
    use(ChatRequest, {**CHAT, **given, "prompt_cache_key": "k", "prompt_cache_retention": "24h"})
    assert set(names_of(CompletionRequest)) >= IDLE


@pytest.mark.parametrize(
    ("field", "near"),
    [
        ("max_token", "max_tokens"),
        ("temprature", "temperature"),
        ("topp", "top_p"),
        ("response_formats", "response_format"),
    ],
)
def test_unknown_fields_name_the_nearest(field, near):
    with pytest.raises(RequestError, match=f"unknown field '{field}'.*did you mean {near}"):
        use(ChatRequest, {**CHAT, field: 1})


def test_unknown_fields_within_parts_too():
    with pytest.raises(RequestError, match="include_usage") as caught:
        use(ChatRequest, {**CHAT, "stream": True, "stream_options": {"include_usages": True}})
    assert caught.value.param == "stream_options.include_usages"
    with pytest.raises(RequestError, match="did you mean ttft_ms") as caught:
        use(ChatRequest, {**CHAT, "slo": {"ttft": 1}})
    assert caught.value.param == "slo.ttft"


def test_fields_that_are_refused_within_parts_too():
    """Clients of OpenAI turn the padding off; we have none to turn on."""
    use(ChatRequest, {**CHAT, "stream": True, "stream_options": {"include_obfuscation": False}})
    with pytest.raises(RequestError, match="carry no padding") as caught:
        use(ChatRequest, {**CHAT, "stream": True, "stream_options": {"include_obfuscation": True}})
    assert caught.value.param == "stream_options.include_obfuscation"


@pytest.mark.parametrize("part", [None, "stream_options", "slo"])
def test_the_first_unknown_field_is_enough(part, monkeypatch):
    """A body of unknown fields costs one look, and a long name is not compared in full."""
    looks = []
    find = body_module.difflib.get_close_matches
    monkeypatch.setattr(
        body_module.difflib,
        "get_close_matches",
        lambda name, *rest, **how: looks.append(name) or find(name, *rest, **how),
    )
    many = {"x" * 5000 + str(index): 1 for index in range(1000)}
    with pytest.raises(RequestError, match="unknown field") as caught:
        use(ChatRequest, {**CHAT, "stream": True, **({part: many} if part else many)})
    assert looks == ["x" * 80]
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("functions", [{"name": "f"}], "send those"),
        ("function_call", "auto", "send that"),
        ("reasoning_effort", "high", "chat_template_kwargs"),
        ("guided_decoding_backend", "outlines", "llguidance"),
        ("modalities", ["text", "audio"], "answers are text"),
        ("use_beam_search", True, "beam search"),
        ("chat_template", "{{ x }}", "not run"),
        ("best_of", 2, "n choices"),
    ],
)
def test_what_is_known_and_cannot_be_served_is_refused_with_the_reason(field, value, words):
    with pytest.raises(RequestError, match=f"{field} is not supported.*{words}") as caught:
        use(ChatRequest, {**CHAT, field: value})
    assert caught.value.param == field


def test_refused_fields_may_ask_for_nothing():
    use(
        ChatRequest,
        {**CHAT, "tools": [], "tool_choice": "none", "response_format": {"type": "text"}, "modalities": ["text"]},
    )
    use(CompletionRequest, {"prompt": "a", "suffix": "", "best_of": 3, "n": 3, "length_penalty": 1.0})


def test_suffix_and_best_of_of_completions():
    with pytest.raises(RequestError, match="suffix is not supported"):
        use(CompletionRequest, {"prompt": "a", "suffix": "b"})
    with pytest.raises(RequestError, match="best_of is not supported unless it equals n"):
        use(CompletionRequest, {"prompt": "a", "best_of": 3})


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"nonsense",
        b'{"prompt": "a"} x',
        b'\xff\xfe{"a": 1}',
        b'{"prompt": "\xff"}',
        b'{"prompt": "\\ud800"}',
        b'{"prompt": "a", "temperature": NaN}',
        b'{"prompt": "a", "temperature": Infinity}',
        b'{"prompt": "a", "temperature": 1e999}',
        b'{"prompt": "a", "seed": ' + b"9" * 10_000 + b"}",
        b"[" * 100_000,
        b'{"a":' * 5_000 + b"1" + b"}" * 5_000,
        b"[]",
        b'"text"',
        b"null",
    ],
    ids=range(16),
)
def test_bodies_that_are_no_json_object_are_refused(data):
    with pytest.raises(RequestError):
        parse_json(data)


def test_nesting_is_bounded():
    deep = {"a": 1}
    for _ in range(MAX_DEPTH - 1):
        deep = {"a": deep}
    assert parse_json(msgspec.json.encode(deep)) == deep
    with pytest.raises(RequestError, match="too deep"):
        parse_json(msgspec.json.encode({"a": deep}))


@given(st.binary(max_size=200))
def test_any_bytes_give_an_object_or_an_error(data):
    with suppress(RequestError):
        assert isinstance(parse_json(data), dict)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


@given(st.sampled_from(list(BASES)), st.data())
def test_any_values_give_a_body_or_an_error(model, data):
    names = st.sampled_from(names_of(model)) | st.text(max_size=12)
    extra = data.draw(st.dictionaries(names, JSON, max_size=4))
    with suppress(RequestError):
        parsed = check({**BASES[model], **extra}, model)
        if isinstance(parsed, (ChatRequest, CompletionRequest)):
            parsed.sampling()
        if isinstance(parsed, ChatRequest):
            parsed.template_options()
            parsed.offer()


def test_class_is_another_name_of_service_class():
    assert check({**CHAT, "class": "batch"}, ChatRequest).service_class == "batch"
    with pytest.raises(RequestError, match="one field"):
        check({**CHAT, "class": "batch", "service_class": "batch"}, ChatRequest)


def test_values_become_sampling_parameters():
    body = {
        **CHAT,
        "n": 2,
        "max_completion_tokens": 9,
        "min_tokens": 1,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 5,
        "min_p": 0.1,
        "typical_p": 0.8,
        "presence_penalty": 0.1,
        "frequency_penalty": -0.1,
        "repetition_penalty": 1.1,
        "logit_bias": {"5": -100, "6": 1.5},
        "seed": -1,
        "stop": "end",
        "stop_token_ids": [3],
        "include_stop_str_in_output": True,
        "ignore_eos": True,
        "logprobs": True,
        "top_logprobs": 2,
        "logprob_token_ids": [9],
        "prompt_logprobs": 1,
    }
    sampling = use(ChatRequest, body)
    assert (sampling.n, sampling.max_tokens, sampling.min_tokens, sampling.seed) == (2, 9, 1, 2**64 - 1)
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.5, 0.9, 5, 0.1)
    assert (sampling.typical_p, sampling.repetition_penalty) == (0.8, 1.1)
    assert sampling.logit_bias == {5: -100, 6: 1.5}
    assert (sampling.stop, sampling.stop_token_ids) == (("end",), (3,))
    assert sampling.include_stop_str_in_output
    assert sampling.ignore_eos
    assert (sampling.logprobs, sampling.prompt_logprobs, sampling.logprob_token_ids) == (2, 1, (9,))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_completion_tokens"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "prompt_logprobs": 1}, "prompt_logprobs"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"max_chars": 10**9}}, "chat_template_kwargs"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
        ({"logprob_token_ids": [1]}, "logprob_token_ids"),
    ],
)
def test_fields_that_do_not_go_together(fields, param):
    with pytest.raises(RequestError) as caught:
        use(ChatRequest, {**CHAT, **fields})
    assert caught.value.param == param


def test_a_million_wrong_values_cost_one_error():
    with pytest.raises(RequestError, match="token id"):
        use(ChatRequest, {**CHAT, "stop_token_ids": ["x"] * 1_000_000})
    with pytest.raises(RequestError, match="too many"):
        use(ChatRequest, {**CHAT, "logit_bias": {str(i): "x" for i in range(100_000)}})
    with pytest.raises(RequestError, match="too many"):
        use(ChatRequest, {"messages": [None] * 100_000})


def test_prompts_times_choices_are_bounded():
    """Each is a request at the engine: one small body must not fill its queue."""
    use(CompletionRequest, {"prompt": ["a"] * 256, "n": 4})
    with pytest.raises(RequestError, match="at most 1024 in all") as caught:
        use(CompletionRequest, {"prompt": ["a"] * 256, "n": 5})
    assert caught.value.param == "n"


def test_every_field_is_documented():
    page = (Path(__file__).parents[4] / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
    known = {name for model in BASES for name in names_of(model)}
    missing = sorted(name for name in known if f"`{name}`" not in page)
    assert not missing


def test_schemas_have_no_references_and_list_every_field():
    for model in BASES:
        schema = request_schema(model)["requestBody"]["content"]["application/json"]["schema"]
        assert "$ref" not in json.dumps(schema)
        assert set(schema["properties"]) == set(model.model_fields)
