"""Bodies of /v1/responses, /v1/messages and /v1/embeddings: what is wrong is named in their own words, and what is
right becomes the chat that it asks for."""

import json
from contextlib import suppress
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.errors import RequestError
from paceline.server.api.protocol import ChatRequest, CountRequest, EmbeddingsRequest, MessagesRequest, ResponsesRequest
from paceline.server.api.protocol.body import check, names_of, parse, request_schema
from paceline.server.api.protocol.renamed import in_words_of
from paceline.server.api.protocol.shared import SharedFields

USER = [{"role": "user", "content": "hi"}]
BASES = {
    ResponsesRequest: {"input": "hi"},
    MessagesRequest: {"messages": USER, "max_tokens": 8},
    CountRequest: {"messages": USER},
    EmbeddingsRequest: {"input": "hi"},
}
VALUES = [True, 7, -7, 2**63, 0.5, "", "x", "x" * 300, [], [1], ["x"], [None], [[1]], {}, {"x": 1}, {"1": "x"}]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def use(model, body):
    """All that an endpoint does with a body before it knows a prompt."""
    parsed = parse(json.dumps(body).encode(), model)
    if isinstance(parsed, SharedFields):
        with in_words_of(parsed.NAMES):
            parsed.chat.sampling()
            parsed.chat.template_options()
            parsed.chat.structured_output()
            parsed.chat.offer()
    return parsed


def error_of(model, body):
    with pytest.raises(RequestError) as caught:
        use(model, body)
    return caught.value


@pytest.mark.parametrize("model", BASES, ids=lambda m: m.__name__)
def test_every_wrong_value_of_every_field_is_an_error_that_names_it(model):
    for field in names_of(model):
        refused = {}
        for value in VALUES:
            try:
                use(model, {**BASES[model], field: value})
            except RequestError as error:
                refused[repr(value)] = error
        assert len(refused) >= 5, f"{field} takes nearly anything"
        also = {"min_tokens", "max_tokens", "max_output_tokens", model.ALIASES.get(field)}
        for value, error in refused.items():
            assert error.param.split(".")[0].split("[")[0] in {field, *also}, (field, value, error)
            assert len(str(error)) < 1000


@pytest.mark.parametrize("model", BASES, ids=lambda m: m.__name__)
def test_null_means_not_given(model):
    for field in names_of(model):
        if field not in BASES[model]:
            use(model, {**BASES[model], field: None})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
WORDS = st.sampled_from(
    [
        *("type", "role", "content", "text", "name", "call_id", "arguments", "output", "id", "input", "tool_use_id"),
        *("message", "function_call", "function_call_output", "reasoning", "input_text", "reasoning_text"),
        *("tool_use", "tool_result", "thinking", "user", "assistant", "function", "custom", "input_schema"),
    ]
)
PARTS = st.lists(st.dictionaries(WORDS, WORDS | JSON | st.lists(st.dictionaries(WORDS, WORDS), max_size=2)), max_size=3)


@settings(max_examples=30)
@given(st.sampled_from(list(BASES)), st.data())
def test_any_values_give_a_body_or_an_error(model, data):
    extra = data.draw(st.dictionaries(st.sampled_from(names_of(model)), JSON | PARTS, max_size=4))
    with suppress(RequestError):
        use(model, {**BASES[model], **extra})


def test_every_field_is_documented():
    page = (Path(__file__).parents[4] / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
    known = {name for model in BASES for name in names_of(model)}
    assert not sorted(name for name in known if f"`{name}`" not in page)


def test_schemas_have_no_references_and_list_every_field():
    for model in BASES:
        schema = request_schema(model)["requestBody"]["content"]["application/json"]["schema"]
        assert "$ref" not in json.dumps(schema)
        assert set(schema["properties"]) == set(model.model_fields)


def test_a_field_is_renamed_where_it_is_meant():
    names = MessagesRequest.NAMES
    for raised, message, fix in (
        (("a stop string is empty", "leave stop out"), "a stop string is empty", "leave stop_sequences out"),
        (
            ("stop is of the wrong kind", "use stop_token_ids"),
            "stop_sequences is of the wrong kind",
            "use stop_token_ids",
        ),
    ):
        with pytest.raises(RequestError) as caught, in_words_of(names):
            raise RequestError(raised[0], param="stop", fix=raised[1])
        assert (caught.value.message, caught.value.fix, caught.value.param) == (message, fix, "stop_sequences")


def test_schemas_allow_what_is_taken():
    taken = {"cache_control": {"type": "ephemeral"}, "strict": True}
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "x"}
    turns = [*USER, {"role": "assistant", "content": [thought]}, *USER]
    part = {"type": "reasoning_text", "text": "Hm."}
    items = [
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [part]},
        {"role": "user", "content": "hi"},
    ]
    for model, body in (
        (MessagesRequest, {"tools": [{"name": "a/" * 60, "input_schema": SCHEMA, **taken}], "messages": turns}),
        (ResponsesRequest, {"tools": [{"type": "function", "name": "a/" * 60, "async": False}], "input": items}),
    ):
        body = {**BASES[model], **body}
        use(model, body)
        schema = request_schema(model)["requestBody"]["content"]["application/json"]["schema"]
        jsonschema.Draft202012Validator(schema).validate(body)


