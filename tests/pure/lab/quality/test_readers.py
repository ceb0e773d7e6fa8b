"""Sets: the shipped ones are sound, public forms are read, wrong files are told apart."""

import json

import pytest

from paceline.errors import ConfigError
from paceline.lab.quality import load_set
from paceline.lab.quality.rules import TEXT_RULES, matches


def write(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_the_shipped_set_is_varied_and_each_answer_satisfies_its_own_rule():
    basics = load_set("basics")
    assert len(basics.items) >= 60
    assert len({item.group for item in basics.items}) >= 6
    assert len({item.rule for item in basics.items}) >= 5
    prompts = [item.prompt for item in basics.items]
    assert len(set(prompts)) == len(prompts)
    for item in basics.items:
        if item.rule == "regex":
            continue
        assert item.rule in TEXT_RULES
        answer = item.answer[0] if isinstance(item.answer, list) and item.rule != "json" else item.answer
        reply = json.dumps(answer) if item.rule == "json" else str(answer)
        assert matches(item.rule, reply, item.answer), item.id
        assert not matches(item.rule, "quite another thing", item.answer), item.id


def test_the_shipped_refusals_are_two_halves():
    refusals = load_set("refusals")
    kinds = [item.expect for item in refusals.items]
    assert kinds.count("refuse") >= 30
    assert kinds.count("answer") >= 30


def test_a_sample_is_drawn_once_and_says_so():
    first, again, other = (load_set("basics", limit=10, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first.sha256 != other.sha256
    assert len(first.items) == 10
    assert "sample of 10" in first.notes[0]


def test_gsm8k_rows_are_read(tmp_path):
    path = write(tmp_path / "g.jsonl", {"question": "2 and 2?", "answer": "Well.\n#### 4"})
    (item,) = load_set(path).items
    assert (item.rule, item.answer) == ("number", "4")
    assert matches(item.rule, "It is\n#### 4", item.answer)


def test_ifeval_rows_are_read_and_those_without_a_check_are_counted(tmp_path):
    rows = [
        {"key": 1, "prompt": "p", "instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]},
        {
            "key": 2,
            "prompt": "q",
            "instruction_id_list": ["language:response_language"],
            "kwargs": [{"language": "fr"}],
        },
    ]
    found = load_set(write(tmp_path / "i.jsonl", *rows))
    assert [item.id for item in found.items] == ["1"]
    assert found.num_left_out == 1
    assert "1 of 2" in found.notes[0]


def test_bfcl_rows_become_tools_of_the_api(tmp_path):
    function = {"name": "math.area", "description": "d", "parameters": {"type": "dict", "properties": {
        "type": {"type": "float"}, "xs": {"type": "tuple", "items": {"type": "any"}}},
        "required": ["type"]}}  # fmt: skip
    row = {"id": "b_0", "question": [[{"role": "user", "content": "?"}]], "function": [function]}
    path = write(tmp_path / "b.jsonl", row)
    assert load_set(path).items[0].rule == "tool_call"
    write(tmp_path / "b_answers.jsonl", {"id": "b_0", "ground_truth": [{"math.area": {"type": [2.0]}}]})
    (item,) = load_set(path).items
    assert item.rule == "calls"
    assert item.answer == [{"math_area": {"type": [2.0]}}]
    assert item.tools == [{"type": "function", "function": {"name": "math_area", "description": "d", "parameters": {
        "type": "object", "required": ["type"],
        "properties": {"type": {"type": "number"}, "xs": {"type": "array", "items": {}}}}}}]  # fmt: skip
    assert load_set(write(tmp_path / "my_irrelevance.jsonl", row)).items[0].rule == "no_call"


def test_a_set_of_schemas_asks_for_json(tmp_path):
    (item,) = load_set(write(tmp_path / "s.jsonl", {"id": "s", "schema": {"type": "object"}})).items
    assert item.rule == "schema"
    assert item.body["response_format"]["json_schema"]["schema"] == {"type": "object"}


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([{"id": "a", "rule": "exakt", "prompt": "p", "answer": "a"}], "no rule"),
        ([{"id": "a", "rule": "exact", "prompt": "p"}], "lacks what it compares"),
        ([{"id": "a", "rule": "exact", "answer": "a"}], "prompt or messages"),
        ([{"id": "a", "rule": "exact", "prompt": "p", "answer": "a", "max_toknes": 3}], "max_toknes"),
        ([{"id": "a", "rule": "exact", "prompt": "p", "answer": "a"}] * 2, "same id"),
        ([{"id": "a", "rule": "refusal", "prompt": "p", "expect": "deny"}], "deny"),
        ([{"task_id": "h", "prompt": "def f", "entry_point": "f", "test": "t"}], "runs generated code"),
        ([{"this": 1}], "unknown form"),
    ],
)
def test_a_wrong_set_is_refused(tmp_path, rows, words):
    with pytest.raises(ConfigError, match=words):
        load_set(write(tmp_path / "w.jsonl", *rows))


def test_a_missing_or_broken_file_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="no such quality set"):
        load_set(tmp_path / "none.jsonl")
    (tmp_path / "t.jsonl").write_text('{"id": 1}\n{oops\n')
    with pytest.raises(ConfigError, match="line 2"):
        load_set(tmp_path / "t.jsonl")
    (tmp_path / "e.jsonl").write_text("\n")
    with pytest.raises(ConfigError, match="empty"):
        load_set(tmp_path / "e.jsonl")
