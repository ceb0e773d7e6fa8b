"""Times and bytes of replies, without a socket."""

from itertools import pairwise

import pytest

from paceline.contracts.artefact import ChunkKind
from paceline.lab.mock import Fault, Reply, Script, ScriptChunk, Service
from paceline.lab.mock.asks import Ask
from paceline.lab.mock.finishing import Setting
from paceline.lab.mock.play import End, Piece, Play, frame, split, with_comments
from paceline.lab.mock.replies import play_reply, play_service
from paceline.lab.mock.wording import Voice

MS = 1_000_000


def setting(*, tokens=8, words=4, number=0, cached=0, chat=True, streamed=True, **more):
    ask = Ask(chat, "mock", ["w"] * words, streamed=streamed, max_tokens=tokens, include_usage=streamed, **more)
    return Setting(ask, Voice.of(Script(), ask), number, 0, cached)


def tokens_of(play: Play) -> list[tuple[float, int]]:
    return [(piece.at_ns / MS, piece.num_tokens) for piece in play.pieces if piece.brings_tokens]


def wire(play: Play) -> bytes:
    return b"".join(piece.data for piece in play.pieces)


@pytest.mark.parametrize(
    ("bundles", "expected"),
    [
        (1, [(50 + 10 * i, 1) for i in range(8)]),
        (3, [(50, 3), (80, 3), (100, 2)]),
        ((5, 1), [(50, 5), (60, 1), (80, 2)]),
        (20, [(50, 8)]),
    ],
)
def test_each_gap_is_tpot_times_the_tokens_it_brings(bundles, expected):
    play = play_service(Service(ttft_ms=50, tpot_ms=10, tokens_per_chunk=bundles), setting())
    assert tokens_of(play) == expected
    assert play.hold_ns == expected[-1][0] * MS
    assert play.prefilled_ns == 50 * MS


def test_only_computed_prompt_tokens_cost_prefill():
    service = Service(ttft_ms=10, prefill_ms_per_token=0.5)
    assert tokens_of(play_service(service, setting(tokens=1, words=100)))[0][0] == 60
    assert tokens_of(play_service(service, setting(tokens=1, words=100, cached=96)))[0][0] == 12


def test_jitter_is_a_function_of_seed_and_request_and_keeps_the_mean():
    service = Service(ttft_ms=20, tpot_ms=10, jitter=0.3, seed=3)
    first = [tokens_of(play_service(service, setting(number=n, tokens=50))) for n in range(200)]
    again = [tokens_of(play_service(service, setting(number=n, tokens=50))) for n in range(200)]
    other = tokens_of(play_service(Service(ttft_ms=20, tpot_ms=10, jitter=0.3, seed=4), setting(tokens=50)))
    assert first == again
    assert other != first[0]
    assert first[0] != first[1]
    gaps = [b - a for times in first for (a, _), (b, _) in pairwise(times)]
    assert sum(gaps) / len(gaps) == pytest.approx(10, rel=0.02)
    assert sum(times[0][0] for times in first) / len(first) == pytest.approx(20, rel=0.1)


@pytest.mark.parametrize(
    ("service", "more", "count", "reason"),
    [
        (Service(), {}, 8, "length"),
        (Service(stop_after_tokens=5), {}, 5, "stop"),
        (Service(stop_after_tokens=5), {"ignore_eos": True}, 8, "length"),
        (Service(stop_after_tokens=5), {"min_tokens": 7}, 7, "stop"),
        (Service(stop_after_tokens=8), {}, 8, "length"),
        (Service(stop_after_tokens=0), {}, 0, "stop"),
    ],
)
def test_when_an_answer_ends(service, more, count, reason):
    play = play_service(service, setting(**more))
    assert sum(count for _, count in tokens_of(play)) == count
    assert f'"finish_reason":"{reason}"'.encode() in wire(play)


