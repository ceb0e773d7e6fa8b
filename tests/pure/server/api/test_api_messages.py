"""/v1/messages over a real engine: blocks whole and streamed, calls, ends, errors in Anthropic's form."""

import asyncio
import json

import pytest
from tests.fakes.api_server import EOS, MODEL, api_server, run, text_ids
from tests.fakes.raw_asgi import RawCall
from tests.pure.server.api.tool_kit import failed_after_a_ping, tool_server

from paceline.server.errors import BodyTooLargeError, error_response
from paceline.server.tenancy.tenants import Tenant, TenantBook

PATH = "/v1/messages"
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>'
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [{"name": "weather", "description": "The weather.", "input_schema": SCHEMA}]
SCRIPTS = {
    1: text_ids("Hello, wörld!"),
    2: text_ids("I look. " + CALL),
    3: text_ids(CALL + CALL.replace("Rome", "Oslo")),
    4: [EOS],
    5: text_ids(CALL.replace('"Rome"', "1e999")),
}
ROOMY = {"scripts": SCRIPTS, "max_model_len": 2048, "num_blocks": 2048}


def request(text="hi", **fields):
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 100, **fields}


async def ask(server, *, status=200, **fields):
    response = await server.post(PATH, request(**fields))
    assert response.status_code == status, response.text
    return response.json()


def read(data):
    """The events of a stream: their names are their types."""
    events = []
    for part in data.removesuffix(b"\n\n").split(b"\n\n"):
        name, line = part.split(b"\n")
        events.append(json.loads(line.removeprefix(b"data: ")))
        assert name == b"event: " + events[-1]["type"].encode()
    return events


def built(events):
    """The message that a client puts together."""
    assert [events[0]["type"], events[-1]["type"]] == ["message_start", "message_stop"]
    message, parts = events[0]["message"], {}
    assert message["content"] == []
    for event in events[1:-1]:
        match event["type"]:
            case "content_block_start":
                assert event["index"] == len(message["content"])
                message["content"].append(event["content_block"])
                parts[event["index"]] = ""
            case "content_block_delta":
                assert event["index"] == len(message["content"]) - 1
                (text,) = (value for key, value in event["delta"].items() if key != "type")
                parts[event["index"]] += text
            case "content_block_stop":
                block = message["content"][event["index"]]
                if block["type"] == "tool_use":
                    block["input"] = json.loads(parts[event["index"]])
                else:
                    block[block["type"]] = parts[event["index"]]
            case "message_delta":
                message |= event["delta"]
                message["usage"] |= event["usage"]
    return message


def plain(message):
    """Without what differs from call to call."""
    blocks = [{key: value for key, value in block.items() if key != "id"} for block in message["content"]]
    counts = {"output_tokens": message["usage"]["output_tokens"]}
    return {**message, "id": None, "content": blocks, "usage": counts}


def test_a_whole_answer():
    async def body():
        async with api_server(scripts=SCRIPTS) as server:
            answer = await ask(server, seed=1, request_id="mine")
            chat = (await server.chat(seed=1)).json()["usage"]
            assert answer == {
                "id": "msg_mine",
                "type": "message",
                "role": "assistant",
                "model": MODEL,
                "content": [{"type": "text", "text": "Hello, wörld!"}],
                "stop_reason": "end_turn",
                "stop_sequence": None,
                "usage": {
                    "input_tokens": chat["prompt_tokens"],
                    "cache_creation_input_tokens": 0,
                    "cache_read_input_tokens": 0,
                    "output_tokens": chat["completion_tokens"],
                },
            }
            again = (await ask(server, seed=1))["usage"]
            assert again["cache_read_input_tokens"] > 0
            assert again["input_tokens"] + again["cache_read_input_tokens"] == chat["prompt_tokens"]
            assert server.records[0].request_id == "msg_mine"
            await server.settled()

    run(body)


