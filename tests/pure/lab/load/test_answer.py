import json

import pytest
from tests.fakes.lab.loads import timeline

from paceline.contracts.artefact import ChunkKind, RequestRecord, TokenSource
from paceline.contracts.slo import Outcome
from paceline.lab.load.answer import Answer

MS = 1_000_000


def chunk(delta=None, *, finish=None, num_tokens=None, usage=None, **more):
    choice = {"index": 0, "delta": delta or {}, "finish_reason": finish}
    value = {"id": "x", "object": "chat.completion.chunk", "choices": [choice], "usage": usage, **more}
    if num_tokens is not None:
        value["paceline"] = {"num_tokens": num_tokens}
    return value


def text(content, **more):
    return chunk({"content": content}, **more)


def usage(prompt, completion, **details):
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion, **details}


def answered(*events, keep=False):
    """Each event is (ms, value); a value that is no text is encoded."""
    answer = Answer(keep=keep)
    for ms, value in events:
        answer.on_event(value.encode() if isinstance(value, str) else json.dumps(value).encode(), round(ms * MS))
    return answer


def record_of(answer, *, t_plan=0):
    return RequestRecord(id=0, stream="s", t_plan_ns=t_plan, t_send_ns=t_plan, chunks=answer.chunks)


def kinds(answer):
    return [c.kind.value for c in answer.chunks]


def test_bundles_of_tokens_are_counted_by_what_the_server_says():
    """8 tokens in 2 chunks, 5 then 3, 90 ms apart: 30 ms per token."""
    answer = answered(
        (100, text("a b c d e", num_tokens=5)),
        (190, text(" f g h", num_tokens=3)),
        (190, chunk(finish="length", num_tokens=0)),
        (190, {"choices": [], "usage": usage(3, 8)}),
        (190, "[DONE]"),
    )
    line = timeline(record_of(answer))
    assert line.tpot_s == pytest.approx(0.030)
    assert line.itl_s() == pytest.approx([0.030] * 3)
    assert [c.num_tokens for c in answer.chunks] == [5, 3, 0, -1, -1]
    assert kinds(answer) == ["content", "content", "role", "usage", "done"]
    assert answer.token_source is TokenSource.CHUNK_USAGE
    assert answer.judge(8, exact=True) == (Outcome.OK, "length")


def test_role_and_empty_chunks_are_no_first_token():
    answer = answered((10, chunk({"role": "assistant", "content": ""})), (20, text("")), (200, text("hi")))
    assert timeline(record_of(answer)).ttft_s == pytest.approx(0.200)
    assert kinds(answer) == ["role", "role", "content"]


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_reasoning_counts_as_tokens_of_its_own_kind(field):
    answer = answered((10, chunk({field: "hm"})), (20, text("yes")), (30, chunk(finish="stop")))
    assert kinds(answer) == ["reasoning", "content", "role"]
    assert answer.judge(4, exact=False) == (Outcome.OK, "stop")


def test_a_tool_call_is_put_together_from_its_parts():
    def part(index, **function):
        return chunk({"tool_calls": [{"index": index, "function": function}]})

    answer = answered(
        (1, chunk({"tool_calls": [{"index": 0, "id": "c0", "function": {"name": "add", "arguments": ""}}]})),
        (2, part(0, arguments='{"a": 1')),
        (3, part(0, arguments=', "b": 2}')),
        (4, part(1, name="stop", arguments={"now": True})),  # some servers send an object
        (5, chunk({"tool_calls": []}, finish="tool_calls")),
        keep=True,
    )
    assert kinds(answer) == ["tool"] * 4 + ["role"]
    assert answer.tool_calls == [
        {"index": 0, "id": "c0", "name": "add", "arguments": '{"a": 1, "b": 2}'},
        {"index": 1, "id": None, "name": "stop", "arguments": '{"now":true}'},
    ]
    assert answer.judge(9, exact=False) == (Outcome.OK, "tool_calls")


