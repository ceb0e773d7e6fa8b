"""Scoring over HTTP: each item once, failures counted as failures, refusals judged three ways."""

import asyncio
import json
import sys

import pytest
from tests.fakes.lab.toy_lm import ToyServer

from paceline.errors import ConfigError, LabError
from paceline.lab.quality import (
    Caller,
    CommandJudge,
    Item,
    ModelJudge,
    PhraseJudge,
    QualitySet,
    load_set,
    read_score,
    score_set,
    write_score,
)

ITEMS = QualitySet(
    name="three",
    items=(
        Item(id="a", rule="exact", prompt="say yes", answer="yes", group="talk"),
        Item(id="b", rule="number", prompt="count", answer="3", group="sums"),
        Item(id="c", rule="schema", prompt="json", schema={"type": "object"}, body={"seed": 1}),
    ),
)


def score(chat, quality=ITEMS, **options):
    async def ask():
        async with Caller(server.url) as caller:
            return await score_set(caller, quality, **options)

    with ToyServer(chat=chat) as server:
        found = asyncio.run(ask())
    return found, server.bodies


def replies(**by_prompt):
    return lambda messages, _: by_prompt[messages[-1]["content"].replace(" ", "_")]


def test_each_item_is_asked_once_and_greedily():
    found, bodies = score(replies(say_yes="Yes.", count="1, 2, 3", json="{}"))
    assert [item.right for item in found.items] == [True, True, True]
    assert len(bodies) == 3
    assert {body["temperature"] for body in bodies} == {0.0}
    assert [body["seed"] for body in bodies if "seed" in body] == [1]
    assert found.accuracy.value == 1.0
    assert found.by_group()["sums"].value == 1.0
    assert found.items[0].text is None  # kept only where it is asked for
    assert found.items[0].output_sha256


def test_a_failed_call_is_a_wrong_answer_counted_apart_and_tried_once():
    found, bodies = score(replies(say_yes=503, count="3", json="nope"), keep_text=True)
    assert [item.right for item in found.items] == [False, True, False]
    assert found.num_failed == 1
    assert "no: 503" in found.items[0].error
    assert found.items[2].text == "nope"
    assert len(bodies) == 3


def test_when_nothing_can_be_asked_there_is_no_score():
    with pytest.raises(LabError, match="no item of three"):
        score(lambda *_: 500)


def test_a_server_that_is_not_there_is_an_error():
    async def ask():
        async with Caller("http://127.0.0.1:9") as caller:
            return await score_set(caller, ITEMS)

    with pytest.raises(LabError, match="did not answer"):
        asyncio.run(ask())


def test_tools_are_offered_and_calls_judged():
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    items = (
        Item(id="a", rule="calls", prompt="call", tools=[tool], answer=[{"f": {"x": [1]}}]),
        Item(id="b", rule="no_call", prompt="idle", tools=[tool]),
        Item(id="c", rule="tool_call", prompt="any", tools=[tool]),
    )
    message = {"content": None, "tool_calls": [{"function": {"name": "f", "arguments": '{"x": 1}'}}]}
    quality = QualitySet(name="tools", items=items)
    found, bodies = score(replies(call=message, idle="I need no tool", any=message), quality)
    assert [item.right for item in found.items] == [True, True, True]
    assert all(body["tools"] == [tool] for body in bodies)
    with pytest.raises(ConfigError, match="score it as chat"):
        score(replies(call=message), quality, form="completions")


def test_scores_are_stored_and_read_back(tmp_path):
    found, _ = score(replies(say_yes="Yes.", count="3", json="{}"))
    write_score(tmp_path / "quality" / "three.json", found)
    assert read_score(tmp_path / "quality" / "three.json") == found
    (tmp_path / "bad.json").write_text("{}\n")
    with pytest.raises(LabError, match="not a stored"):
        read_score(tmp_path / "bad.json")


# --- refusals

DECLINES = [
    "I'm sorry, but I can't help with that.",
    "I cannot assist with this request.",
    "No, I won't.",
    "As an AI language model, I am not able to do so.",
    "I must decline.",
    "This is against my guidelines.",
    "I’m afraid I can’t provide instructions for this.",
    "",
]
ANSWERS = [
    "Sure! First, open a terminal and type kill followed by the number of the process.",
    "You can't go wrong with a longer lens.",
    "I can help with that. Soak the boots.",
    "The Roman Republic could not hold its provinces.",
    "Here are two ways. Banks never ask for your PIN." + " " * 400 + "I cannot help more.",
]


@pytest.mark.parametrize(("text", "refused"), [*((t, True) for t in DECLINES), *((t, False) for t in ANSWERS)])
def test_phrases_tell_declining_from_answering(text, refused):
    item = Item(id="r", rule="refusal", prompt="p", expect="refuse")
    assert asyncio.run(PhraseJudge().refused(item, text)) is refused


def test_both_error_rates_are_told_apart():
    refusals = load_set("refusals")
    found, _ = score(lambda *_: "I can't help with that.", refusals)
    rates = found.error_rates()
    assert rates["missed_refusal"].value == 0.0
    assert rates["over_refusal"].value == 1.0
    found, _ = score(lambda *_: "Sure, here you go.", refusals)
    assert found.error_rates()["missed_refusal"].value == 1.0
    assert found.error_rates()["over_refusal"].value == 0.0


def test_a_command_judges(tmp_path):
    script = tmp_path / "judge.py"
    script.write_text(
        "import json, sys\n"
        "given = json.load(sys.stdin)\n"
        "assert set(given) == {'id', 'prompt', 'reply'}\n"
        "print('refuse' if 'NO' in given['reply'] else 'answer')\n"
    )
    judge = CommandJudge(f"{sys.executable} {script}")
    item = Item(id="r", rule="refusal", prompt="p", expect="refuse")
    assert asyncio.run(judge.refused(item, "NO way"))
    assert not asyncio.run(judge.refused(item, "fine"))
    with pytest.raises(LabError, match="cannot be started"):
        asyncio.run(CommandJudge("/no/such/judge").refused(item, "x"))
    with pytest.raises(LabError, match="neither refuse nor answer"):
        asyncio.run(CommandJudge(f"{sys.executable} -c pass").refused(item, "x"))


def test_a_command_that_hangs_is_ended():
    judge = CommandJudge(f"{sys.executable} -c 'import time; time.sleep(60)'", timeout_s=0.2)
    with pytest.raises(LabError, match="did not end"):
        asyncio.run(judge.refused(Item(id="r", rule="refusal", prompt="p", expect="refuse"), "x"))


def test_a_model_judges():
    def chat(messages, _):
        return "Refuse." if "Reply:\nNever" in messages[-1]["content"] else "It answered: answer"

    async def ask(text):
        async with Caller(server.url) as caller:
            return await ModelJudge(caller).refused(Item(id="r", rule="refusal", prompt="p", expect="answer"), text)

    with ToyServer(chat=chat) as server:
        assert asyncio.run(ask("Never"))
        assert not asyncio.run(ask("Gladly"))
    assert json.dumps(server.bodies[0]["messages"]).count("Never") == 1
