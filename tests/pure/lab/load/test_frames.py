import io
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from paceline.lab.load.frames import FrameSplitter, Kind, frame, read_frame
from paceline.lab.load.prepare import share_of

DATA = frame(Kind.JOB, {"a": 1}) + frame(Kind.END) + frame(Kind.TURN, "x" * 1000)
KINDS = [Kind.JOB, Kind.END, Kind.TURN]


@given(st.lists(st.integers(0, len(DATA)), max_size=6))
def test_frames_out_of_any_pieces(cuts):
    places = [0, *sorted(cuts), len(DATA)]
    splitter = FrameSplitter()
    found = [item for a, b in pairwise(places) for item in splitter.feed(DATA[a:b])]
    assert [kind for kind, _ in found] == KINDS
    assert found[0][1] == b"\x81\xa1a\x01"


def test_a_blocking_stream_ends_with_its_last_whole_frame():
    stream = io.BytesIO(DATA + frame(Kind.DONE, "cut off")[:-3])
    found = []
    while (item := read_frame(stream)) is not None:
        found.append(item[0])
    assert found == KINDS


def test_shares_add_up():
    assert [share_of(i, 10, 4) for i in range(4)] == [3, 3, 2, 2]