def test_a_stream_without_a_token_is_not_ok():
    answer = answered((5, chunk({"role": "assistant"})), (9, chunk(finish="stop")), (9, "[DONE]"))
    outcome, reason = answer.judge(4, exact=True)
    assert outcome is Outcome.TRUNCATED
    assert reason.startswith("no_token")
    assert timeline(record_of(answer)).ttft_s != timeline(record_of(answer)).ttft_s  # nan, neither 0 nor negative
    assert answer.token_source is TokenSource.NONE


def test_a_complete_answer_of_nothing_is_not_ok():
    answer = Answer()
    body = {"choices": [{"message": {"content": ""}, "finish_reason": "stop"}], "usage": usage(3, 0)}
    answer.on_whole(json.dumps(body).encode(), 5 * MS)
    assert answer.judge(4, exact=False)[0] is Outcome.TRUNCATED


@pytest.mark.parametrize(
    "error",
    [
        {"error": {"message": "boom", "code": 500}},
        {"error": "boom"},
        {"object": "error", "message": "boom", "code": 500},
        {"error": {"message": "boom"}, "choices": []},
    ],
)
def test_an_error_within_the_stream_is_the_outcome_whatever_follows(error):
    answer = answered((1, text("a")), (2, text("b")), (3, text("c")), (4, error), (4, "[DONE]"))
    outcome, reason = answer.judge(3, exact=True)
    assert outcome is Outcome.STREAM_ERROR
    assert "boom" in reason
    assert kinds(answer)[-2:] == ["error", "done"]


def test_usage_is_the_truth_about_tokens():
    """80 by usage, whatever the chunks are."""
    events = [(i, text(f"w{i} ")) for i in range(100)]
    answer = answered(*events, (100, chunk(finish="length")), (101, {"choices": [], "usage": usage(7, 80)}))
    assert (answer.num_tokens, answer.completion_tokens, answer.prompt_tokens) == (80, 80, 7)
    assert answer.token_source is TokenSource.FINAL_USAGE
    assert answer.judge(80, exact=True)[0] is Outcome.OK


def test_a_running_total_of_usage_gives_counts():
    answer = answered(
        (1, chunk({"role": "assistant"}, usage=usage(9, 0))),
        (2, text("a b", usage=usage(9, 2))),
        (3, text(" c d e", usage=usage(9, 5))),
        (3, chunk(finish="stop", usage=usage(9, 6))),
        (4, {"choices": [], "usage": usage(9, 6, prompt_tokens_details={"cached_tokens": 8})}),
    )
    assert [c.num_tokens for c in answer.chunks] == [-1, 2, 3, 1, -1]
    assert answer.token_source is TokenSource.CHUNK_USAGE
    assert answer.cached_tokens == 8
    assert answer.num_seen == 6


def test_timings_of_llama_server_give_counts():
    answer = answered(
        (2, text("a", timings={"predicted_n": 1, "prompt_ms": 12.5})),
        (3, text(" b c", timings={"predicted_n": 3, "prompt_ms": 12.5})),
        (4, chunk(finish="stop", timings={"predicted_n": 3})),
    )
    assert [c.num_tokens for c in answer.chunks] == [1, 2, 0]
    assert answer.server == {"prefill_ms": 12.5}


def test_a_total_at_the_end_alone_is_no_count_of_that_chunk():
    answer = answered((2, text("a b")), (4, chunk(finish="stop", timings={"predicted_n": 2}, usage=usage(1, 2))))
    assert [c.num_tokens for c in answer.chunks] == [-1, -1]
    assert answer.token_source is TokenSource.FINAL_USAGE


def test_token_ids_give_counts():
    event = {"choices": [{"text": "ab", "token_ids": [5, 6, 7], "finish_reason": "stop"}]}
    answer = answered((1, event))
    assert [c.num_tokens for c in answer.chunks] == [3]


