import json

import pytest

from paceline.errors import ConfigError
from paceline.lab.mock import Fault, Flavour, Reply, Script, ScriptChunk, Service, load_script, null_script

TOML = """
flavour = "vllm"
models = ["m", "n"]

[service]
ttft_ms = 50
tpot_ms = 10.5
tokens_per_chunk = [5, 3]
slots = 2

[[rules]]
match = { contains = "please fail", every = 2 }
times = 3
reply = { status = 503, retry_after_s = 2 }

[[rules]]
match = { model = "n" }
reply = { fault = { cut_after_chunks = 1 }, chunks = [{ text = "a b" }, { delay_ms = 20, kind = "tool", tool = "f" }] }
"""


def test_a_script_is_read_from_toml(tmp_path):
    path = tmp_path / "script.toml"
    path.write_text(TOML)
    script = load_script(path)
    assert script.flavour is Flavour.VLLM
    assert script.service == Service(ttft_ms=50.0, tpot_ms=10.5, tokens_per_chunk=(5, 3), slots=2)
    assert script.rules[0].match.contains == "please fail"
    reply = script.rules[1].reply
    assert reply is not None
    assert reply.fault == Fault(cut_after_chunks=1)
    assert [chunk.text for chunk in reply.chunks] == ["a b", ""]


def test_json_is_the_same_form(tmp_path):
    path = tmp_path / "script.json"
    path.write_text(json.dumps({"reply": {"chunks": [{"delay_ms": 1, "text": "x"}]}}))
    assert load_script(path) == Script(reply=Reply(chunks=(ScriptChunk(1.0, text="x"),)))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"service": {"ttft": 5}}, "ttft_ms"),
        ({"rules": [{"match": {"contain": "x"}, "reply": {}}]}, "contains"),
        ({"reply": {"faults": {}}}, "fault"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(values, words):
    with pytest.raises(ConfigError, match="not known") as caught:
        load_script(values)
    assert words in caught.value.fix


@pytest.mark.parametrize(
    "values",
    [
        {"service": {"ttft_ms": -1}},
        {"service": {"tokens_per_chunk": 0}},
        {"service": {"tokens_per_chunk": []}},
        {"service": {"slots": 0}},
        {"service": {}, "reply": {}},
        {"rules": [{"match": {"every": 2}}]},
        {"rules": [{"reply": {}, "service": {}}]},
        {"rules": [{"match": {"regex": "("}, "reply": {}}]},
        {"rules": [{"reply": {"fault": {"hang_after_chunks": -1}}}]},
        {"models": []},
        {"flavour": "other"},
        {"service": {"ttft_ms": "5"}},
    ],
)
def test_what_cannot_be_is_refused(values):
    with pytest.raises(ConfigError):
        load_script(values)


@pytest.mark.parametrize("text", ["not toml = [", ""])
def test_a_broken_or_missing_file_is_named(tmp_path, text):
    path = tmp_path / "script.toml"
    if text:
        path.write_text(text)
    with pytest.raises(ConfigError, match="cannot be read") as caught:
        load_script(path)
    assert "script.toml" in str(caught.value)


def test_a_flavour_may_be_a_plain_word_and_must_be_one():
    assert Script(flavour="vllm").flavour is Flavour.VLLM  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="no such flavour"):
        Script(flavour="sglang")  # type: ignore[arg-type]


def test_which_scripts_take_no_time():
    assert null_script().takes_no_time
    assert Script().takes_no_time
    assert not Script(service=Service(tpot_ms=1)).takes_no_time
    assert not Script(reply=Reply()).takes_no_time
    assert not Script(service=Service(fault=Fault(never_answer=True))).takes_no_time
