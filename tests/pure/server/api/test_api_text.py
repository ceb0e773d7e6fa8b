"""Text, ids, logprobs and usage through the API: one cut for all of them, exact bytes under every chunking."""

import asyncio
import itertools
import json

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes.api_server import (
    BOS,
    EOS,
    PIECES,
    api_server,
    byte_tokenizer,
    events,
    finishes,
    piece,
    run,
    text_ids,
    texts,
)
from tests.fakes.raw_asgi import RawCall

TOKENS = byte_tokenizer()
TABLE = TOKENS.token_bytes()


def oracle(script, stops, *, include=False, min_tokens=0):
    """(text, token ids, reason) of what should come, from the definition: the first stop string to end in the bytes,
    at or after the token that may stop. A token that begins before the stop stays, the others go."""
    data, ends = b"", []
    begin_at = 0  # a match completed too early is forgotten, and matching begins anew behind it
    for index, token in enumerate(script):
        if token == EOS and index >= min_tokens:
            return data.decode(errors="replace"), script[: index + 1], None
        start = len(data)
        for byte in TABLE[token]:
            data += bytes([byte])
            seen = data[begin_at:]
            found = max((s for s in stops if seen.endswith(s.encode())), key=lambda s: len(s.encode()), default=None)
            if found is None:
                continue
            begin_at = len(data)
            if index < min_tokens:
                continue
            keep_to = len(data) if include else len(data) - len(found.encode())
            starts = [*(e[0] for e in ends), start]
            sizes = [*(len(TABLE[t]) for t in script[:index]), len(TABLE[token])]
            kept = [t for t, s, n in zip(script, starts, sizes, strict=False) if s < keep_to or s + n <= keep_to]
            return data[:keep_to].decode(errors="replace"), kept, found
        ends.append((start, len(data)))
    return data.decode(errors="replace"), script, None


def test_text_ids_logprobs_and_usage_are_cut_at_the_same_place():
    """With tokens that begin before a stop, lie in it, and end after it."""
    cases = [
        ([*text_ids("say "), *text_ids("END"), *text_ids(" more")], ["END"]),
        ([97, piece(5), piece(6), 98], ["END"]),  # "a" "xEN" "Dy" "b": the stop begins within a token
        ([97, piece(4), 98], ["END"]),  # the stop is a token
        ([97, 69, 78, 97, piece(5), 98, 99], ["END"]),  # looks like one twice and is none
        ([0xC3, 0xA9, 0xC3, 0xA8, 97], ["è"]),
        ([97, 0xE6, 0x97, piece(7)], ["日本"]),  # a broken character before it
    ]

    async def body():
        async with api_server() as server:
            for number, (script, stops) in enumerate(cases, start=1):
                server.scripts[number] = script
                text, ids, reason = oracle([*script, EOS], stops)
                fields = {"seed": number, "stop": stops, "logprobs": 0, "return_token_ids": True, "max_tokens": 50}
                whole = (await server.complete("x", **fields)).json()
                choice = whole["choices"][0]
                assert (choice["text"], choice["token_ids"], choice["stop_reason"]) == (text, ids, reason), number
                assert choice["finish_reason"] == "stop"
                assert len(choice["logprobs"]["tokens"]) == whole["usage"]["completion_tokens"] == len(ids)
                chunks = events(await server.complete("x", **fields, stream=True))
                assert texts(chunks) == {0: text}
                assert [i for c in chunks for i in c["choices"][0].get("token_ids", ())] == ids
                assert sum(c["paceline"]["num_tokens"] for c in chunks) == len(ids)
                assert sum(len((c["choices"][0]["logprobs"] or {"tokens": ()})["tokens"]) for c in chunks) == len(ids)

    run(body)


def test_the_stream_withholds_only_what_may_become_a_stop():
    """One step at a time: what may be shown is shown at once."""

    async def body():
        async with api_server(scripts={1: text_ids("abENcdEND!")}) as server:
            steps = server.new_gate()
            call = RawCall(server.app, "/v1/completions", {"prompt": "x", "seed": 1, "stop": "END", "stream": True})
            for expected in ("a", "ab", "ab", "ab", "abENc", "abENcd", "abENcd", "abENcd"):
                steps.release()
                await call.until(lambda c, text=expected: shown(c) == text)
                await asyncio.sleep(0.01)  # whatever else there is to come, may come
                assert shown(call) == expected
            steps.release()
            await call.end()
            assert shown(call) == "abENcd"
            assert call.events[-1] == b"[DONE]"

    run(body)


