"""Starting, stopping, the log, connections, and the process."""

import asyncio
import contextlib
import os
import threading

import pytest
from tests.fakes.lab.mock_client import Client, Seen, ask, chat_body, get, request_bytes

from paceline.errors import ConfigError, LabError
from paceline.lab.mock import LogEntry, MockProcess, MockServer, Script, Service

SERVERS = [MockServer, MockProcess]


@pytest.mark.parametrize("kind", SERVERS)
def test_it_serves_logs_and_stops(kind):
    with kind({"service": {"ttft_ms": 5, "tpot_ms": 1}}) as mock:
        seen = ask(mock.url, headers={"x-request-id": "r-1"})
        (entry,) = mock.wait_for(1)
        shown = get(mock.url, "/mock/log").json()["requests"]
        url = mock.url
    assert isinstance(entry, LogEntry)
    assert seen.whole
    assert (entry.request_id, entry.num_tokens_sent, entry.prompt_tokens) == ("r-1", 8, 3)
    assert shown[0]["number"] == 0
    # one clock for client and server: the truth lies between what the client saw
    order = [seen.t_send_ns, entry.t_arrival_ns, entry.t_read_ns, entry.t_headers_ns, entry.t_first_token_ns]
    order += [entry.t_last_token_ns, entry.t_end_ns]
    assert order == sorted(order)
    assert entry.t_last_token_ns < seen.t_end_ns + 10**9
    with pytest.raises(OSError):
        ask(url)


@pytest.mark.parametrize("kind", SERVERS)
def test_a_new_script_begins_anew(kind):
    with kind(Script(service=Service(num_tokens=3))) as mock:
        assert ask(mock.url, body=chat_body(max_tokens=None)).usage["completion_tokens"] == 3
        mock.use({"service": {"num_tokens": 5}})
        assert mock.log() == []
        assert ask(mock.url, body=chat_body(max_tokens=None)).usage["completion_tokens"] == 5
        with pytest.raises(ConfigError):
            mock.use({"service": {"num_token": 5}})
        assert ask(mock.url, "/mock/script", {"servce": {}}).status == 400
        assert get(mock.url, "/mock/script").json()["service"] == {"num_tokens": 5}
        mock.wait_for(1)


def test_a_task_can_start_it_in_its_own_loop():
    async def main():
        async with MockServer() as mock:
            return await asyncio.to_thread(ask, mock.url)

    assert asyncio.run(main()).whole


def test_a_port_that_is_taken_is_an_error():
    with MockServer() as mock:
        port = int(mock.url.rsplit(":", 1)[1])
        for kind in SERVERS:
            with pytest.raises(LabError):
                kind(port=port).start()


def test_what_is_not_running_says_so():
    for kind in SERVERS:
        mock = kind()
        with pytest.raises(LabError, match="not running"):
            mock.log()
        mock.stop()


def test_no_thread_and_no_child_is_left():
    mock, child = MockServer(Script(service=Service(ttft_ms=60_000))), MockProcess()
    mock.start()
    child.start()
    pid = child.pid
    with Client(mock.url) as client:
        client.send("/v1/chat/completions", chat_body())
        for server in (mock, child, mock, child):
            server.stop()
        with contextlib.suppress(ConnectionResetError):
            assert client.read_some() == b""
    assert not any(thread.name == "paceline-mock" for thread in threading.enumerate())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_waiting_for_requests_that_do_not_come_fails():
    with MockServer() as mock, pytest.raises(LabError, match="enough requests"):
        mock.wait_for(1, timeout_s=0.05)


def test_a_connection_serves_many_requests():
    with MockServer() as mock, Client(mock.url) as client:
        assert all(client.ask("/v1/chat/completions", chat_body()).whole for _ in range(5))
        entries = mock.wait_for(5)
    assert len({entry.connection for entry in entries}) == 1


def test_requests_sent_before_the_answer_are_answered_in_order():
    with MockServer(Script(service=Service(ttft_ms=5))) as mock, Client(mock.url) as client:
        bodies = [chat_body(max_tokens=n) for n in (3, 1, 2)]
        client.socket.sendall(b"".join(request_bytes(mock.url, "POST", "/v1/chat/completions", b) for b in bodies))
        counts = [client.finish(Seen()).usage["completion_tokens"] for _ in bodies]
    assert counts == [3, 1, 2]


def test_a_client_may_ask_for_the_connection_to_close():
    with MockServer() as mock, Client(mock.url) as client:
        assert client.ask("/v1/chat/completions", chat_body(), headers={"connection": "close"}).whole
        assert client.read_some() == b""


def test_an_idle_connection_is_closed_where_the_script_says_so():
    with MockServer(Script(keep_alive_s=0.02)) as mock, Client(mock.url) as client:
        assert client.ask("/v1/chat/completions", chat_body()).whole
        assert client.read_some() == b""
        (entry,) = mock.log()
    assert entry.outcome == "done"


def test_bytes_that_are_no_http_are_refused():
    with MockServer() as mock, Client(mock.url) as client:
        client.socket.sendall(b"\x16\x03\x01 nonsense\r\n\r\n")
        assert client.read_some().startswith(b"HTTP/1.1 400")


def test_a_body_in_pieces_is_one_request():
    with MockServer() as mock, Client(mock.url) as client:
        data = request_bytes(mock.url, "POST", "/v1/chat/completions", chat_body())
        for start in range(0, len(data), 29):
            client.socket.sendall(data[start : start + 29])
        assert client.finish(Seen()).whole
        (entry,) = mock.wait_for(1)
    assert entry.t_arrival_ns <= entry.t_read_ns


def test_bodies_are_logged_only_where_the_script_says_so():
    with MockServer() as mock:
        ask(mock.url)
        assert mock.wait_for(1)[0].body is None
        mock.use(Script(log_bodies=True, log_chunks=False))
        ask(mock.url)
        (entry,) = mock.wait_for(1)
    assert "one two three" in (entry.body or "")
    assert entry.chunks == []
    assert entry.num_tokens_sent == 8


def test_the_log_can_be_read_from_a_number_and_cleared():
    with MockServer() as mock:
        for _ in range(3):
            ask(mock.url)
        assert [e["number"] for e in get(mock.url, "/mock/log?since=1").json()["requests"]] == [1, 2]
        ask(mock.url, "/mock/log", method="DELETE")
        ask(mock.url)
        assert [e["number"] for e in get(mock.url, "/mock/log").json()["requests"]] == [3]


def test_a_conversation_that_goes_on_is_found_in_the_cache():
    service = Service(prefix_cache=True, block_tokens=4)
    with MockServer(Script(service=service, template_tokens=1)) as mock:
        first = chat_body("a b c d e f g", 7)
        said = ask(mock.url, body=first).text
        again = [*first["messages"], {"role": "assistant", "content": said}, {"role": "user", "content": "and then"}]
        usage = ask(mock.url, body=chat_body(messages=again)).usage
    # marker, 7 words, marker, and all but the last of 7 words are 15 tokens: 3 whole blocks
    assert usage["prompt_tokens_details"]["cached_tokens"] == 12
