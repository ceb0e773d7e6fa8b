"""/v1/chat/completions over a real engine: what it answers, streamed and whole."""

import pytest
from tests.fakes.api_server import EOS, MODEL, api_server, events, finishes, run, text_ids, texts

HELLO = {1: text_ids("Hello, wörld!")}


def test_a_whole_answer_has_openais_shape():
    async def body():
        async with api_server(scripts=HELLO) as server:
            answer = (await server.chat(seed=1)).json()
            assert answer["object"] == "chat.completion"
            assert answer["id"].startswith("chatcmpl-")
            assert answer["model"] == MODEL
            (choice,) = answer["choices"]
            assert choice["message"] == {"role": "assistant", "content": "Hello, wörld!", "refusal": None}
            assert (choice["finish_reason"], choice["stop_reason"], choice["logprobs"]) == ("stop", None, None)
            # 14 bytes and the end of the turn
            assert answer["usage"] == {
                "prompt_tokens": len("<user: hi><") + len("assistant: "),
                "completion_tokens": 15,
                "total_tokens": 37,
                "prompt_tokens_details": {"cached_tokens": 0},
            }
            assert answer["paceline"] == {"num_tokens": 15}

    run(body)


def test_a_stream_begins_with_the_role_and_ends_with_the_reason():
    async def body():
        async with api_server(scripts=HELLO) as server:
            chunks = events(await server.chat(seed=1, stream=True))
            assert {c["object"] for c in chunks} == {"chat.completion.chunk"}
            assert len({c["id"] for c in chunks}) == 1
            assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
            assert all("role" not in c["choices"][0]["delta"] for c in chunks[1:])
            assert texts(chunks) == {0: "Hello, wörld!"}
            assert finishes(chunks) == {0: "stop"}
            assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
            assert sum(c["paceline"]["num_tokens"] for c in chunks) == 15
            assert all("usage" not in c for c in chunks)

    run(body)


def test_usage_comes_once_at_the_end_when_asked_for():
    """T33."""

    async def body():
        async with api_server(scripts=HELLO) as server:
            whole = (await server.chat(seed=1)).json()["usage"]
            chunks = events(await server.chat(seed=1, stream=True, stream_options={"include_usage": True}))
            assert all(c["usage"] is None for c in chunks[:-1])
            assert chunks[-1]["choices"] == []
            last = chunks[-1]["usage"]
            assert {**last, "prompt_tokens_details": None} == {**whole, "prompt_tokens_details": None}
            assert last["prompt_tokens_details"]["cached_tokens"] == 20  # five of the blocks of the call before

    run(body)


def test_usage_may_come_with_every_chunk():
    async def body():
        async with api_server(scripts=HELLO) as server:
            options = {"include_usage": True, "continuous_usage_stats": True}
            chunks = events(await server.chat(seed=1, stream=True, stream_options=options))
            counts = [c["usage"]["completion_tokens"] for c in chunks[1:]]
            assert counts == sorted(counts)
            assert counts[-1] == 15
            assert texts(chunks) == {0: "Hello, wörld!"}

    run(body)


def test_choices_of_one_seed_differ_and_come_again():
    """T13: three different, reproducible choices; the others go on when one is done."""

    async def body():
        async with api_server() as server:
            fields = {"n": 3, "seed": 5, "temperature": 1.0, "max_tokens": 24, "return_token_ids": True}
            first = (await server.chat(**fields)).json()["choices"]
            again = (await server.chat(**fields)).json()["choices"]
            ids = [c["token_ids"] for c in first]
            assert [c["index"] for c in first] == [0, 1, 2]
            assert ids == [c["token_ids"] for c in again]
            assert len({tuple(i) for i in ids}) == 3
            chunks = events(await server.chat(**fields, stream=True))
            assert texts(chunks) == {c["index"]: c["message"]["content"] for c in first}
            assert finishes(chunks) == {c["index"]: c["finish_reason"] for c in first}
            # a choice that stops early leaves the others alone
            stop = next(i for i in ids[1] if i not in ids[0] and i not in ids[2])
            short = (await server.chat(**fields, stop_token_ids=[stop])).json()["choices"]
            assert short[1]["token_ids"] == ids[1][: ids[1].index(stop) + 1]
            assert (short[1]["finish_reason"], short[1]["stop_reason"]) == ("stop", stop)
            assert [short[0]["token_ids"], short[2]["token_ids"]] == [ids[0], ids[2]]

    run(body)


