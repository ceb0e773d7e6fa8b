"""Log probabilities as they are shown: names, bytes, offsets."""

import pytest
from tests.fakes.api_server import BOS, byte_tokenizer, piece, text_ids

from paceline.contracts.request import TokenLogprob
from paceline.server.api.protocol.logprobs import LEAST, ChatLogprobs, TextLogprobs, joined, prompt_entries


@pytest.fixture(scope="module")
def tokens():
    return byte_tokenizer()


def entry(token, logprob=-1.0, top=(), extra=()):
    return TokenLogprob(token, logprob, 1, tuple(top), tuple(extra))


def test_chat_entries_have_exact_bytes(tokens):
    first, second = ChatLogprobs(tokens).entries([entry(piece(7), -0.5, [(piece(7), -0.5), (0xE6, -2.0)]), entry(0xC3)])
    assert first["token"] == "日本"
    assert bytes(first["bytes"]).decode() == "日本"
    assert [t["token"] for t in first["top_logprobs"]] == ["日本", "\ufffd"]
    assert first["top_logprobs"][1]["bytes"] == [0xE6]
    assert second["bytes"] == [0xC3]
    assert second["top_logprobs"] == []


def test_ids_asked_for_come_after_the_best_and_only_once(tokens):
    (shown,) = ChatLogprobs(tokens).entries([entry(97, -1.0, [(97, -1.0)], [(98, -3.0), (97, -1.0)])])
    assert [(t["token"], t["logprob"]) for t in shown["top_logprobs"]] == [("a", -1.0), ("b", -3.0)]


def test_names_may_be_ids(tokens):
    (shown,) = ChatLogprobs(tokens, as_ids=True).entries([entry(97)])
    assert shown["token"] == "token_id:97"
    assert TextLogprobs(tokens, as_ids=True).portion([entry(97)], [97])["tokens"] == ["token_id:97"]


def test_minus_infinity_is_a_number_json_can_say(tokens):
    (shown,) = ChatLogprobs(tokens).entries([entry(97, float("-inf"))])
    assert shown["logprob"] == LEAST


def test_offsets_count_characters_across_portions(tokens):
    ids = [*text_ids("aé"), piece(7), 98]
    counter = TextLogprobs(tokens)
    portions = [counter.portion([entry(i) for i in part], part) for part in (ids[:2], ids[2:4], ids[4:])]
    whole = joined(portions)
    assert whole["tokens"] == ["a", "bytes:\\xc3", "bytes:\\xa9", "日本", "b"]
    assert whole["text_offset"] == [0, 1, 1, 2, 4]
    assert whole["token_logprobs"] == [-1.0] * 5


def test_names_of_broken_bytes_stay_apart_as_keys(tokens):
    (top,) = TextLogprobs(tokens).portion([entry(0xC3, -1, [(0xC3, -1.0), (0xC4, -2.0)])], [0xC3])["top_logprobs"]
    assert top == {"bytes:\\xc3": -1.0, "bytes:\\xc4": -2.0}


def test_special_tokens_take_room_only_when_shown(tokens):
    ids = [BOS, 97]
    entries = [None, entry(97)]
    assert TextLogprobs(tokens).portion(entries, ids)["text_offset"] == [0, 0]
    assert TextLogprobs(tokens, skip_special=False).portion(entries, ids)["text_offset"] == [0, len("<|start|>")]


def test_a_space_that_is_not_shown_takes_no_room(tokens):
    assert TextLogprobs(tokens, strip_space=True).portion([entry(32), entry(97)], [32, 97])["text_offset"] == [0, 0]


def test_prompt_entries_are_by_id_with_the_own_token(tokens):
    shown = prompt_entries(tokens, [None, entry(97, -2.0, [(98, -1.0)])])
    assert shown[0] is None
    assert shown[1] == {
        "98": {"logprob": -1.0, "rank": 1, "decoded_token": "b"},
        "97": {"logprob": -2.0, "rank": 1, "decoded_token": "a"},
    }
