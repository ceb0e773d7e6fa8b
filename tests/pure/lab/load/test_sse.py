from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.lab.load.sse import MAX_EVENT_BYTES, EventSplitter, EventTooLongError

STREAM = (
    b": hello\n\n"
    b'data: {"a": 1}\n\n'
    b"event: message\r\nid: 7\r\ndata:{}\r\n\r\n"
    b"data: two\ndata: lines\n\n"
    b"\n\n"
    b": ping\n\n"
    b"data: caf\xc3\xa9\r\r"
    b"retry: 10\n\n"
    b"data: [DONE]\n\n"
)
EVENTS = [b'{"a": 1}', b"{}", b"two\nlines", "café".encode(), b"[DONE]"]


def read(*pieces: bytes) -> list[bytes]:
    splitter = EventSplitter()
    found = [event for piece in pieces for event in splitter.feed(piece)]
    return found + splitter.end()


def test_events_of_a_stream_in_one_piece():
    assert read(STREAM) == EVENTS


def test_byte_by_byte():
    assert read(*(STREAM[i : i + 1] for i in range(len(STREAM)))) == EVENTS


@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_any_cut_gives_the_same_events(cuts):
    places = [0, *sorted(cuts), len(STREAM)]
    assert read(*(STREAM[a:b] for a, b in pairwise(places))) == EVENTS


def test_each_event_is_given_when_its_blank_line_is_there():
    splitter = EventSplitter()
    assert splitter.feed(b"data: 1\n") == []
    assert splitter.feed(b"\ndata: 2\n\nda") == [b"1", b"2"]
    assert splitter.feed(b"ta: 3\r\n\r") == []
    assert splitter.feed(b"\n") == [b"3"]


def test_the_last_event_may_lack_its_blank_line():
    assert read(b"data: 1\n\ndata: [DONE]") == [b"1", b"[DONE]"]


@pytest.mark.parametrize(
    "stream",
    [b'error: {"code": 500}\n\n', b'event: error\ndata: {"code": 500}\n\n', b'data: {"error":{"code": 500}}\n\n'],
)
def test_an_error_by_any_name_says_so(stream):
    (event,) = read(stream)
    assert event == b'{"error":{"code": 500}}'


def test_an_event_without_end_is_refused():
    splitter = EventSplitter()
    with pytest.raises(EventTooLongError):
        splitter.feed(b"data: " + b"x" * MAX_EVENT_BYTES)
