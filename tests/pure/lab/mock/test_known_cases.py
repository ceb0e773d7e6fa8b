"""Each server that measurements get wrong can be scripted, and does what its script says."""

import time
from itertools import pairwise

import pytest
from tests.fakes.lab import mock_scripts as scripts
from tests.fakes.lab.mock_client import Client, ask, chat_body, get

from paceline.contracts.artefact import NEVER, TOKEN_KINDS, ChunkKind
from paceline.lab.mock import MockServer

MS = 1_000_000


def planned(entry):
    """Milliseconds of the script at which each chunk of tokens was due, and its tokens."""
    return [
        ((chunk.t_planned_ns - entry.t_begin_ns) / MS, chunk.num_tokens)
        for chunk in entry.chunks
        if chunk.kind in TOKEN_KINDS and chunk.num_tokens
    ]


def not_early(entry):
    return all(chunk.t_sent_ns >= chunk.t_planned_ns for chunk in entry.chunks)


def test_tokens_in_bundles():
    with MockServer(scripts.bundled_tokens()) as mock:
        seen = ask(mock.url)
        (entry,) = mock.wait_for(1)
    assert planned(entry) == [(20, 5), (110, 3)]
    assert not_early(entry)
    assert (entry.num_tokens_sent, entry.num_first_tokens) == (8, 5)
    sent = [chunk.t_sent_ns for chunk in entry.chunks if chunk.num_tokens]
    assert entry.tpot_s == pytest.approx((sent[1] - sent[0]) / 3e9)  # over the 3 later tokens: not 7, not 1 chunk
    assert seen.usage["completion_tokens"] == 8
    counts = [event["paceline"]["num_tokens"] for event in seen.events if "paceline" in event]
    assert counts == [5, 3]
    assert seen.text == "a b c d e f g h"


