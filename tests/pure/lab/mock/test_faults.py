"""Faults as a client meets them on the wire."""

import pytest
from tests.fakes.lab.mock_client import Client, ask, chat_body

from paceline.lab.mock import ChunkKind, Fault, Match, MockServer, Reply, Rule, Script, ScriptChunk, Service


def served(fault: Fault, **service):
    return MockServer(Script(service=Service(fault=fault, **service)))


def test_a_cut_connection_is_no_end():
    with served(Fault(cut_after_chunks=2)) as mock:
        seen = ask(mock.url)
        (entry,) = mock.wait_for(1)
    assert (seen.status, seen.whole, seen.reset) == (200, False, False)
    assert seen.text == "the quick"
    assert (entry.outcome, entry.num_tokens_sent) == ("cut", 2)


def test_a_reset_is_a_reset():
    with served(Fault(cut_after_chunks=2, reset=True), tpot_ms=20) as mock:
        seen = ask(mock.url)
    assert seen.reset
    assert not seen.whole


def test_a_stream_that_hangs_stays_open_until_the_client_leaves():
    with served(Fault(hang_after_chunks=2), slots=1) as mock, Client(mock.url) as client:
        client.send("/v1/chat/completions", chat_body())
        data = b""
        while data.count(b"paceline") < 2:
            data += client.read_some()
        client.socket.settimeout(0.1)
        with pytest.raises(TimeoutError):
            client.read_some()
        assert mock.log()[0].outcome == "open"
        client.close()
        (entry,) = mock.wait_for(1)
    assert entry.outcome == "client_closed"
    assert entry.num_tokens_sent == 2
    assert entry.t_freed_ns >= entry.t_closed_ns


def test_an_error_within_the_stream_ends_it():
    with served(Fault(error_after_chunks=3, error_message="out of memory")) as mock:
        seen = ask(mock.url)
        whole = ask(mock.url, body=chat_body(stream=False, stream_options=None))
    assert seen.whole
    assert seen.events[-1]["error"]["message"] == "out of memory"
    assert seen.text == "the quick answer"
    assert whole.status == 500


def test_an_event_that_is_no_json_is_followed_by_the_rest():
    with served(Fault(malformed_after_chunks=3)) as mock:
        seen = ask(mock.url)
    assert [type(event) for event in seen.events].count(bytes) == 1
    assert seen.events[-1] == "[DONE]"
    parts = [e["choices"][0]["delta"].get("content", "") for e in seen.events if isinstance(e, dict) and e["choices"]]
    assert "".join(parts) == "the quick answer to this is that every"


@pytest.mark.parametrize(
    ("fault", "usage", "done"),
    [
        (Fault(no_usage=True), None, True),
        (Fault(no_done=True), 8, False),
        (Fault(no_done=True, no_usage=True), None, False),
    ],
)
def test_parts_of_the_end_may_be_missing(fault, usage, done):
    with served(fault) as mock:
        seen = ask(mock.url)
    assert seen.whole
    assert (seen.usage or {}).get("completion_tokens") == usage
    assert (seen.events[-1] == "[DONE]") == done


def test_comments_are_no_events():
    with served(Fault(comment_every_ms=10), ttft_ms=45, tpot_ms=1) as mock:
        seen = ask(mock.url)
        (entry,) = mock.wait_for(1)
    assert seen.lines[:4] == [": ping"] * 4
    assert seen.text == "the quick answer to this is that every"
    assert entry.t_headers_ns < entry.t_first_token_ns


@pytest.mark.parametrize("sizes", [(1,), (1, 2, 3, 5, 7), (4096,)])
def test_writes_cut_at_odd_bytes_are_the_same_answer(sizes):
    with MockServer() as mock:
        plain = ask(mock.url)
    with served(Fault(split_bytes=sizes)) as mock:
        seen = ask(mock.url)
        whole = ask(mock.url, body=chat_body(stream=False, stream_options=None))
    assert seen.events == plain.events
    assert whole.json()["usage"]["completion_tokens"] == 8


def test_pieces_can_come_apart_in_time():
    with served(Fault(split_bytes=(37,), split_gap_ms=1)) as mock:
        seen = ask(mock.url, body=chat_body(max_tokens=2))
    assert len(seen.reads) > 3
    assert seen.whole