@pytest.mark.parametrize(
    ("fields", "kinds", "end"),
    [
        ({"seed": 1}, ["text"], ("end_turn", None)),
        ({"seed": 1, "max_tokens": 5}, ["text"], ("max_tokens", None)),
        ({"seed": 1, "stop_sequences": [", w"]}, ["text"], ("stop_sequence", ", w")),
        ({"seed": 2, "tools": TOOLS}, ["text", "tool_use"], ("tool_use", None)),
        ({"seed": 3, "tools": TOOLS, "max_tokens": 160}, ["tool_use", "tool_use"], ("tool_use", None)),
        ({"seed": 4}, [], ("end_turn", None)),
    ],
)
def test_a_stream_builds_the_same_answer(fields, kinds, end):
    async def body():
        async with api_server(**ROOMY) as server:
            whole = await ask(server, **fields)
            assert [block["type"] for block in whole["content"]] == kinds
            assert (whole["stop_reason"], whole["stop_sequence"]) == end
            response = await server.post(PATH, request(stream=True, **fields))
            assert response.headers["content-type"].startswith("text/event-stream")
            message = built(read(response.content))
            assert plain(message) == plain(whole)
            usage = message["usage"]
            assert usage["input_tokens"] + usage["cache_read_input_tokens"] == (
                whole["usage"]["input_tokens"] + whole["usage"]["cache_read_input_tokens"]
            )
            ids = [block["id"] for block in message["content"] if block["type"] == "tool_use"]
            assert len(set(ids)) == len(ids)

    run(body)


def test_a_call_that_is_cut_has_no_arguments_to_run():
    async def body():
        async with api_server(**ROOMY) as server:
            whole = await ask(server, seed=2, tools=TOOLS, max_tokens=56)
            assert whole["stop_reason"] == "max_tokens"
            assert whole["content"][-1]["input"] == {}
            events = read((await server.post(PATH, request(seed=2, tools=TOOLS, max_tokens=56, stream=True))).content)
            deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
            assert "".join(delta.get("partial_json", "") for delta in deltas) == '{"ci'

    run(body)


def test_a_whole_call_keeps_arguments_that_not_every_reader_of_json_takes():
    async def body():
        async with api_server(**ROOMY) as server:
            (block,) = (await ask(server, seed=5, tools=TOOLS))["content"]
            assert block["input"] == {"city": float("inf")}

    run(body)


def test_a_last_message_without_text_is_refused_in_the_words_of_this_api():
    async def body():
        async with api_server(scripts=SCRIPTS) as server:
            messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": ""}]
            error = (await ask(server, messages=messages, status=400))["error"]
            assert error["param"] == "messages"
            assert "continue_final_message" not in error["message"]

    run(body)


def test_a_last_message_of_the_assistant_is_gone_on_with():
    async def body():
        async with api_server(scripts=SCRIPTS) as server:
            messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Well, "}]
            whole = await ask(server, seed=1, messages=messages)
            same = {"messages": messages, "continue_final_message": True, "seed": 1}
            chat = (await server.post("/v1/chat/completions", same)).json()
            assert whole["content"][0]["text"] == chat["choices"][0]["message"]["content"]
            used = whole["usage"]
            assert used["input_tokens"] + used["cache_read_input_tokens"] == chat["usage"]["prompt_tokens"]

    run(body)


def test_counted_tokens_are_those_of_the_prompt():
    async def body():
        async with api_server(**ROOMY) as server:
            for fields in ({}, {"system": "Be brief."}, {"tools": TOOLS}):
                count = {key: value for key, value in request(**fields).items() if key != "max_tokens"}
                counted = (await server.post(f"{PATH}/count_tokens", count)).json()
                used = (await ask(server, seed=1, **fields))["usage"]
                assert counted == {"input_tokens": used["input_tokens"] + used["cache_read_input_tokens"]}

    run(body)


