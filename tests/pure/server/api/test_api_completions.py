"""/v1/completions over a real engine: prompts of every kind, echo, the old form of logprobs."""

import asyncio

import pytest
from tests.fakes.api_server import BOS, EOS, api_server, events, finishes, piece, run, text_ids, texts

FOX = {1: text_ids("fox jumps"), 2: [piece(0), piece(1), 0xC3, 0xA9, piece(7), 33]}


def test_text_and_ids_are_the_same_prompt():
    async def body():
        async with api_server(scripts=FOX) as server:
            text = (await server.complete("abc", seed=1)).json()
            ids = (await server.complete([BOS, 97, 98, 99], seed=1)).json()
            assert text["object"] == "text_completion"
            assert text["id"].startswith("cmpl-")
            assert text["choices"] == ids["choices"]
            assert text["choices"][0]["text"] == "fox jumps"
            assert text["usage"]["prompt_tokens"] == ids["usage"]["prompt_tokens"] == 4
            bare = (await server.complete("abc", seed=1, add_special_tokens=False)).json()
            assert bare["usage"]["prompt_tokens"] == 3

    run(body)


def test_sixteen_tokens_unless_told_otherwise_or_no_room():
    async def body():
        async with api_server(max_model_len=32) as server:
            assert (await server.complete("a", ignore_eos=True)).json()["usage"]["completion_tokens"] == 16
            long = await server.complete([97] * 25, ignore_eos=True)
            assert long.json()["usage"]["completion_tokens"] == 7
            assert long.json()["choices"][0]["finish_reason"] == "length"

    run(body)


@pytest.mark.parametrize("prompt", [["ab", "cd"], [[BOS, 97, 98], [BOS, 99, 100]]])
@pytest.mark.parametrize("stream", [False, True])
def test_several_prompts_and_choices_come_by_index(prompt, stream):
    async def body():
        async with api_server() as server:
            fields = {"max_tokens": 5, "seed": 9, "temperature": 1.0, "ignore_eos": True}
            alone = [(await server.complete(p, n=2, **fields)).json() for p in prompt]
            expected = {2 * i + c["index"]: c["text"] for i, a in enumerate(alone) for c in a["choices"]}
            options = {"stream_options": {"include_usage": True}} if stream else {}
            response = await server.complete(prompt, n=2, stream=stream, **options, **fields)
            if stream:
                chunks = events(response)
                found, usage = texts(chunks), chunks[-1]["usage"]
                assert set(finishes(chunks)) == {0, 1, 2, 3}
            else:
                answer = response.json()
                found, usage = {c["index"]: c["text"] for c in answer["choices"]}, answer["usage"]
            assert found == expected
            assert usage["prompt_tokens"] == sum(a["usage"]["prompt_tokens"] for a in alone)
            assert usage["completion_tokens"] == 20

    run(body)


def test_echo_gives_the_prompt_back():
    async def body():
        async with api_server(scripts=FOX) as server:
            whole = (await server.complete("The ", seed=1, echo=True)).json()
            assert whole["choices"][0]["text"] == "The fox jumps"
            assert texts(events(await server.complete("The ", seed=1, echo=True, stream=True))) == {0: "The fox jumps"}
            ids = (await server.complete([84, 104, 101], seed=1, echo=True, max_tokens=3)).json()
            assert ids["choices"][0]["text"] == "Thefox"
            both = (await server.complete(["a", "b"], n=2, seed=1, echo=True)).json()
            assert [c["text"] for c in both["choices"]] == ["afox jumps"] * 2 + ["bfox jumps"] * 2

    run(body)


@pytest.mark.parametrize("stream", [False, True])
def test_nothing_but_the_prompt_with_its_logprobs(stream):
    async def body():
        async with api_server() as server:
            response = await server.complete("abé", echo=True, max_tokens=0, logprobs=0, stream=stream)
            choices = [c["choices"][0] for c in events(response)] if stream else response.json()["choices"]
            assert "".join(c["text"] for c in choices) == "abé"
            assert choices[-1]["finish_reason"] == "length"
            logprobs = choices[0]["logprobs"]
            assert logprobs["tokens"] == ["<|start|>", "a", "b", "bytes:\\xc3", "bytes:\\xa9"]
            assert logprobs["text_offset"] == [0, 0, 1, 2, 2]
            assert logprobs["token_logprobs"][0] is None
            assert all(value <= 0 for value in logprobs["token_logprobs"][1:])
            if not stream:
                assert response.json()["usage"]["completion_tokens"] == 0
            refused = await server.complete("ab", max_tokens=0)
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "max_tokens")

    run(body)


