"""/v1/responses over a real engine: items whole and streamed, calls, ends, errors."""

import asyncio
import json

import pytest
from tests.fakes.api_server import EOS, MODEL, api_server, run, text_ids
from tests.fakes.raw_asgi import RawCall
from tests.pure.server.api.tool_kit import BERN, FIRST, WEATHER, failed_after_a_ping, ids, tool_server

CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>'
TOOLS = [
    {
        "type": "function",
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    }
]
SCRIPTS = {
    1: text_ids("Hello, wörld!"),
    2: text_ids("I look. " + CALL),
    3: text_ids(CALL + CALL.replace("Rome", "Oslo")),
    4: [EOS],
    5: text_ids('{"city": "Rome"}'),
    6: text_ids(f"I look. {CALL} Done. {CALL}"),
    7: text_ids("Well. " + CALL[:-20] + "?"),
}
ROOMY = {"scripts": SCRIPTS, "max_model_len": 2048, "num_blocks": 2048}


async def ask(server, *, given="hi", status=200, **fields):
    response = await server.post("/v1/responses", {"input": given, **fields})
    assert response.status_code == status, response.text
    return response.json()


async def stream(server, **fields):
    """The events of a stream that ended as it should: their names are their types, and they are counted."""
    response = await server.post("/v1/responses", {"input": "hi", "stream": True, **fields})
    assert response.headers["content-type"].startswith("text/event-stream")
    events = []
    for part in response.content.removesuffix(b"\n\n").split(b"\n\n"):
        name, data = part.split(b"\n")
        events.append(json.loads(data.removeprefix(b"data: ")))
        assert name == b"event: " + events[-1]["type"].encode()
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


def built(events):
    """The items that the deltas come to, and their types in order."""
    items, kinds = {}, []
    for event in events:
        kinds.append(event["type"].removeprefix("response."))
        index = event.get("output_index")
        match kinds[-1]:
            case "output_item.added":
                assert index == len(items)
                items[index] = ""
            case "output_text.delta" | "function_call_arguments.delta" | "reasoning_text.delta":
                items[index] += event["delta"]
            case "output_text.done" | "reasoning_text.done":
                assert event["text"] == items[index]
            case "function_call_arguments.done":
                assert event["arguments"] == items[index]
            case "output_item.done":
                assert event["item"]["id"].endswith(f"_{index}")
    return list(items.values()), [kind for i, kind in enumerate(kinds) if kind != kinds[i - 1]]


def plain(item):
    """Without what differs from call to call."""
    return {key: value for key, value in item.items() if key not in ("id", "call_id")}


def test_a_whole_answer():
    async def body():
        async with api_server(scripts=SCRIPTS) as server:
            answer = await ask(server, seed=1, metadata={"a": "b"}, request_id="mine")
            assert (answer["object"], answer["status"], answer["id"]) == ("response", "completed", "resp_mine")
            assert (answer["model"], answer["metadata"], answer["store"]) == (MODEL, {"a": "b"}, False)
            (item,) = answer["output"]
            assert item == {
                "id": "msg_mine_0",
                "type": "message",
                "role": "assistant",
                "status": "completed",
                "content": [{"type": "output_text", "text": "Hello, wörld!", "annotations": [], "logprobs": []}],
            }
            chat = (await server.chat(seed=1)).json()["usage"]
            assert answer["usage"]["output_tokens"] == chat["completion_tokens"]
            assert answer["usage"]["total_tokens"] == answer["usage"]["input_tokens"] + chat["completion_tokens"]
            assert answer["usage"]["output_tokens_details"] == {"reasoning_tokens": 0}
            assert [record.request_id for record in server.records] == ["resp_mine", server.records[1].request_id]
            await server.settled()

    run(body)


def test_a_stream_builds_the_same_answer():
    async def body():
        async with api_server(scripts=SCRIPTS) as server:
            events = await stream(server, seed=1)
            texts, kinds = built(events)
            assert texts == ["Hello, wörld!"]
            assert kinds == [
                *("created", "in_progress", "output_item.added", "content_part.added", "output_text.delta"),
                *("output_text.done", "content_part.done", "output_item.done", "completed"),
            ]
            assert events[0]["response"]["status"] == "in_progress"
            assert events[0]["response"]["usage"] is None
            last, whole = events[-1]["response"], await ask(server, seed=1)
            assert [plain(item) for item in last["output"]] == [plain(item) for item in whole["output"]]
            assert last["usage"]["output_tokens"] == whole["usage"]["output_tokens"]

    run(body)


