"""/v1/models, /tokenize and /detokenize, and the keys that all of them ask for."""

import pytest
from tests.fakes.api_server import BOS, EOS, MODEL, api_server, run, text_ids

from paceline.server.tenancy.tenants import TenantBook


def test_models_are_listed_under_each_name():
    async def body():
        async with api_server() as server:
            listed = (await server.client.get("/v1/models")).json()
            assert listed["object"] == "list"
            assert [m["id"] for m in listed["data"]] == [MODEL, "toy/alias"]
            assert all(m["max_model_len"] == 128 and m["object"] == "model" for m in listed["data"])
            for name in (MODEL, "toy/alias"):
                one = (await server.client.get(f"/v1/models/{name}")).json()
                assert one in listed["data"]
            missing = await server.client.get("/v1/models/gpt-4")
            assert missing.status_code == 404
            assert MODEL in missing.json()["error"]["message"]

    run(body)


def test_a_text_and_back():
    async def body():
        async with api_server() as server:
            answer = (await server.post("/tokenize", {"prompt": "hé"})).json()
            assert answer == {"count": 4, "max_model_len": 128, "tokens": [BOS, *text_ids("hé")], "token_strs": None}
            bare = (
                await server.post("/tokenize", {"prompt": "h", "add_special_tokens": False, "return_token_strs": True})
            ).json()
            assert (bare["tokens"], bare["token_strs"]) == ([104], ["h"])
            assert (await server.post("/detokenize", {"tokens": answer["tokens"]})).json() == {"prompt": "<|start|>hé"}
            assert (await server.post("/detokenize", {"tokens": []})).json() == {"prompt": ""}
            assert (await server.post("/tokenize", {"prompt": ""})).json()["tokens"] == [BOS]

    run(body)


def test_what_is_counted_is_what_a_completion_is_given():
    async def body():
        async with api_server() as server:
            for prompt in ("", "a", "<|end|>", "日本 <|start|>"):
                count = (await server.post("/tokenize", {"prompt": prompt})).json()["count"]
                answer = await server.complete(prompt, max_tokens=1)
                assert answer.json()["usage"]["prompt_tokens"] == count

    run(body)


def test_conversations_are_rendered_and_special_tokens_of_users_stay_text():
    async def body():
        async with api_server() as server:
            messages = [{"role": "user", "content": "a<|end|>"}]
            ids = (await server.post("/tokenize", {"messages": messages})).json()["tokens"]
            assert ids.count(EOS) == 1
            assert ids[:1] == [BOS]
            bare = (await server.post("/tokenize", {"messages": messages, "add_generation_prompt": False})).json()[
                "tokens"
            ]
            assert ids[: len(bare)] == bare
            assert ids[len(bare) :] == [BOS, *text_ids("assistant: ")]

    run(body)


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": [{"role": "user", "content": "b"}]}, "prompt"),
        ("/tokenize", {"prompt": 1}, "prompt"),
        ("/tokenize", {"prompt": "a" * 100_000}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"prompts": "a"}, "prompts"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": None}, "tokens"),
        ("/detokenize", {"tokens": "a"}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": [1_000_000]}, "tokens"),
        ("/detokenize", {"tokens": [True]}, "tokens[0]"),
    ],
)
def test_wrong_input_is_a_400_that_names_it(path, fields, param):
    async def body():
        async with api_server() as server:
            response = await server.post(path, fields)
            assert (response.status_code, response.json()["error"]["param"]) == (400, param), response.text

    run(body)


def test_every_endpoint_asks_for_the_key():
    async def body():
        async with api_server(tenants=TenantBook.load(None, ["right"], secret=b"s")) as server:
            calls = [
                ("GET", "/v1/models", None),
                ("GET", f"/v1/models/{MODEL}", None),
                ("POST", "/tokenize", {"prompt": "a"}),
                ("POST", "/detokenize", {"tokens": [97]}),
                ("POST", "/v1/completions", {"prompt": "a", "max_tokens": 1}),
                ("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}),
                ("POST", "/v1/responses", {"input": "a", "max_output_tokens": 1}),
                ("POST", "/v1/messages", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}),
                ("POST", "/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "a"}]}),
                ("GET", "/tokenizer_info", None),
            ]
            for method, path, body in calls:
                for key, status in ((None, 401), ("wrong", 401), ("right", 200)):
                    headers = {} if key is None else {"authorization": f"Bearer {key}"}
                    response = await server.client.request(method, path, json=body, headers=headers)
                    assert response.status_code == status, (path, key, response.text)
                    if status == 401:
                        assert response.headers["www-authenticate"] == "Bearer"
                        assert response.json()["error"]["type"] == "authentication_error"
                        assert "wrong" not in response.json()["error"]["message"].replace("wrong key", "")

    run(body)


def test_the_vocabulary_tells_its_special_tokens():
    async def body():
        async with api_server() as server:
            info = (await server.client.get("/tokenizer_info")).json()
            assert (info["bos_token"], info["eos_token"], info["pad_token"]) == ("<|start|>", "<|end|>", None)
            assert (info["eos_token_ids"], info["max_model_len"]) == ([EOS], 128)
            assert info["vocab_size"] == server.state.pipeline.tokenizer.vocab_size
            assert "chat_template" not in info

    run(body)
