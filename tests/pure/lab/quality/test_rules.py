"""Match rules, calls and instructions against replies that small models really give."""

import pytest

from paceline.lab.quality.calls import same_calls
from paceline.lab.quality.instructions import CHECKS, follows
from paceline.lab.quality.rules import chosen_letter, last_number, matches


@pytest.mark.parametrize(
    ("rule", "text", "answer", "right"),
    [
        ("exact", " Lisbon. ", "lisbon", True),
        ("exact", "It is Lisbon", "Lisbon", False),
        ("exact", "**went**", "went", True),
        ("first", "Yes.\nBecause it is so.", "yes", True),
        ("contains", "The capital is Lisbon, of course.", ["Lisboa", "Lisbon"], True),
        ("contains", "Lisbonne", "Lisbon", False),
        ("contains", "carbon\n dioxide", "carbon dioxide", True),
        ("number", "So 5 + 7 = 12.", "12", True),
        ("number", "The total is $1,250.00", "1250", True),
        ("number", "3 + 4\n#### 42\nThanks for asking, 7 times", "42", True),  # what follows the mark
        ("number", "First 3.\n#### 18", "18", True),
        ("number", "minus -4", "-4", True),
        ("number", "no number here", "4", False),
        ("number", "0.3333", "0.3333333", False),
        ("choice", "B", "B", True),
        ("choice", "(c)", "C", True),
        ("choice", "The answer is D, since it is so.", "D", True),
        ("choice", "I think that A) fits", "A", True),
        ("choice", "I do not know", "I", False),
        ("regex", "LANTERN", "^\\W*LANTERN\\W*$", True),
        ("json", '{"cats": 3, "name": "Bob"}', {"name": "Bob", "cats": 3}, True),
        ("json", '["blue", "red"]', ["red", "blue"], False),
    ],
)
def test_a_rule_decides(rule, text, answer, right):
    assert matches(rule, text, answer) is right


def test_parts_of_the_rules():
    assert str(last_number("a 1,234.5 b")) == "1234.5"
    assert last_number("none") is None
    assert chosen_letter("Hmm") is None
    assert chosen_letter("answer: (b)") == "B"


def call(name, **arguments):
    import json

    return {"function": {"name": name, "arguments": json.dumps(arguments)}}


def test_calls_are_compared_with_what_is_accepted():
    wanted = [{"area": {"base": [10], "height": [5], "unit": ["cm", ""]}}]
    assert same_calls([call("area", base=10, height=5)], wanted)
    assert same_calls([call("area", base=10.0, height=5, unit="CM")], wanted)
    assert not same_calls([call("area", base=10)], wanted)  # height may not be left out
    assert not same_calls([call("area", base=10, height=5, depth=1)], wanted)
    assert not same_calls([call("area", base=True, height=5)], wanted)
    assert not same_calls([], wanted)
    both = [{"f": {"x": [1]}}, {"f": {"x": [2]}}]
    assert same_calls([call("f", x=2), call("f", x=1)], both)  # in any order
    assert not same_calls([call("f", x=2), call("f", x=2)], both)  # each of them once
    nested = [{"f": {"at": [{"city": ["Oslo"], "zip": ["", "1"]}], "days": [[1, 2]]}}]
    assert same_calls([call("f", at={"city": "oslo"}, days=[1, 2])], nested)


INSTRUCTIONS = [
    ("punctuation:no_comma", {}, "no commas here", "one, two"),
    ("length_constraints:number_words", {"relation": "at least", "num_words": 3}, "one two three", "one two"),
    ("length_constraints:number_words", {"relation": "less than", "num_words": 3}, "one two", "one two three"),
    ("length_constraints:number_sentences", {"relation": "at least", "num_sentences": 2}, "One. Two!", "Only one."),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, "One.\n***\nTwo.", "One."),
    ("length_constraints:nth_paragraph_first_word", {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "so"},
     "First.\n\nSo it goes.", "So.\n\nFirst."),
    ("keywords:existence", {"keywords": ["red", "blue"]}, "Red and blue", "reddish blue"),
    ("keywords:forbidden_words", {"forbidden_words": ["red"]}, "reddish", "a red one"),
    ("keywords:frequency", {"keyword": "sea", "frequency": 2, "relation": "at least"}, "Sea, sea", "sea seal"),
    ("keywords:letter_frequency", {"letter": "e", "let_frequency": 2, "let_relation": "less than"}, "be", "bee"),
    ("detectable_format:number_highlighted_sections", {"num_highlights": 2}, "*a b* and **c**", "*a b* and * c *"),
    ("detectable_format:title", {}, "<<A title>>\ntext", "<A title>"),
    ("detectable_format:number_bullet_lists", {"num_bullets": 2}, "* a\n- b", "* a"),
    ("detectable_format:json_format", {}, '```json\n{"a": 1}\n```', "not json"),
    ("detectable_format:multiple_sections", {"section_spliter": "Section", "num_sections": 2},
     "Section 1 a\nSection 2 b", "Section 1 a"),
    ("detectable_format:constrained_response", {}, "My answer is maybe.", "Perhaps."),
    ("detectable_content:number_placeholders", {"num_placeholders": 2}, "[name] at [place]", "[name]"),
    ("detectable_content:postscript", {"postscript_marker": "P.S."}, "Bye.\nP.S. write soon", "Bye."),
    ("combination:repeat_prompt", {"prompt_to_repeat": "Say hi"}, "say hi\nhi", "hi"),
    ("combination:two_responses", {}, "one ****** two", "one ****** one"),
    ("startend:quotation", {}, '"quoted"', "bare"),
    ("startend:end_checker", {"end_phrase": "That is all."}, "Well. That is all.", "That is all. Or not."),
    ("change_case:english_lowercase", {}, "all low", "Not low"),
    ("change_case:english_capital", {}, "ALL UP", "All up"),
    ("change_case:capital_word_frequency", {"capital_frequency": 2, "capital_relation": "at least"},
     "A BIG one", "one"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "arguments", "good", "bad"), INSTRUCTIONS, ids=[row[0] for row in INSTRUCTIONS])
def test_an_instruction_is_checked(name, arguments, good, bad):
    assert follows(name, good, {**arguments, "not_used": None})
    assert not follows(name, bad, arguments)
    assert not follows(name, " ", arguments)


def test_every_check_has_an_example():
    assert {row[0] for row in INSTRUCTIONS} == set(CHECKS)
