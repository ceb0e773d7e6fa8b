"""Whatever a script holds: the client gets every byte of it, and the log counts what was sent."""

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes.lab.mock_client import Client, ask, chat_body

from paceline.contracts.artefact import TOKEN_KINDS, ChunkKind
from paceline.lab.mock import Fault, Flavour, MockServer, Reply, Script, ScriptChunk, Service

KINDS = (ChunkKind.ROLE, ChunkKind.CONTENT, ChunkKind.REASONING, ChunkKind.TOOL)
CHUNKS = st.builds(
    ScriptChunk,
    delay_ms=st.sampled_from([0.0, 0.0, 1.0, 2.5]),
    kind=st.sampled_from(KINDS),
    text=st.text(alphabet='ab é\u2028\n"{', max_size=6),
    num_tokens=st.none() | st.integers(0, 5),
)
FAULTS = st.builds(
    Fault,
    split_bytes=st.lists(st.integers(1, 40), max_size=4).map(tuple),
    comment_every_ms=st.none() | st.just(1.0),
    no_usage=st.booleans(),
    no_done=st.booleans(),
    cut_after_chunks=st.none() | st.integers(0, 4),
)


@settings(max_examples=40)
@given(st.lists(CHUNKS, max_size=6), FAULTS, st.sampled_from(list(Flavour)), st.booleans())
def test_what_is_written_is_what_comes(chunks, fault, flavour, streamed):
    body = chat_body() if streamed else chat_body(stream=False, stream_options=None)
    with MockServer(Script(flavour=flavour, reply=Reply(chunks=tuple(chunks), fault=fault))) as mock:
        seen = ask(mock.url, body=body)
        (entry,) = mock.wait_for(1)
    counts = [c.num_tokens if c.num_tokens is not None else len(c.text.split()) for c in chunks]
    bringing = [count for chunk, count in zip(chunks, counts, strict=True) if chunk.kind in TOKEN_KINDS and count]
    cut = fault.cut_after_chunks
    early = cut is not None and cut <= len(bringing)
    assert seen.whole == (not early)
    assert entry.outcome == ("cut" if early else "done")
    times = [chunk.t_planned_ns for chunk in entry.chunks]
    assert times == sorted(times)
    assert all(chunk.t_sent_ns >= chunk.t_planned_ns for chunk in entry.chunks)
    if early:
        assert entry.num_tokens_sent == (sum(bringing[:cut]) if streamed else 0)
        return
    assert entry.num_tokens_sent == sum(bringing)
    said = "".join(chunk.text for chunk in chunks if chunk.kind in (ChunkKind.CONTENT, ChunkKind.ROLE))
    if streamed:
        assert seen.text == said
        assert (seen.events[-1:] == ["[DONE]"]) == (not fault.no_done)
        assert (seen.usage is None) == fault.no_usage
    usage = seen.usage if streamed else seen.json().get("usage")
    if usage is not None:
        assert usage["completion_tokens"] == sum(bringing)


@settings(max_examples=25)
@given(
    st.lists(st.tuples(st.integers(1, 12), st.booleans()), min_size=1, max_size=8),
    st.integers(1, 3),
    st.integers(1, 4),
)
def test_no_more_requests_than_slots_are_served_at_once(asked, slots, bundle):
    service = Service(ttft_ms=1, tpot_ms=0.5, tokens_per_chunk=bundle, slots=slots)
    with MockServer(Script(service=service)) as mock:
        clients = [Client(mock.url) for _ in asked]
        pending = [
            client.send("/v1/chat/completions", chat_body(max_tokens=count))
            for client, (count, _) in zip(clients, asked, strict=True)
        ]
        for client, seen, (_, stays) in zip(clients, pending, asked, strict=True):
            if stays:
                assert client.finish(seen).whole
            client.close()
        entries = mock.wait_for(len(asked))
    served = [entry for entry in entries if entry.t_begin_ns >= 0]
    changes = sorted([(e.t_begin_ns, 1) for e in served] + [(e.t_freed_ns, -1) for e in served])
    busy = peak = 0
    for _, change in changes:
        busy += change
        peak = max(peak, busy)
    assert busy == 0
    assert peak <= slots
    for entry, (count, stays) in zip(entries, asked, strict=True):
        if stays:
            assert entry.num_tokens_sent == count