def test_null_details_of_usage_are_unknown():
    answer = answered((1, {"choices": [], "usage": usage(1, 1, prompt_tokens_details=None)}))
    assert (answer.cached_tokens, answer.reasoning_tokens) == (-1, -1)


def test_timings_of_paceline_without_unknown_ones():
    event = {"choices": [], "usage": usage(1, 1), "paceline": {"num_tokens": 0, "timings": {"queue_ms": 3, "x": None}}}
    assert answered((1, event)).server == {"queue_ms": 3.0}


def test_llama_cpp_tells_its_cache_in_its_timings():
    end = chunk(finish="stop", timings={"predicted_n": 2, "cache_n": 30, "prompt_n": 10, "prompt_ms": 5.5})
    answer = answered((2, text("a b")), (4, end), (4, {"choices": [], "usage": usage(40, 2)}))
    assert (answer.prompt_tokens, answer.cached_tokens, answer.server) == (40, 30, {"prefill_ms": 5.5})
    told = usage(40, 2, prompt_tokens_details={"cached_tokens": 31})
    assert answered((4, end), (4, {"choices": [], "usage": told})).cached_tokens == 31  # usage is the truth
    whole = Answer()
    body = {"choices": [{"message": {"content": "a b"}, "finish_reason": "stop"}], "usage": usage(40, 2)}
    whole.on_whole(json.dumps(body | {"timings": {"cache_n": 30}}).encode(), 5)
    assert whole.cached_tokens == 30


@pytest.mark.parametrize(
    ("finish", "tokens", "exact", "outcome"),
    [
        ("length", 3, True, Outcome.TRUNCATED),  # it had to be 4
        ("length", 4, True, Outcome.OK),
        ("length", 3, False, Outcome.OK),
        ("stop", 3, True, Outcome.OK),
        (None, 4, True, Outcome.TRUNCATED),  # a stream without a finish
        ("abort", 4, False, Outcome.STREAM_ERROR),  # the server gave up, and says so where others say "stop"
        ("error", 4, True, Outcome.STREAM_ERROR),
    ],
)
def test_truncated(finish, tokens, exact, outcome):
    answer = answered((1, text("a b c", num_tokens=tokens)), (2, chunk(finish=finish)), (3, "[DONE]"))
    assert answer.judge(4, exact=exact)[0] is outcome


@pytest.mark.parametrize("bad", ["{", '{"choices": 3}', '{"choices": [{"delta": {"content": 5}}]}', "null", "[]"])
def test_an_event_that_cannot_be_read_is_counted_and_the_rest_goes_on(bad):
    answer = answered((1, text("a")), (2, bad), (3, text("b")), (4, chunk(finish="stop")))
    assert answer.num_lost == 1
    assert answer.judge(2, exact=False) == (Outcome.OK, "stop")


def test_nothing_but_unreadable_events_is_an_error():
    answer = answered((1, "{"), (2, "{"))
    assert answer.judge(2, exact=False) == (Outcome.STREAM_ERROR, "unreadable: 2 events")


def test_a_whole_answer_is_one_chunk_with_all_its_tokens():
    answer = Answer(keep=True)
    message = {"content": "four words of text", "tool_calls": None}
    body = {"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage(3, 4)}
    answer.on_whole(json.dumps(body).encode(), 7 * MS)
    assert [(c.t_ns, c.kind, c.num_tokens, c.num_bytes) for c in answer.chunks] == [(7 * MS, ChunkKind.CONTENT, 4, 18)]
    assert answer.text == "four words of text"
    assert answer.judge(4, exact=True) == (Outcome.OK, "stop")


def test_texts_stay_only_where_they_are_asked_for():
    assert answered((1, text("secret"))).text == ""
    assert answered((1, text("kept")), keep=True).text == "kept"


def test_bytes_are_those_of_utf8():
    assert answered((1, text("é€😀"))).chunks[0].num_bytes == 9