def test_choices_of_a_stream_are_told_apart_by_index():
    async def body():
        async with api_server() as server:
            chunks = events(await server.chat(n=4, seed=3, stream=True, max_tokens=6, ignore_eos=True))
            roles = [c["choices"][0]["index"] for c in chunks if c["choices"][0]["delta"].get("role")]
            assert sorted(roles) == [0, 1, 2, 3]
            assert set(finishes(chunks)) == {0, 1, 2, 3}
            assert sum(c["paceline"]["num_tokens"] for c in chunks) == 24

    run(body)


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_have_one_entry_for_each_token_even_where_text_lags(stream):
    async def body():
        async with api_server(scripts=HELLO) as server:
            response = await server.chat(seed=1, logprobs=True, stream=stream)
            if stream:
                chunks = events(response)
                shown = [c["choices"][0]["logprobs"] for c in chunks]
                counts = [c["paceline"]["num_tokens"] for c in chunks]
                assert [len(s["content"]) if s else 0 for s in shown] == counts
                entries = [entry for s in shown if s for entry in s["content"]]
            else:
                entries = response.json()["choices"][0]["logprobs"]["content"]
            assert bytes(b for e in entries for b in e["bytes"]).decode() == "Hello, wörld!<|end|>"
            assert len(entries) == 15
            assert all(e["logprob"] <= 0 for e in entries)

    run(body)


def test_ids_of_prompt_and_answer_when_asked_for():
    async def body():
        async with api_server(scripts=HELLO) as server:
            whole = (await server.chat(seed=1, return_token_ids=True)).json()
            assert whole["choices"][0]["token_ids"] == [*HELLO[1], EOS]
            tokenized = await server.post("/tokenize", {"messages": [{"role": "user", "content": "hi"}]})
            assert whole["prompt_token_ids"] == tokenized.json()["tokens"]
            chunks = events(await server.chat(seed=1, return_token_ids=True, stream=True))
            assert chunks[0]["prompt_token_ids"] == whole["prompt_token_ids"]
            assert [i for c in chunks for i in c["choices"][0].get("token_ids", ())] == [*HELLO[1], EOS]

    run(body)


def test_special_tokens_show_when_asked_for():
    async def body():
        async with api_server(scripts=HELLO) as server:
            answer = (await server.chat(seed=1, skip_special_tokens=False)).json()
            assert answer["choices"][0]["message"]["content"] == "Hello, wörld!<|end|>"

    run(body)


def test_timings_add_up():
    async def body():
        async with api_server(scripts=HELLO) as server:
            whole = (await server.chat(seed=1, timings=True)).json()["paceline"]["timings"]
            assert whole["server_ms"] + whole["queue_ms"] + whole["prefill_ms"] == pytest.approx(
                whole["ttft_ms"], abs=0.01
            )
            assert 0 < whole["ttft_ms"] <= whole["e2e_ms"] <= whole["blocks_freed_ms"]
            assert whole["ttft_ms"] + 14 * whole["tpot_ms"] == pytest.approx(whole["e2e_ms"], abs=0.1)
            chunks = events(await server.chat(seed=1, timings=True, stream=True))
            assert [("timings" in c["paceline"]) for c in chunks] == [False] * (len(chunks) - 1) + [True]
            assert chunks[-1]["paceline"]["timings"]["cached_tokens"] == 20
            options = {"include_usage": True}
            chunks = events(await server.chat(seed=1, timings=True, stream=True, stream_options=options))
            assert [("timings" in c.get("paceline", ())) for c in chunks] == [False] * (len(chunks) - 1) + [True]

    run(body)