@pytest.mark.parametrize("echo", [False, True])
def test_logprobs_streamed_and_whole_are_the_same(echo):
    async def body():
        async with api_server(scripts=FOX) as server:
            fields = {"seed": 2, "logprobs": 1, "echo": echo}
            whole = (await server.complete("é", **fields)).json()["choices"][0]
            chunks = events(await server.complete("é", **fields, stream=True))
            parts = [c["choices"][0]["logprobs"] for c in chunks if c["choices"][0]["logprobs"]]
            for name in ("tokens", "text_offset", "token_logprobs", "top_logprobs"):
                assert [item for part in parts for item in part[name]] == whole["logprobs"][name]
            assert whole["text"] == ("é" if echo else "") + "Hello worldé日本!"
            # every whole token stands in the text where its offset says
            for token, offset in zip(whole["logprobs"]["tokens"], whole["logprobs"]["text_offset"], strict=True):
                if not token.startswith(("bytes:", "<|")):
                    assert whole["text"][offset:].startswith(token)

    run(body)


def test_prompt_logprobs_are_by_id():
    async def body():
        async with api_server() as server:
            choice = (await server.complete("ab", prompt_logprobs=1, max_tokens=1)).json()["choices"][0]
            assert choice["prompt_logprobs"][0] is None
            assert [list(e) for e in choice["prompt_logprobs"][1:]] == [["97"], ["98"]]
            assert choice["prompt_logprobs"][1]["97"]["decoded_token"] == "a"
            assert choice["logprobs"] is None

    run(body)


def test_one_refused_prompt_refuses_the_call_and_leaves_nothing_behind():
    async def body():
        async with api_server(max_model_len=64, num_blocks=12, max_waiting_requests=3) as server:
            cases = [
                (["ok", [97] * 64], 400, "prompt[1]"),  # longer than the model
                (["ok", [97, 9999]], 400, "prompt[1]"),  # no such token
                (["ok", [97] * 50], 400, "prompt"),  # longer than the cache, which the engine alone knows
            ]
            for prompt, status, param in cases:
                response = await server.complete(prompt, max_tokens=2)
                assert (response.status_code, response.json()["error"]["param"]) == (status, param), response.text
                await server.settled()
            gate = server.new_gate()
            response = await server.complete(["a"] * 20, max_tokens=2)
            gate.open()
            assert response.status_code == 429
            assert int(response.headers["retry-after"]) >= 1
            await server.settled()
            assert (await server.complete("ok", max_tokens=2)).status_code == 200

    run(body)


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        (None, "prompt"),
        (5, "prompt"),
        ([], "prompt"),
        ([[]], "prompt"),
        ({"text": "a"}, "prompt"),
        ([1.5], "prompt"),
        ([True], "prompt"),
        ([1, "a"], "prompt"),
        (["a", 1], "prompt[1]"),
        ([[1], "a", None], "prompt[2]"),
        ([[1], ["a"]], "prompt[1]"),
        ([-1], "prompt"),
        ([10**12], "prompt"),
        (["a"] * 257, "prompt"),
    ],
)
def test_every_wrong_prompt_is_a_400_that_names_it(prompt, param):
    async def body():
        async with api_server() as server:
            response = await server.complete(prompt)
            assert response.status_code == 400, response.text
            assert response.json()["error"]["param"] == param

    run(body)


def test_an_empty_prompt_without_a_beginning_token_is_refused():
    """T5."""

    async def body():
        async with api_server(add_bos=False, scripts=FOX) as server:
            for prompt in ("", [""], ["a", ""]):
                response = await server.complete(prompt)
                assert response.status_code == 400
                assert "empty" in response.json()["error"]["message"]
            assert (await server.complete("a", seed=1)).json()["choices"][0]["text"] == "fox jumps"
        async with api_server(add_bos=True, scripts=FOX) as server:
            assert (await server.complete("", seed=1)).json()["usage"]["prompt_tokens"] == 1

    run(body)


def test_neighbours_of_a_bad_request_are_served_as_ever():
    """T9, T10: ids outside the vocabulary never reach an index."""

    async def body():
        async with api_server() as server:
            fields = {"seed": 4, "max_tokens": 12, "ignore_eos": True, "return_token_ids": True}
            alone = (await server.complete("abc", **fields)).json()["choices"]
            bad = [
                {"stop_token_ids": [10**6]},
                {"stop_token_ids": [-1]},
                {"logit_bias": {"100000": 1}},
                {"logprobs": 1, "logprob_token_ids": [-1]},
                {"logprobs": 1, "logprob_token_ids": [10**6]},
                {"logprobs": 21},
                {"logprobs": -1},
            ]
            calls = [server.complete("abc", **fields), *(server.complete("abc", **{**fields, **b}) for b in bad)]
            good, *refused = await asyncio.gather(*calls)
            assert good.json()["choices"] == alone
            for response, given in zip(refused, bad, strict=True):
                assert response.status_code == 400, response.text
                assert response.json()["error"]["param"].split("[")[0] in given

    run(body)


def test_the_end_of_text_shows_no_reason_of_its_own():
    async def body():
        async with api_server(scripts={1: [97, EOS]}) as server:
            own = (await server.complete("x", seed=1)).json()["choices"][0]
            assert (own["text"], own["finish_reason"], own["stop_reason"]) == ("a", "stop", None)
            asked = (await server.complete("x", seed=1, stop_token_ids=[97])).json()["choices"][0]
            assert (asked["text"], asked["stop_reason"]) == ("", 97)

    run(body)