def test_errors_have_anthropics_form():
    async def body():
        async with api_server(scripts=SCRIPTS, tenants=TenantBook.load(None, ["right"], secret=b"s")) as server:
            key = {"x-api-key": "right", "anthropic-version": "2023-06-01"}
            good = await server.post(PATH, request(seed=1), headers=key)
            assert good.status_code == 200
            for fields, headers, status, kind in (
                (request(), {}, 401, "authentication_error"),
                (request(), {"x-api-key": "wrong"}, 401, "authentication_error"),
                (request(temperature=-1), key, 400, "invalid_request_error"),
                (request(model="claude"), key, 404, "not_found_error"),
                ({"messages": [{"role": "user", "content": "hi"}]}, key, 400, "invalid_request_error"),
                (request("a" * 200), key, 400, "invalid_request_error"),
            ):
                for stream in (False, True):
                    response = await server.post(PATH, {**fields, "stream": stream}, headers=headers)
                    assert response.status_code == status, response.text
                    value = response.json()
                    assert int(response.headers["content-length"]) == len(response.content)
                    assert (value["type"], value["error"]["type"]) == ("error", kind)
                    assert value["error"]["message"]
            below = await server.client.get(f"{PATH}/msg_1", headers=key)
            assert below.json()["type"] == "error"
            method = await server.client.get(PATH, headers=key)
            assert (method.status_code, method.json()["type"]) == (405, "error")
            other = await server.post("/v1/chat/completions", {"messages": []}, headers=key)
            assert set(other.json()) == {"error"}

    run(body)


def test_limits_of_a_tenant_hold_here_too():
    tenant = Tenant(name="small", classes=("default",), tokens_per_minute=60)

    async def body():
        async with api_server(tenants=TenantBook([tenant], secret=b"s"), scripts=SCRIPTS) as server:
            assert (await server.post(PATH, request(seed=1, max_tokens=30))).status_code == 200
            refused = await server.post(PATH, request(max_tokens=30))
            assert (refused.status_code, refused.json()["error"]["type"]) == (429, "rate_limit_error")
            assert int(refused.headers["retry-after"]) >= 1
            assert [record.tenant for record in server.records] == ["small", "small"]

    run(body)


def test_when_the_engine_dies_a_stream_ends_with_an_error():
    async def body():
        async with api_server(scripts={1: text_ids("0123456789" * 9)}) as server:
            gate = server.new_gate()
            call = RawCall(server.app, PATH, request(stream=True, seed=1))
            while not call.parts:
                if gate.num_passed == gate.num_released:
                    gate.release()
                await asyncio.sleep(0.001)
            gate.open()
            await asyncio.to_thread(server.engine.close)
            await call.end()
            assert call.complete
            last = read(call.body)[-1]
            assert (last["type"], last["error"]["type"]) == ("error", "overloaded_error")

    run(body)


def test_a_stream_that_fails_before_its_first_event_begins_all_the_same(monkeypatch):
    async def body():
        async with api_server(scripts=SCRIPTS) as server:
            events = read(await failed_after_a_ping(server, monkeypatch, PATH, request()))
            assert [event["type"] for event in events] == ["message_start", "error"]

    run(body)


@pytest.mark.parametrize(
    ("path", "root", "kind"),
    [
        ("/v1/messages", "", "request_too_large"),
        ("/proxy/v1/messages/count_tokens", "/proxy", "request_too_large"),
        ("/v1/messagesx", "", "invalid_request_error"),
        ("/v1/responses", "", "invalid_request_error"),
    ],
)
def test_an_error_before_the_application_has_the_form_of_its_path_too(path, root, kind):
    async def body():
        sent = []

        async def send(message):
            sent.append(message)

        scope = {"type": "http", "path": path, "root_path": root, "state": {"request_id": "r"}}
        await error_response(BodyTooLargeError("too long"))(scope, None, send)
        value = json.loads(sent[1]["body"])
        assert (sent[0]["status"], value["error"]["type"]) == (413, kind)
        assert value.get("request_id") == ("r" if kind == "request_too_large" else None)

    run(body)


def test_reasoning_is_a_block_before_the_answer():
    async def body():
        thought = "Two and two."
        async with tool_server({1: f"<think>\n{thought}\n</think>\n\nFour."}) as server:
            whole = await ask(server, seed=1)
            assert whole["content"] == [
                {"type": "thinking", "thinking": thought, "signature": ""},
                {"type": "text", "text": "Four."},
            ]
            message = built(read((await server.post(PATH, request(seed=1, stream=True))).content))
            assert plain(message) == plain(whole)
            turn = [*request()["messages"], {"role": "assistant", "content": whole["content"]}]
            again = await ask(server, messages=[*turn, {"role": "user", "content": "And?"}], seed=1, max_tokens=4)
            assert (again["stop_reason"], again["usage"]["output_tokens"]) == ("max_tokens", 4)

    run(body)