def test_a_final_message_is_continued_not_answered():
    async def body():
        async with api_server(scripts={1: text_ids(" two")}) as server:
            messages = [{"role": "user", "content": "count"}, {"role": "assistant", "content": "one "}]
            fields = {"messages": messages, "continue_final_message": True}
            ids = (await server.post("/tokenize", fields)).json()["tokens"]
            detokenized = (await server.post("/detokenize", {"tokens": ids})).json()["prompt"]
            assert detokenized == "<|start|>user: count<|end|><|start|>assistant: one "
            path = "/v1/chat/completions"
            answer = (await server.post(path, {**fields, "seed": 1, "echo": True})).json()
            assert answer["choices"][0]["message"]["content"] == "one  two"
            chunks = events(await server.post(path, {**fields, "seed": 1, "echo": True, "stream": True}))
            assert texts(chunks) == {0: "one  two"}
            plain = (await server.post(path, {**fields, "seed": 1})).json()
            assert plain["choices"][0]["message"]["content"] == " two"

    run(body)


def test_special_tokens_in_a_continued_message_stay_text():
    async def body():
        async with api_server() as server:
            messages = [{"role": "assistant", "content": "a<|end|>b"}]
            body = {"messages": messages, "continue_final_message": True}
            ids = (await server.post("/tokenize", body)).json()["tokens"]
            assert EOS not in ids
            assert (await server.post("/detokenize", {"tokens": ids})).json()["prompt"].endswith("assistant: a<|end|>b")

    run(body)


def test_generation_prompt_and_template_arguments_are_the_clients_to_choose():
    template = (
        "{{ greeting }}{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}>{% endif %}"
    )

    async def body():
        async with api_server(template=template) as server:

            async def rendered(**fields):
                message = {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
                ids = (await server.post("/tokenize", {"messages": [message], **fields})).json()["tokens"]
                return (await server.post("/detokenize", {"tokens": ids})).json()["prompt"]

            assert await rendered() == "ab>"
            assert await rendered(add_generation_prompt=False) == "ab"
            assert await rendered(chat_template_kwargs={"greeting": "hey "}) == "hey ab>"

    run(body)


def test_a_base_model_says_that_it_has_no_template():
    async def body():
        async with api_server(template=None) as server:
            response = await server.chat()
            assert response.status_code == 400
            assert "no chat template" in response.json()["error"]["message"]
            assert (await server.complete(max_tokens=1)).status_code == 200

    run(body)


def test_the_id_is_a_label_and_two_calls_may_share_it():
    """T11: ids of clients are not ids of the engine."""

    async def body():
        import asyncio

        async with api_server(scripts={1: text_ids("one"), 2: text_ids("two")}) as server:
            calls = [server.chat(seed=seed, request_id="same") for seed in (1, 2)]
            one, two = [r.json() for r in await asyncio.gather(*calls)]
            assert one["id"] == two["id"] == "chatcmpl-same"
            assert (one["choices"][0]["message"]["content"], two["choices"][0]["message"]["content"]) == ("one", "two")

    run(body)


def test_answers_of_one_session_begin_with_a_stop_and_harm_nobody():
    """T7: a turn whose first token is a stop is an empty turn."""

    async def body():
        import asyncio

        async with api_server(scripts={1: [EOS], 2: text_ids("other")}) as server:
            empty, other, streamed = await asyncio.gather(
                server.chat(seed=1), server.chat(seed=2), server.chat(seed=1, stream=True)
            )
            choice = empty.json()["choices"][0]
            assert (choice["message"]["content"], choice["finish_reason"]) == ("", "stop")
            assert other.json()["choices"][0]["message"]["content"] == "other"
            assert texts(events(streamed)) == {0: ""}
            assert finishes(events(streamed)) == {0: "stop"}

    run(body)