@pytest.mark.parametrize(("seed", "kinds"), [(2, ["message", "function_call"]), (3, ["function_call"] * 2)])
def test_calls_are_items_of_their_own(seed, kinds):
    async def body():
        async with api_server(**ROOMY) as server:
            whole = await ask(server, seed=seed, tools=TOOLS)
            assert [item["type"] for item in whole["output"]] == kinds
            assert json.loads(whole["output"][-1]["arguments"]) == {"city": "Oslo" if seed == 3 else "Rome"}
            assert whole["output"][-1]["name"] == "weather"
            assert {item["status"] for item in whole["output"]} == {"completed"}
            assert whole["tools"] == TOOLS
            events = await stream(server, seed=seed, tools=TOOLS)
            last = events[-1]["response"]
            assert last["status"] == whole["status"] == "completed"
            assert [plain(item) for item in last["output"]] == [plain(item) for item in whole["output"]]
            texts, _ = built(events)
            assert texts == [item.get("arguments") or item["content"][0]["text"] for item in last["output"]]
            calls = [item["call_id"] for item in last["output"] if item["type"] == "function_call"]
            assert len(set(calls)) == len(calls)

    run(body)


def test_an_answer_goes_back_in_as_it_came():
    """Its items, and the results of its calls: the prompt is that of the same chat."""

    async def body():
        async with api_server(**ROOMY) as server:
            first = await ask(server, seed=2, tools=TOOLS)
            call = first["output"][1]
            result = {"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"}
            again = await ask(
                server, given=[{"role": "user", "content": "hi"}, *first["output"], result], seed=1, tools=TOOLS
            )
            assert again["output"][0]["content"][0]["text"] == "Hello, wörld!"
            function = {"name": "weather", "arguments": call["arguments"]}
            messages = [
                {"role": "user", "content": "hi"},
                {
                    "role": "assistant",
                    "content": "I look.",
                    "tool_calls": [{"id": call["call_id"], "type": "function", "function": function}],
                },
                {"role": "tool", "tool_call_id": call["call_id"], "content": "sunny"},
            ]
            tools = [{"type": "function", "function": {k: v for k, v in TOOLS[0].items() if k != "type"}}]
            chat = await server.post(
                "/v1/chat/completions", {"messages": messages, "tools": tools, "seed": 1, "tool_choice": "auto"}
            )
            assert again["usage"]["input_tokens"] == chat.json()["usage"]["prompt_tokens"]

    run(body)


