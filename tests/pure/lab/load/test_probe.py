import asyncio
import socket
import sys

import pytest

from paceline.errors import ConfigError, LabError
from paceline.lab.load import HttpTokenCounter, probe
from paceline.lab.load.control import Control
from paceline.lab.load.control import Reply as Answered
from paceline.lab.mock import Fault, Flavour, Match, MockServer, Reply, Rule, Script, Service


def found(script, **more):
    async def ask(url):
        target = await probe(url, **more)
        async with HttpTokenCounter(target) as counter:
            chat = await counter.count_chat([{"role": "user", "content": "one two three"}])
            return target, counter.exact, await counter.count(["a b c d", "x " * 40]), chat

    with MockServer(script) as mock:
        return asyncio.run(ask(mock.url))


def script(flavour, **more):
    return Script(flavour=flavour, service=Service(prefix_cache=True, stop_after_tokens=5), **more)


def test_paceline():
    target, exact, counts, chat = found(script(Flavour.PACELINE, models=("a", "b"), template_tokens=2), model="b")
    info = target.info
    assert (info.kind, info.model, info.version, info.max_model_len) == ("paceline", "b", "0.0.0-mock", 8192)
    assert (info.tokenize, info.token_ids, info.ignore_eos) == ("prompt", True, True)
    assert (info.chunk_usage, target.chunk_counts, info.final_usage, info.timings) == (True, "paceline", True, True)
    assert (info.cached_tokens, info.cache_salt) == (True, True)
    assert info.reset_prefix_cache == "/v1/internal/reset_prefix_cache"
    assert (exact, counts) == (True, [4, 40])
    assert chat > 3


def test_vllm():
    target, exact, counts, _ = found(script(Flavour.VLLM))
    info = target.info
    assert (info.kind, info.tokenize, info.ignore_eos) == ("vllm", "prompt", True)
    assert (target.chunk_counts, info.reset_prefix_cache) == ("continuous", "/reset_prefix_cache")
    assert (exact, counts) == (True, [4, 40])
    assert not info.timings


def test_vllm_without_its_development_mode():
    target, *_ = found(script(Flavour.VLLM, absent=("/reset_prefix_cache",)))
    assert target.info.reset_prefix_cache == ""


def test_llama_server():
    target, exact, counts, chat = found(script(Flavour.LLAMA_CPP, max_model_len=2048))
    info = target.info
    assert (info.kind, info.tokenize, info.max_model_len) == ("llama.cpp", "content", 2048)
    assert (info.ignore_eos, info.reset_prefix_cache, info.cache_salt) == (True, "", False)
    assert (info.chunk_usage, target.chunk_counts) == (True, "timings")
    assert (exact, counts) == (True, [4, 40])
    assert chat >= 3


def test_a_plain_server():
    """Unknown fields are refused by it, so it is asked with less; lengths are estimated from usage."""
    target, exact, counts, chat = found(script(Flavour.OPENAI))
    info = target.info
    assert (info.kind, info.version, info.max_model_len, info.tokenize) == ("openai", "", None, "")
    assert not info.ignore_eos
    assert not info.chunk_usage
    assert info.final_usage
    assert not exact
    assert counts[1] > counts[0] >= 1
    assert chat >= 1


def test_a_server_without_usage_in_streams():
    async def ask(url):
        return await probe(url)

    with MockServer(Script(flavour=Flavour.OPENAI, service=Service(fault=Fault(no_usage=True)))) as mock:
        target = asyncio.run(ask(mock.url))
    assert not target.info.final_usage


def test_a_base_model_is_asked_for_completions():
    refuse = Reply(status=400, message="this model has no chat template")
    rules = (Rule(match=Match(path="/v1/chat/completions"), reply=refuse),)

    async def ask(url):
        return await probe(url)

    with MockServer(Script(rules=rules)) as mock:
        target = asyncio.run(ask(mock.url))
    assert target.info.ignore_eos
    assert target.info.chunk_usage


@pytest.mark.parametrize(
    ("wrong", "arguments"),
    [
        (Script(api_keys=("k",)), {}),
        (Script(models=("a",)), {"model": "b"}),
        (Script(absent=("/v1/models",)), {}),
        (Script(reply=Reply(status=503, message="loading")), {}),
        (Script(service=Service(fault=Fault(never_answer=True))), {"timeout_s": 0.2}),
    ],
)
def test_servers_that_cannot_be_measured(wrong, arguments):
    with pytest.raises(LabError):
        found(wrong, **arguments)


def test_nobody_there():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(LabError) as caught:
            asyncio.run(probe(f"http://127.0.0.1:{taken.getsockname()[1]}"))
    assert "running" in str(caught.value)


def test_no_url():
    with pytest.raises(ConfigError):
        asyncio.run(probe("http://h?x=1"))


def test_a_key_does_not_show_in_errors():
    with pytest.raises(LabError) as caught:
        found(Script(api_keys=("right",)), api_key="sk-wrong")
    assert "sk-wrong" not in str(caught.value)


@pytest.mark.parametrize(("wait_ready_s", "num_busy"), [(30.0, 3), (0.0, 1)])
def test_a_server_that_is_loading_is_waited_for(monkeypatch, wait_ready_s, num_busy):
    left, told, get = [503] * num_busy, [], Control.get

    async def loading(self, path):
        if path == "/v1/models" and left:
            return Answered(left.pop(), {}, b"", {"error": {"message": "loading: weights"}})
        return await get(self, path)

    monkeypatch.setattr(Control, "get", loading)
    monkeypatch.setattr(sys.modules["paceline.lab.load.probe"], "LOOK_S", 0.01)
    if not wait_ready_s:
        with pytest.raises(LabError, match="503 loading: weights"):
            found(script(Flavour.PACELINE), on_wait=told.append)
        assert not told
        return
    target, *_ = found(script(Flavour.PACELINE), wait_ready_s=wait_ready_s, on_wait=told.append)
    assert target.info.kind == "paceline"
    assert not left
    assert len(told) == 1
    assert "loading: weights" in told[0]