def test_role_and_empty_chunks_come_before_the_first_token():
    with MockServer(scripts.role_then_empty()) as mock:
        seen = ask(mock.url)
        (entry,) = mock.wait_for(1)
    assert [(c.t_planned_ns - entry.t_begin_ns) // MS for c in entry.chunks[:3]] == [10, 20, 200]
    assert seen.events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert seen.events[1]["choices"][0]["delta"] == {"content": ""}
    assert entry.ttft_s >= 0.2
    assert seen.t_end_ns - seen.t_send_ns >= 200 * MS


def test_reasoning_comes_in_its_own_field():
    with MockServer(scripts.reasoning_then_answer()) as mock:
        seen = ask(mock.url)
        (entry,) = mock.wait_for(1)
    assert planned(entry) == [(30, 3), (90, 3)]
    assert seen.events[1]["choices"][0]["delta"] == {"reasoning_content": "let me see"}
    assert seen.usage["completion_tokens_details"] == {"reasoning_tokens": 3}


def test_a_tool_call_and_nothing_else():
    with MockServer(scripts.tool_call_only()) as mock:
        seen = ask(mock.url)
        whole = ask(mock.url, body=chat_body(stream=False, stream_options=None)).json()
        entry = mock.wait_for(2)[0]
    assert planned(entry) == [(25, 3), (45, 2)]
    first = seen.events[1]["choices"][0]["delta"]["tool_calls"][0]
    assert first["function"] == {"name": "get_weather", "arguments": '{"city":'}
    second = seen.events[2]["choices"][0]["delta"]["tool_calls"][0]
    assert second == {"index": 0, "function": {"arguments": ' "Oslo"}'}}
    assert seen.finish_reasons == ["tool_calls"]
    message = whole["choices"][0]["message"]
    assert message["content"] is None
    assert message["tool_calls"][0]["function"] == {"name": "get_weather", "arguments": '{"city": "Oslo"}'}


def test_a_stream_that_closes_without_a_token():
    with MockServer(scripts.no_token()) as mock:
        seen = ask(mock.url)
        (entry,) = mock.wait_for(1)
    assert seen.status == 200
    assert not seen.whole
    assert [event["choices"][0]["delta"] for event in seen.events] == [{"role": "assistant", "content": ""}]
    assert (entry.outcome, entry.t_first_token_ns, entry.num_tokens_sent) == ("cut", NEVER, 0)
    assert entry.ttft_s != entry.ttft_s  # nan


def test_a_complete_answer_of_no_tokens():
    with MockServer(scripts.zero_output()) as mock:
        seen = ask(mock.url)
        (entry,) = mock.wait_for(1)
    assert seen.whole
    assert seen.events[-1] == "[DONE]"
    assert seen.usage["completion_tokens"] == 0
    assert seen.finish_reasons == ["stop"]
    assert entry.num_tokens_sent == 0


def test_an_error_within_a_stream_and_done_after_it():
    with MockServer(scripts.error_in_stream()) as mock:
        seen = ask(mock.url)
        (entry,) = mock.wait_for(1)
    assert seen.status == 200
    assert seen.whole
    assert seen.text == " t0 t1 t2"
    assert "error" in seen.events[-2]
    assert seen.events[-1] == "[DONE]"
    assert seen.usage is None
    assert [c.kind for c in entry.chunks][-2:] == [ChunkKind.ERROR, ChunkKind.DONE]


def test_a_serial_server_serves_one_after_the_other_without_drift():
    """Four at once: they begin exactly one service time apart, by the schedule of the slot."""
    with MockServer(scripts.serial(30)) as mock:
        clients = [Client(mock.url) for _ in range(4)]
        pending = [(client, client.send("/v1/chat/completions", chat_body(max_tokens=1))) for client in clients]
        for client, seen in pending:
            assert client.finish(seen).whole
            client.close()
        entries = sorted(mock.wait_for(4), key=lambda entry: entry.t_begin_ns)
    gaps = [b.t_begin_ns - a.t_begin_ns for a, b in pairwise(entries)]
    assert all(gap >= 30 * MS for gap in gaps)
    waited = [b for b in entries if b.t_begin_ns > b.t_read_ns]
    assert all(entry.t_begin_ns in {other.t_freed_ns for other in entries} for entry in waited)


def test_a_prefix_is_found_again_and_only_by_the_same_words():
    first, other = "a " * 64, "b " * 64
    with MockServer(scripts.prefix_caching()) as mock:
        hits = [ask(mock.url, body=chat_body(words, 1)).usage for words in (first, other, first + "tail", first)]
        get_reset = ask(mock.url, "/v1/internal/reset_prefix_cache", {})
        after = ask(mock.url, body=chat_body(first, 1)).usage
        entries = mock.wait_for(5)
    cached = [usage["prompt_tokens_details"]["cached_tokens"] for usage in [*hits, after]]
    assert cached == [0, 0, 64, 48, 0]  # the last token of a prompt is always computed
    assert get_reset.json()["reset"] is True
    assert [planned(entry)[0][0] for entry in entries] == [64, 64, 1, 16, 64]
    assert len({entry.prompt_sha256 for entry in entries}) == 3


def test_usage_that_differs_from_the_text():
    with MockServer(scripts.usage_differs()) as mock:
        seen = ask(mock.url)
    assert len(seen.text.split()) == 100
    assert seen.usage["completion_tokens"] == 80


def test_refused_twice_then_answered():
    with MockServer(scripts.refuses_twice()) as mock:
        seen = [ask(mock.url) for _ in range(3)]
        entries = mock.wait_for(3)
    assert [s.status for s in seen] == [503, 503, 200]
    assert seen[0].headers["retry-after"] == "1"
    assert seen[0].json()["error"]["message"] == "starting"
    assert [(e.status, e.rule) for e in entries] == [(503, 0), (503, 0), (200, -1)]


def test_a_server_that_never_answers_knows_when_the_client_left():
    with MockServer(scripts.never_answers()) as mock:
        client = Client(mock.url)
        client.send("/v1/chat/completions", chat_body())
        client.socket.settimeout(0.1)
        with pytest.raises(TimeoutError):
            client.read_some()
        before = time.monotonic_ns()
        client.close()
        (entry,) = mock.wait_for(1)
    assert entry.outcome == "client_closed"
    assert entry.t_closed_ns >= before
    assert entry.t_headers_ns == NEVER


def test_slow_answers_do_not_hold_each_other_up():
    with MockServer(scripts.slow(300)) as mock:
        clients = [Client(mock.url) for _ in range(20)]
        pending = [(client, client.send("/v1/chat/completions", chat_body(max_tokens=1))) for client in clients]
        for client, seen in pending:
            client.finish(seen)
            client.close()
        entries = mock.wait_for(20)
    assert all(entry.t_begin_ns == entry.t_read_ns for entry in entries)
    assert {planned(entry)[0][0] for entry in entries} == {300}


def test_a_client_that_leaves_gives_its_slot_to_the_next():
    with MockServer(scripts.long_answers()) as mock:
        client = Client(mock.url)
        client.send("/v1/chat/completions", chat_body(max_tokens=2000))
        client.read_some()
        running = get(mock.url, "/metrics").body.decode()
        client.close()
        gone = mock.wait_for(1)[0]
        idle = get(mock.url, "/metrics").body.decode()
        following = ask(mock.url, body=chat_body(max_tokens=2))
        entries = mock.wait_for(2)
    assert "paceline:num_requests_running 1" in running
    assert 'paceline:kv_blocks{state="held"} 0' not in running
    assert "paceline:num_requests_running 0" in idle
    assert 'paceline:kv_blocks{state="held"} 0' in idle
    assert gone.outcome == "client_closed"
    assert gone.t_freed_ns == gone.t_closed_ns
    assert gone.num_tokens_sent < 2000
    assert following.whole
    assert entries[1].t_begin_ns == entries[1].t_read_ns  # it did not wait
    assert planned(entries[1]) == [(10, 1), (20, 1)]


def test_a_server_that_works_on_holds_the_slot_to_the_end():
    with MockServer(scripts.works_on()) as mock:
        client = Client(mock.url)
        client.send("/v1/chat/completions", chat_body(max_tokens=30))
        client.read_some()
        client.close()
        mock.wait_for(1)
        assert ask(mock.url, body=chat_body(max_tokens=1)).whole
        gone, following = mock.wait_for(2)
    assert gone.t_freed_ns - gone.t_begin_ns == 300 * MS
    assert gone.t_closed_ns < gone.t_freed_ns
    assert following.t_begin_ns == max(gone.t_freed_ns, following.t_read_ns)


def test_every_fifth_fails():
    with MockServer(scripts.one_in_five_fails()) as mock:
        assert [ask(mock.url).status for _ in range(10)] == [200, 200, 200, 200, 500] * 2
