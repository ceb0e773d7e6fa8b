"""What each flavour shows, takes and refuses."""

import pytest
from tests.fakes.lab.mock_client import ask, chat_body, get

from paceline.lab.mock import Flavour, MockServer, Reply, Script, ScriptChunk, Service

ALL = list(Flavour)


@pytest.mark.parametrize("flavour", ALL)
def test_both_endpoints_streamed_and_not_say_the_same(flavour):
    with MockServer(Script(flavour=flavour)) as mock:
        chat = ask(mock.url)
        chat_whole = ask(mock.url, body=chat_body(stream=False, stream_options=None)).json()
        prompt = {"model": "mock", "prompt": "one two three", "max_tokens": 8}
        text = ask(mock.url, "/v1/completions", {**prompt, "stream": True, "stream_options": {"include_usage": True}})
        text_whole = ask(mock.url, "/v1/completions", prompt).json()
    answer = "the quick answer to this is that every"
    assert chat.text == text.text == answer
    assert chat_whole["choices"][0]["message"]["content"] == text_whole["choices"][0]["text"] == answer
    for usage in (chat.usage, text.usage, chat_whole["usage"], text_whole["usage"]):
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (3, 8)
    assert chat.finish_reasons == text.finish_reasons == ["length"]
    assert chat.events[-1] == text.events[-1] == "[DONE]"
    assert text.events[0]["object"] == "text_completion"


@pytest.mark.parametrize("flavour", ALL)
def test_usage_comes_only_where_it_is_asked_for(flavour):
    with MockServer(Script(flavour=flavour)) as mock:
        assert ask(mock.url, body=chat_body(stream_options=None)).usage is None


@pytest.mark.parametrize(
    ("flavour", "there", "absent"),
    [
        (Flavour.PACELINE, ["/version", "/ready", "/metrics", "/v1/internal/config"], ["/props"]),
        (Flavour.VLLM, ["/version", "/metrics", "/health"], ["/props", "/ready", "/v1/internal/config"]),
        (Flavour.LLAMA_CPP, ["/props", "/metrics", "/health"], ["/version", "/ready"]),
        (Flavour.OPENAI, ["/v1/models/mock"], ["/version", "/health", "/metrics", "/props"]),
    ],
)
def test_endpoints(flavour, there, absent):
    with MockServer(Script(flavour=flavour)) as mock:
        assert {path: get(mock.url, path).status for path in there} == dict.fromkeys(there, 200)
        assert {path: get(mock.url, path).status for path in absent} == dict.fromkeys(absent, 404)
        assert get(mock.url, "/v1/models").json()["data"][0]["id"] == "mock"
        assert get(mock.url, "/v1/chat/completions").status == 405
        assert ask(mock.url, "/v1/models", {}).status == 405


def test_a_path_can_be_taken_away():
    with MockServer(Script(absent=("/tokenize", "/metrics"))) as mock:
        assert ask(mock.url, "/tokenize", {"prompt": "a"}).status == 404
        assert get(mock.url, "/metrics").status == 404


@pytest.mark.parametrize("flavour", [Flavour.PACELINE, Flavour.VLLM])
def test_words_are_tokens_and_ids_can_be_sent(flavour):
    with MockServer(Script(flavour=flavour, template_tokens=2)) as mock:
        text = ask(mock.url, "/tokenize", {"prompt": "one two t7"}).json()
        chat = ask(mock.url, "/tokenize", {"messages": [{"role": "user", "content": "one two"}]}).json()
        back = ask(mock.url, "/detokenize", {"tokens": [7, 9]}).json()
        ids = ask(mock.url, "/v1/completions", {"prompt": [5, 6, 7, 8], "max_tokens": 1}).json()
        used = ask(mock.url, body=chat_body("one two")).usage
    assert text["count"] == len(text["tokens"]) == 3
    assert text["tokens"][2] == 7
    assert text["max_model_len"] == 8192
    assert chat["count"] == used["prompt_tokens"] == 2 + 2 + 2
    assert back == {"prompt": "t7 t9"}
    assert ids["usage"]["prompt_tokens"] == 4


def test_llama_cpp_counts_content_and_applies_templates():
    with MockServer(Script(flavour=Flavour.LLAMA_CPP, template_tokens=1)) as mock:
        assert len(ask(mock.url, "/tokenize", {"content": "one two"}).json()["tokens"]) == 2
        body = {"messages": [{"role": "user", "content": "one two"}]}
        prompt = ask(mock.url, "/apply-template", body).json()["prompt"]
        assert len(ask(mock.url, "/tokenize", {"content": prompt}).json()["tokens"]) == 4
        seen = ask(mock.url, body=chat_body(model="any name at all"))
    assert seen.status == 200
    assert [e for e in seen.events if isinstance(e, dict)][-1]["timings"]["predicted_n"] == 8


def test_the_plain_api_refuses_what_it_does_not_know():
    with MockServer(Script(flavour=Flavour.OPENAI)) as mock:
        seen = ask(mock.url, body=chat_body(ignore_eos=True))
        plain = ask(mock.url)
    assert seen.status == 400
    assert "ignore_eos" in seen.json()["error"]["message"]
    assert not any("paceline" in event for event in plain.events)
    assert "prompt_tokens_details" not in plain.usage


