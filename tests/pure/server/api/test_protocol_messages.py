"""Chat messages: roles, contents, parts, and what is passed on to templates."""

import pytest

from paceline.errors import RequestError
from paceline.server.api.protocol import ChatRequest
from paceline.server.api.protocol.body import check


def plain(*messages):
    return check({"messages": list(messages)}, ChatRequest).messages


def refused(*messages):
    with pytest.raises(RequestError) as caught:
        plain(*messages)
    return caught.value


def test_roles_and_contents_pass():
    messages = plain(
        {"role": "system", "content": "s"},
        {"role": "developer", "content": "d"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": "n"},
        {"role": "assistant", "content": None, "refusal": None, "annotations": [], "audio": None},
        {"role": "tool", "content": "t", "tool_call_id": "c"},
    )
    assert [m["role"] for m in messages] == ["system", "system", "user", "assistant", "tool"]
    assert messages[2]["content"] == [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert messages[3] == {"role": "assistant", "content": ""}
    assert messages[4]["tool_call_id"] == "c"


def test_earlier_tool_calls_reach_the_template_with_arguments_parsed():
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    broken = {"id": "2", "type": "function", "function": {"name": "g", "arguments": "{"}}
    (message,) = plain({"role": "assistant", "tool_calls": [call, broken]})
    assert message["tool_calls"][0]["function"]["arguments"] == {"x": 1}
    assert message["tool_calls"][1]["function"]["arguments"] == "{"


@pytest.mark.parametrize("depth", [65, 600, 100_000])
def test_arguments_of_earlier_calls_nest_no_deeper_than_bodies(depth):
    call = {"function": {"name": "f", "arguments": '{"a":' * depth + "1" + "}" * depth}}
    error = refused({"role": "assistant", "tool_calls": [call]})
    assert error.param == "messages[0].tool_calls[0].function.arguments"
    assert "nest too deep" in str(error)


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "video_url", "file", "refusal", 7, None])
def test_parts_that_are_not_text_are_refused_by_place(kind):
    error = refused(
        {"role": "user", "content": "a"},
        {"role": "user", "content": [{"type": "text", "text": "b"}, {"type": kind, "image_url": {"url": "http://x"}}]},
    )
    assert error.param == "messages[1].content[1]"
    assert "text only" in str(error)


@pytest.mark.parametrize(
    ("message", "param"),
    [
        (None, "messages[0]"),
        ("hi", "messages[0]"),
        ({"content": "a"}, "messages[0].role"),
        ({"role": "robot", "content": "a"}, "messages[0].role"),
        ({"role": ["user"], "content": "a"}, "messages[0].role"),
        ({"role": "user"}, "messages[0].content"),
        ({"role": "user", "content": None}, "messages[0].content"),
        ({"role": "user", "content": 5}, "messages[0].content"),
        ({"role": "user", "content": {"type": "text"}}, "messages[0].content"),
        ({"role": "user", "content": ["a"]}, "messages[0].content[0]"),
        ({"role": "user", "content": [{"type": "text", "text": 1}]}, "messages[0].content[0].text"),
        ({"role": "user", "content": [{"type": "text", "text": "a", "x": 1}]}, "messages[0].content[0].x"),
        ({"role": "user", "content": "a", "name": 1}, "messages[0].name"),
        ({"role": "user", "content": "a", "nam": "x"}, "messages[0].nam"),
        ({"role": "user", "content": "a", "tool_calls": []}, "messages[0].tool_calls"),
        ({"role": "assistant", "tool_calls": {}}, "messages[0].tool_calls"),
        ({"role": "assistant", "tool_calls": [1]}, "messages[0].tool_calls[0]"),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 1}}]},
            "messages[0].tool_calls[0].function.arguments",
        ),
        ({"role": "assistant", "content": "a", "audio": {"id": "x"}}, "messages[0].audio"),
    ],
)
def test_every_wrong_message_names_its_place(message, param):
    assert refused(message).param == param


@pytest.mark.parametrize("messages", [[], None, "hi", {"role": "user"}, 5])
def test_messages_is_a_list_with_something_in_it(messages):
    with pytest.raises(RequestError) as caught:
        check({"messages": messages}, ChatRequest)
    assert caught.value.param == "messages"


def test_unknown_message_fields_name_the_nearest():
    assert "did you mean content?" in str(refused({"role": "user", "contents": "a"}))