def test_scripted_times_may_be_gaps_or_absolute():
    chunks = (ScriptChunk(10, text="a"), ScriptChunk(text="b", at_ms=50), ScriptChunk(5, text="c d", num_tokens=7))
    assert tokens_of(play_reply(Reply(chunks=chunks), setting())) == [(10, 1), (50, 1), (55, 7)]


def test_the_tail_is_no_token():
    play = play_service(Service(ttft_ms=10, tail_ms=90), setting(tokens=1))
    at = {piece.kind: piece.at_ns / MS for piece in play.pieces if piece.kind is not None}
    assert at[ChunkKind.CONTENT] == 10
    assert at[ChunkKind.USAGE] == at[ChunkKind.DONE] == 100
    assert play.hold_ns == 10 * MS


@pytest.mark.parametrize(("given", "at"), [(None, 30), (0, 0), (12, 12), (99, 30)])
def test_the_head_comes_with_the_first_event_or_before(given, at):
    play = play_service(Service(ttft_ms=30, headers_ms=given), setting())
    assert play.pieces[0].data.startswith(b"HTTP/1.1 200")
    assert play.pieces[0].at_ns == at * MS


def test_comments_fill_silence():
    pieces = [Piece(100 * MS, b"a", ChunkKind.CONTENT, 1), Piece(130 * MS, b"b"), Piece(210 * MS, b"c")]
    found = with_comments(pieces, 40)
    assert [(p.at_ns // MS, p.data) for p in found] == [
        (40, frame(b": ping\n\n")),
        (80, frame(b": ping\n\n")),
        (100, b"a"),
        (130, b"b"),
        (170, frame(b": ping\n\n")),
        (210, b"c"),
    ]


def test_split_keeps_every_byte_and_counts_an_event_with_its_last():
    pieces = [Piece(0, b"head"), Piece(5 * MS, b"abcdefg", ChunkKind.CONTENT, 2), Piece(5 * MS, b"hi")]
    found = split(pieces, (1, 3), 2.0)
    assert b"".join(p.data for p in found) == b"headabcdefghi"
    assert [p.data for p in found] == [b"h", b"ead", b"a", b"bcd", b"e", b"fg", b"h", b"i"]
    assert [p.at_ns // MS for p in found] == [0, 2, 5, 7, 9, 11, 13, 15]
    assert [p.num_tokens for p in found if p.num_tokens] == [2]
    assert next(p for p in found if p.num_tokens).data == b"fg"


@pytest.mark.parametrize(
    ("fault", "end", "chunks"),
    [
        (Fault(cut_after_chunks=2), End.CLOSE, 2),
        (Fault(cut_after_chunks=0), End.CLOSE, 0),
        (Fault(cut_after_chunks=1, reset=True), End.RESET, 1),
        (Fault(hang_after_chunks=3), End.HANG, 3),
        (Fault(never_answer=True), End.HANG, 0),
        (Fault(error_after_chunks=2), End.KEEP, 2),
        (Fault(malformed_after_chunks=2), End.KEEP, 8),
        (Fault(cut_after_chunks=99), End.KEEP, 8),
    ],
)
def test_faults_keep_what_came_before(fault, end, chunks):
    play = play_service(Service(ttft_ms=10, tpot_ms=10, fault=fault), setting())
    assert play.end is end
    assert len(tokens_of(play)) == chunks
    assert wire(play).endswith(b"\r\n0\r\n\r\n") == (end is End.KEEP)


def test_an_error_comes_when_the_next_tokens_would_have():
    play = play_service(Service(ttft_ms=10, tpot_ms=10, fault=Fault(error_after_chunks=2)), setting())
    error = next(p for p in play.pieces if p.kind is ChunkKind.ERROR)
    assert error.at_ns == 30 * MS
    assert b"[DONE]" not in wire(play)
    assert b'"finish_reason":"length"' not in wire(play)


def test_usage_may_claim_more_than_was_sent():
    assert b'"completion_tokens":13' in wire(play_service(Service(usage_offset_tokens=5), setting()))
    assert b'"completion_tokens":6' in wire(play_service(Service(usage_offset_tokens=-2), setting()))