def test_a_limit_leaves_an_answer_incomplete():
    async def body():
        async with api_server(**ROOMY) as server:
            for fields, texts in (
                ({"seed": 1, "max_output_tokens": 5}, ["Hello"]),
                ({"seed": 2, "max_output_tokens": 56, "tools": TOOLS}, ["I look.", '{"ci']),
            ):
                whole = await ask(server, **fields)
                assert (whole["status"], whole["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
                assert whole["output"][-1]["status"] == "incomplete"
                assert [i.get("arguments") or i["content"][0]["text"] for i in whole["output"]] == texts
                events = await stream(server, **fields)
                assert events[-1]["type"] == "response.incomplete"
                assert [plain(i) for i in events[-1]["response"]["output"]] == [plain(i) for i in whole["output"]]

    run(body)


def test_an_empty_answer_is_an_empty_message():
    async def body():
        async with api_server(scripts=SCRIPTS) as server:
            whole = await ask(server, seed=4)
            assert whole["output"][0]["content"][0]["text"] == ""
            events = await stream(server, seed=4)
            assert built(events)[0] == [""]
            assert [plain(i) for i in events[-1]["response"]["output"]] == [plain(i) for i in whole["output"]]

    run(body)


def test_logprobs_have_one_entry_for_each_token():
    async def body():
        async with api_server(scripts=SCRIPTS) as server:
            fields = {"seed": 1, "include": ["message.output_text.logprobs"], "top_logprobs": 1}
            (item,) = (await ask(server, **fields))["output"]
            entries = item["content"][0]["logprobs"]
            assert bytes(b for entry in entries for b in entry["bytes"]).decode() == "Hello, wörld!<|end|>"
            events = await stream(server, **fields)
            assert events[-1]["response"]["output"][0]["content"][0]["logprobs"] == entries
            told = [e for event in events if event["type"] == "response.output_text.delta" for e in event["logprobs"]]
            assert told == entries[: len(told)]
            assert len(told) >= len(entries) - 1  # the end of the turn has no text to come with

    run(body)


def test_logprobs_of_calls_stand_at_the_last_text_streamed_or_not():
    async def body():
        async with api_server(**ROOMY) as server:
            fields = {"seed": 6, "tools": TOOLS, "include": ["message.output_text.logprobs"]}
            whole = await ask(server, **fields)
            texts = [item["content"][0] for item in whole["output"] if item["type"] == "message"]
            assert [text["text"] for text in texts] == ["I look.", "Done."]
            assert [len(text["logprobs"]) for text in texts] == [0, whole["usage"]["output_tokens"]]
            events = await stream(server, **fields)
            assert [plain(i) for i in events[-1]["response"]["output"]] == [plain(i) for i in whole["output"]]
            told = []
            for event in events:
                if event["type"] == "response.output_text.delta":
                    told += event["logprobs"]
                elif event["type"] == "response.output_text.done":
                    assert event["logprobs"][: len(told)] == told
                    told = []

    run(body)


def test_a_call_that_was_broken_off_is_text_in_the_last_response():
    async def body():
        async with api_server(**ROOMY) as server:
            whole = await ask(server, seed=7, tools=TOOLS)
            (item,) = whole["output"]
            assert item["content"][0]["text"] == "Well. " + CALL[:-20] + "?"
            events = await stream(server, seed=7, tools=TOOLS)
            assert built(events)[0][:2] == ["Well.", '{"city": ']
            assert [plain(i) for i in events[-1]["response"]["output"]] == [plain(item)]

    run(body)


def test_text_format_is_enforced_and_its_errors_are_named():
    async def body():
        async with api_server(**ROOMY) as server:
            wanted = {"type": "json_schema", "name": "n", "schema": TOOLS[0]["parameters"], "strict": True}
            whole = await ask(server, seed=5, text={"format": wanted}, temperature=0)
            assert json.loads(whole["output"][0]["content"][0]["text"])["city"] == "Rome"
            assert whole["text"] == {"format": wanted}
            wanted["schema"] = {"not": {}}
            refused = await ask(server, status=400, text={"format": wanted})
            assert refused["error"]["param"].startswith("text.format"), refused

    run(body)


def test_what_is_wrong_is_an_error_before_the_stream():
    async def body():
        async with api_server(scripts=SCRIPTS, max_model_len=64) as server:
            long = await ask(server, given="a" * 70, stream=True, status=400)
            assert (long["error"]["code"], long["error"]["param"]) == ("context_length_exceeded", "input")
            most = await ask(server, max_output_tokens=60, status=400)
            assert most["error"]["param"] == "max_output_tokens"
            assert "max_tokens" not in most["error"]["message"].replace("max_output_tokens", "")
            assert (await ask(server, model="gpt-4", status=404))["error"]["code"] == "model_not_found"

    run(body)


def test_when_the_engine_dies_the_response_has_failed():
    async def body():
        async with api_server(scripts={1: text_ids("0123456789" * 9)}) as server:
            gate = server.new_gate()
            sent = {"input": "hi", "stream": True, "seed": 1}
            call = RawCall(server.app, "/v1/responses", sent)
            while not call.parts:
                if gate.num_passed == gate.num_released:
                    gate.release()
                await asyncio.sleep(0.001)
            gate.open()
            await asyncio.to_thread(server.engine.close)
            await call.end()
            assert call.complete
            *_, last = call.body.removesuffix(b"\n\n").split(b"\n\n")
            name, data = last.split(b"\n")
            assert name == b"event: response.failed"
            response = json.loads(data.removeprefix(b"data: "))["response"]
            assert (response["status"], response["error"]["code"]) == ("failed", "server_error")
            assert b"[DONE]" not in call.body

    run(body)


def test_a_stream_that_fails_before_its_first_event_begins_all_the_same(monkeypatch):
    async def body():
        async with api_server(scripts=SCRIPTS) as server:
            data = await failed_after_a_ping(server, monkeypatch, "/v1/responses", {"input": "hi"})
            events = [json.loads(part.split(b"\ndata: ")[1]) for part in data.removesuffix(b"\n\n").split(b"\n\n")]
            kinds = ["response.created", "response.in_progress", "response.failed"]
            assert [(event["sequence_number"], event["type"]) for event in events] == list(enumerate(kinds))

    run(body)


def test_reasoning_is_an_item_before_the_answer():
    async def body():
        thought = "Two and two."
        async with tool_server({1: f"<think>\n{thought}\n</think>\n\nFour. " + FIRST}) as server:
            tools = [{"type": "function", **WEATHER["function"]}]
            whole = await ask(server, seed=1, tools=tools)
            assert [item["type"] for item in whole["output"]] == ["reasoning", "message", "function_call"]
            assert whole["output"][0]["content"] == [{"type": "reasoning_text", "text": thought}]
            events = await stream(server, seed=1, tools=tools)
            last = events[-1]["response"]
            assert [plain(item) for item in last["output"]] == [plain(item) for item in whole["output"]]
            assert built(events)[0] == [thought, "Four.", BERN]
            counts = [response["usage"]["output_tokens_details"]["reasoning_tokens"] for response in (whole, last)]
            assert counts == [len(ids(f"<think>\n{thought}\n</think>"))] * 2
            again = await ask(server, given=[{"role": "user", "content": "hi"}, *whole["output"]], seed=1, tools=tools)
            assert [item["type"] for item in again["output"]] == ["reasoning", "message", "function_call"]
            assert again["usage"]["input_tokens"] > whole["usage"]["input_tokens"]

    run(body)