def shown(call):
    return "".join(json.loads(e)["choices"][0]["text"] for e in call.events if e != b"[DONE]")


def test_min_tokens_hold_for_stop_strings_and_stop_ids():
    """T23."""
    script = [*text_ids("xEND"), EOS, *text_ids("yENDz"), 98, *text_ids("END")]

    async def body():
        async with api_server(scripts={1: script}) as server:
            for stream, least in itertools.product((False, True), range(11)):
                fields = {"seed": 1, "stop": ["END"], "stop_token_ids": [98], "min_tokens": least, "stream": stream}
                response = await server.complete("x", **fields, max_tokens=40, return_token_ids=True)
                choices = [c["choices"][0] for c in events(response)] if stream else response.json()["choices"]
                ids = [i for c in choices for i in c.get("token_ids", ())]
                text = "".join(c["text"] for c in choices)
                if least <= 3:
                    assert (text, ids) == ("x", [120])
                elif least == 4:
                    assert (text, ids) == ("xEND", script[:5])
                elif least <= 8:
                    assert (text, ids) == ("xENDy", script[:6])
                else:
                    assert (text, ids) == ("xENDyENDz", script[:11])

    run(body)


@settings(max_examples=40)
@given(
    st.lists(
        st.sampled_from([69, 78, 68, 97, 0xC3, 0xA9, 0xE6, BOS, *map(piece, range(len(PIECES)))]),
        min_size=1,
        max_size=20,
    ),
    st.lists(st.sampled_from(["END", "EN", "é", "日本", "a", "o w", "xE"]), min_size=1, max_size=3, unique=True),
    st.booleans(),
)
def test_random_texts_and_stops_agree_with_the_definition(script, stops, include):
    async def body():
        async with api_server(scripts={1: script}) as server:
            text, ids, reason = oracle([*script, EOS], stops, include=include)
            fields = {"seed": 1, "stop": stops, "include_stop_str_in_output": include, "max_tokens": 60}
            whole, streamed = await asyncio.gather(
                server.complete("x", **fields, return_token_ids=True), server.complete("x", **fields, stream=True)
            )
            choice = whole.json()["choices"][0]
            assert (choice["text"], choice["token_ids"], choice["stop_reason"]) == (text, ids, reason)
            assert texts(events(streamed)) == {0: text}

    run(body)


@settings(max_examples=40)
@given(st.text(max_size=24), st.data())
def test_deltas_join_to_the_text_however_it_is_cut(text, data):
    """T26: no U+FFFD unless the model wrote it. Line ends that are none to JSON break no event either."""
    script = text_ids(text + "\u2028\x85end")
    tail = data.draw(st.lists(st.integers(0, 255), max_size=3))
    expected = (text + "\u2028\x85end").encode() + bytes(tail)

    async def body():
        async with api_server(scripts={1: [*script, *tail]}, max_model_len=256) as server:
            whole, chat, completion = await asyncio.gather(
                server.complete("x", seed=1, max_tokens=200),
                server.chat("x", seed=1, stream=True),
                server.complete("x", seed=1, stream=True, max_tokens=200),
            )
            assert whole.json()["choices"][0]["text"] == expected.decode(errors="replace")
            for streamed in (chat, completion):
                assert texts(events(streamed)) == {0: expected.decode(errors="replace")}
                assert len(streamed.text.splitlines()) == streamed.content.count(b"\n")

    run(body)


def test_finish_reasons():
    async def body():
        async with api_server(scripts={1: text_ids("abc")}) as server:
            for fields, reason in (({}, "stop"), ({"max_tokens": 2}, "length"), ({"stop": "b"}, "stop")):
                assert (await server.complete("x", seed=1, **fields)).json()["choices"][0]["finish_reason"] == reason
                chunks = events(await server.complete("x", seed=1, stream=True, **fields))
                assert finishes(chunks) == {0: reason}

    run(body)