@pytest.mark.parametrize("flavour", [Flavour.PACELINE, Flavour.VLLM])
def test_usage_on_the_way(flavour):
    options = {"include_usage": True, "continuous_usage_stats": True}
    with MockServer(Script(flavour=flavour, service=Service(tokens_per_chunk=3))) as mock:
        seen = ask(mock.url, body=chat_body(stream_options=options))
    counts = [event["usage"]["completion_tokens"] for event in seen.events if isinstance(event, dict)]
    assert counts == [0, 3, 6, 8, 8]


def test_llama_cpp_counts_on_the_way_where_it_is_asked():
    with MockServer(Script(flavour=Flavour.LLAMA_CPP, service=Service(tokens_per_chunk=3))) as mock:
        seen = ask(mock.url, body=chat_body(timings_per_token=True))
        plain = ask(mock.url, body=chat_body())
    counts = [
        [event["timings"]["predicted_n"] for event in answer.events if "timings" in event] for answer in (seen, plain)
    ]
    assert counts == [[3, 6, 8, 8, 8], [8, 8]]  # the end says it twice: with the reason, and with usage


def test_paceline_tells_its_times_from_the_schedule():
    service = Service(ttft_ms=20, tpot_ms=5, prefill_ms_per_token=1, prefix_cache=True, block_tokens=2)
    with MockServer(Script(service=service)) as mock:
        ask(mock.url, body=chat_body("a b c d e", 1))
        seen = ask(mock.url, body=chat_body("a b c d e", 5, timings=True))
        short = ask(mock.url, body=chat_body("a b c d e", 5, timings=True, stream_options=None))
    told = [e["paceline"]["timings"] for e in seen.events if isinstance(e, dict) and "timings" in e.get("paceline", {})]
    assert len(told) == 1
    assert (told[0]["cached_tokens"], told[0]["computed_tokens"]) == (4, 1)
    assert (told[0]["queue_ms"], told[0]["prefill_ms"], told[0]["tpot_ms"], told[0]["e2e_ms"]) == (0, 21, 5, 41)
    assert short.events[-2]["paceline"]["timings"]["tpot_ms"] == 5


@pytest.mark.parametrize(
    ("flavour", "name"),
    [
        (Flavour.PACELINE, "paceline:output_tokens_total 8"),
        (Flavour.VLLM, "vllm:generation_tokens_total 8"),
        (Flavour.LLAMA_CPP, "llamacpp:tokens_predicted_total 8"),
    ],
)
def test_metrics_have_the_names_of_the_flavour(flavour, name):
    with MockServer(Script(flavour=flavour, metrics={"own:series": 4.5})) as mock:
        ask(mock.url)
        lines = get(mock.url, "/metrics").body.decode().splitlines()
    assert name in lines
    assert "own:series 4.5" in lines


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, "invalid_request"),
        ({"messages": []}, 400, "invalid_request"),
        ({"messages": [{"role": "user", "content": "a"}], "max_tokens": "8"}, 400, "invalid_request"),
        ({"messages": [{"role": "user", "content": "a"}], "n": 2}, 400, "invalid_request"),
        ({"messages": [{"role": "user", "content": "a"}], "max_tokens": -1}, 400, "invalid_request"),
        ({"model": "other", "messages": [{"role": "user", "content": "a"}]}, 404, "model_not_found"),
        ({"messages": [{"role": "user", "content": "a " * 90}], "max_tokens": 20}, 400, "context_length_exceeded"),
    ],
)
def test_wrong_requests_are_refused_and_logged(body, status, code):
    with MockServer(Script(max_model_len=100)) as mock:
        seen = ask(mock.url, body=body)
        (entry,) = mock.wait_for(1)
    assert (seen.status, seen.json()["error"]["code"]) == (status, code)
    assert entry.status == status


def test_keys():
    with MockServer(Script(api_keys=("first", "second"))) as mock:
        assert ask(mock.url).status == 401
        assert get(mock.url, "/v1/models").status == 401
        assert get(mock.url, "/health").status == 200
        assert ask(mock.url, headers={"authorization": "Bearer second"}).status == 200
        entries = mock.wait_for(2)
    assert [entry.key for entry in entries] == [-1, 1]
    assert "second" not in str(entries)


def test_fields_of_a_choice_pass_through():
    logprobs = {"content": [{"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}]}
    chunks = (ScriptChunk(text="a", extra={"logprobs": logprobs}),)
    with MockServer(Script(reply=Reply(chunks=chunks))) as mock:
        seen = ask(mock.url)
        whole = ask(mock.url, body=chat_body(stream=False, stream_options=None)).json()
    assert seen.events[0]["choices"][0]["logprobs"] == logprobs
    assert whole["choices"][0]["logprobs"] == logprobs


def test_config_is_what_the_script_says():
    with MockServer(Script(config={"options": {"max_num_seqs": 4}})) as mock:
        assert get(mock.url, "/v1/internal/config").json() == {"options": {"max_num_seqs": 4}}