# --- responses


def test_items_become_the_messages_of_a_chat():
    items = [
        {"role": "developer", "content": "Be brief."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Weather?"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Ask."}]},
        {
            "type": "message",
            "id": "msg_1",
            "status": "completed",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "I look.", "annotations": [], "logprobs": []}],
        },
        {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "weather", "arguments": '{"city": "Rome"}'},
        {"type": "function_call", "call_id": "c2", "name": "weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "rain"}]},
        {"role": "assistant", "content": "Sunny."},
        {"role": "assistant", "content": "And rain."},
    ]
    chat = use(ResponsesRequest, {"instructions": "You help.", "input": items}).chat

    def call(number, arguments):
        return {"id": f"c{number}", "type": "function", "function": {"name": "weather", "arguments": arguments}}

    assert chat.messages == [
        {"role": "system", "content": "You help."},
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Weather?"}]},
        {
            "role": "assistant",
            "reasoning_content": "Ask.",
            "content": "I look.",
            "tool_calls": [call(1, {"city": "Rome"}), call(2, {})],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
        {"role": "tool", "tool_call_id": "c2", "content": "rain"},
        {"role": "assistant", "content": "Sunny."},
        {"role": "assistant", "content": "And rain."},
    ]


def test_a_response_asks_for_the_same_as_a_chat_would():
    tool = {"type": "function", "name": "weather", "description": "d", "parameters": SCHEMA, "strict": True}
    body = use(
        ResponsesRequest,
        {
            "input": "hi",
            "max_output_tokens": 9,
            "temperature": 0.5,
            "seed": -1,
            "stop": "end",
            "top_k": 3,
            "stop_token_ids": [3],
            "service_class": "batch",
            "slo": {"ttft_ms": 5},
            "cache_salt": "s",
            "tools": [tool],
            "tool_choice": {"type": "function", "name": "weather"},
            "parallel_tool_calls": False,
        },
    )
    sampling = body.chat.sampling()
    assert (sampling.max_tokens, sampling.temperature, sampling.seed, sampling.top_k) == (9, 0.5, 2**64 - 1, 3)
    assert (sampling.stop, sampling.stop_token_ids) == (("end",), (3,))
    assert (body.chat.service_class, body.chat.slo.ttft_ms, body.chat.cache_salt) == ("batch", 5.0, "s")
    offer = body.chat.offer()
    assert (offer.name, offer.required, offer.parallel) == ("weather", True, False)
    assert (offer.tools[0].parameters, offer.tools[0].strict) == (SCHEMA, True)
    wanted = {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True}}
    assert use(ResponsesRequest, {"input": "hi", "text": wanted}).chat.structured_output() is not None
    assert use(ResponsesRequest, {"input": "hi", "text": {"format": {"type": "text"}}}).chat.structured_output() is None
    wants = use(ResponsesRequest, {"input": "hi", "include": ["message.output_text.logprobs"], "top_logprobs": 2})
    assert wants.chat.sampling().logprobs == 2


ITEM = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"input": []}, "input", "no item"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type", "nothing is stored"),
        ({"input": [{"type": "web_search_call", "id": "x"}]}, "input[0].type", "function_call"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role", "user"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0]", "text only"),
        ({"input": [{"role": "user", "content": "x", "contents": "y"}]}, "input[0].contents", "did you mean content"),
        ({"input": [{**ITEM, "arguments": {}}]}, "input[0].arguments", "wrong kind"),
        ({"input": [{**ITEM, "arguments": '{"a":' * 600 + "1" + "}" * 600}]}, "input", "nest too deep"),
        ({"input": [{**ITEM, "call_id": None}]}, "input[0].call_id", "is missing"),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id", "is missing"),
        ({"previous_response_id": "resp_1"}, "previous_response_id", "send the items of earlier turns"),
        ({"store": True}, "store", "nothing is stored"),
        ({"background": True}, "background", "waited for"),
        ({"max_output_tokens": 0}, "max_output_tokens", "max_output_tokens"),
        ({"max_tokens": 3}, "max_tokens", "max_output_tokens"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", "the server would have to run"),
        ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name", "name"),
        ({"tools": [{"type": "function", "name": "a", "defer_loading": True}]}, "tools[0].defer_loading", "not supp"),
        ({"tool_choice": {"type": "function", "name": "f"}}, "tool_choice", "needs tools"),
        ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice", "wrong kind"),
        ({"text": {"format": {"type": "json_schema", "schema": {"enum": ["x" * 300_000]}}}}, "text.format", "too long"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type", "wrong kind"),
        ({"text": {"verbosity": "high"}}, "text.verbosity", "no such setting"),
        ({"reasoning": {"effort": "high"}}, "reasoning.effort", "chat_template_kwargs"),
        ({"include": ["file_search_call.results"]}, "include", "do not have"),
    ],
)
def test_what_a_response_cannot_be_is_named_in_its_words(fields, param, words):
    error = error_of(ResponsesRequest, {"input": "hi", **fields})
    assert error.param == param, error
    assert words in str(error)
    assert "json_schema" not in str(error.param)