def test_a_slow_head():
    with served(Fault(header_line_every_ms=5)) as mock:
        seen = ask(mock.url)
        (entry,) = mock.wait_for(1)
    assert seen.whole
    assert entry.t_first_token_ns - entry.t_read_ns >= 15_000_000  # the fourth line, and the events after it
    assert seen.headers["transfer-encoding"] == "chunked"


def test_an_early_head():
    with MockServer(Script(service=Service(ttft_ms=60, headers_ms=0))) as mock:
        ask(mock.url)
        (entry,) = mock.wait_for(1)
    assert entry.t_first_token_ns - entry.t_headers_ns > 0


def test_a_body_that_is_not_streamed_can_break_too():
    with served(Fault(cut_after_chunks=0)) as mock:
        assert not ask(mock.url, body=chat_body(stream=False, stream_options=None)).whole
    with served(Fault(malformed_after_chunks=0)) as mock:
        seen = ask(mock.url, body=chat_body(stream=False, stream_options=None))
    assert seen.whole
    with pytest.raises(ValueError):
        seen.json()


def test_raw_events_bodies_and_headers_are_sent_as_they_stand():
    chunks = (ScriptChunk(raw='event: x\ndata: {"own": 1}\n\n'), ScriptChunk(text="a"))
    rules = (
        Rule(match=Match(contains="raw event"), reply=Reply(chunks=chunks, headers={"x-own": "yes"})),
        Rule(match=Match(contains="raw body"), reply=Reply(body="<html>", headers={"x-own": "too"})),
        Rule(match=Match(contains="teapot"), reply=Reply(status=418, body="short and stout")),
    )
    with MockServer(Script(rules=rules)) as mock:
        event = ask(mock.url, body=chat_body("a raw event"))
        body = ask(mock.url, body=chat_body("a raw body"))
        pot = ask(mock.url, body=chat_body("teapot"))
    assert event.lines[0] == 'event: x\ndata: {"own": 1}'
    assert event.headers["x-own"] == "yes"
    assert (body.status, body.body, body.headers["x-own"]) == (200, b"<html>", "too")
    assert (pot.status, pot.body) == (418, b"short and stout")


def test_a_script_may_write_its_own_error_and_end():
    chunks = (ScriptChunk(text="a"), ScriptChunk(kind=ChunkKind.ERROR, text="broken"), ScriptChunk(kind=ChunkKind.DONE))
    with MockServer(Script(reply=Reply(chunks=chunks))) as mock:
        seen = ask(mock.url)
    assert [event if event == "[DONE]" else next(iter(event)) for event in seen.events] == ["id", "error", "[DONE]"]
    assert seen.usage is None


def test_rules_by_what_a_request_is():
    def says(text):
        return Reply(chunks=(ScriptChunk(text=text),))

    rules = (
        Rule(match=Match(nth=(0,)), reply=says("first")),
        Rule(match=Match(path="/v1/completions"), reply=says("path")),
        Rule(match=Match(header={"X-Kind": "odd"}), reply=says("header")),
        Rule(match=Match(regex=r"\bno\. \d+"), reply=says("regex")),
        Rule(match=Match(model="second"), reply=says("model")),
        Rule(match=Match(streamed=False), service=Service(num_tokens=1)),
        Rule(times=1, reply=says("once")),
    )
    with MockServer(Script(models=("mock", "second"), rules=rules, reply=says("rest"))) as mock:
        said = [
            ask(mock.url).text,
            ask(mock.url, "/v1/completions", {"prompt": "a", "stream": True}).text,
            ask(mock.url, headers={"x-kind": "odd"}).text,
            ask(mock.url, body=chat_body("this is no. 5")).text,
            ask(mock.url, body=chat_body(model="second")).text,
            ask(mock.url).text,
            ask(mock.url).text,
        ]
        whole = ask(mock.url, body=chat_body(stream=False, stream_options=None, max_tokens=None)).json()
        rules_used = [entry.rule for entry in mock.log()]
    assert said == ["first", "path", "header", "regex", "model", "once", "rest"]
    assert whole["choices"][0]["message"]["content"] == "the"
    assert rules_used == [0, 1, 2, 3, 4, 6, -1, 5]