# --- messages


def test_blocks_become_the_messages_of_a_chat():
    cached = {"cache_control": {"type": "ephemeral"}}
    body = {
        "max_tokens": 8,
        "system": [{"type": "text", "text": "You ", **cached}, {"type": "text", "text": "help."}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Weather?", **cached}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "Ask.", "signature": "x"},
                    {"type": "text", "text": "I look."},
                    {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Rome"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "sunny"}]},
                    {"type": "tool_result", "tool_use_id": "c2"},
                    {"type": "text", "text": "And?"},
                ],
            },
        ],
    }
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": {"city": "Rome"}}}
    assert use(MessagesRequest, body).chat.messages == [
        {"role": "system", "content": "You help."},
        {"role": "user", "content": [{"type": "text", "text": "Weather?"}]},
        {"role": "assistant", "reasoning_content": "Ask.", "content": "I look.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
        {"role": "tool", "tool_call_id": "c2", "content": ""},
        {"role": "user", "content": [{"type": "text", "text": "And?"}]},
    ]


@pytest.mark.parametrize(
    ("choice", "mode", "parallel"),
    [
        ({"type": "auto"}, "auto", None),
        ({"type": "any", "disable_parallel_tool_use": True}, "required", False),
        ({"type": "none"}, "none", None),
        ({"type": "tool", "name": "f"}, {"type": "function", "function": {"name": "f"}}, None),
    ],
)
def test_choices_of_tools(choice, mode, parallel):
    tools = [{"name": "f", "description": "d", "input_schema": SCHEMA}]
    chat = use(MessagesRequest, {**BASES[MessagesRequest], "tools": tools, "tool_choice": choice}).chat
    assert (chat.tool_choice, chat.parallel_tool_calls) == (mode, parallel)
    assert chat.tools == [{"type": "function", "function": {"name": "f", "description": "d", "parameters": SCHEMA}}]


def test_a_last_message_of_the_assistant_is_gone_on_with():
    begun = [*USER, {"role": "assistant", "content": "I am"}]
    assert use(MessagesRequest, {"messages": begun, "max_tokens": 8}).chat.continue_final_message
    assert not use(MessagesRequest, BASES[MessagesRequest]).chat.continue_final_message


def one(role, **block):
    return {"messages": [{"role": role, "content": [block]}]}


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"messages": []}, "messages", "no message"),
        ({"messages": [{"role": "system", "content": "x"}]}, "messages[0].role", "into system"),
        ({"messages": [{"role": "user", "content": []}]}, "messages[0].content", "no content"),
        (one("user", type="image"), "messages[0].content[0].type", "leave images"),
        (one("user", type="tool_use", id="a", name="f", input={}), "messages[0].content[0].type", "tool_result"),
        (one("assistant", type="tool_use", id="a", name="f", input="{}"), "messages[0].content[0].input", "an object"),
        (one("user", type="text", text="a", txet="b"), "messages[0].content[0].txet", "did you mean text"),
        ({"max_tokens": None}, "max_tokens", "wrong kind"),
        ({"stop_sequences": [""]}, "stop_sequences", ""),
        ({"stop": "x"}, "stop", "stop_sequences"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking", "chat_template_kwargs"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].type", "the server would have to run"),
        ({"tools": [{"name": "f", "input_schema": "x"}]}, "tools[0].input_schema", "wrong kind"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name", "is missing"),
        ({"tool_choice": {"type": "any"}}, "tool_choice", "needs tools"),
        ({"tool_choice": {"type": "auto", "name": "f"}}, "tool_choice.name", "only type tool"),
    ],
)
def test_what_a_message_cannot_be_is_named_in_its_words(fields, param, words):
    error = error_of(MessagesRequest, {**BASES[MessagesRequest], **fields})
    assert error.param == param, error
    assert words in str(error)


def test_messages_of_a_chat_may_say_that_they_are_such():
    """lm-eval writes `"type": "text"` into them."""
    chat = check({"messages": [{**USER[0], "type": "text"}]}, ChatRequest)
    assert chat.messages == USER
