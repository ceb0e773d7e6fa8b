"""Chat templates: same text as transformers, limits, and errors that say which message and which line."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest
from tests.pure.text.vocabularies import write_folder

from paceline.errors import ConfigError, ModelError, RequestError
from paceline.text import ChatTemplate, chat_template, template_sandbox
from paceline.text.gguf_vocabulary import templates_from_gguf
from paceline.text.template_limits import MAX_STEPS

FOLDER = Path(__file__).parent / "templates"
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
DAY = datetime(2024, 2, 29)

TURNS = [
    {"role": "user", "content": ' Hi, who is "Zoë" <b>?\n '},
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\nA name: 你好 🤗"},
    {"role": "user", "content": "ok {{ 7 * 7 }}"},
]
SYSTEM = {"role": "system", "content": "Be terse."}
TOOLS = [{"type": "function", "function": {"name": "größe", "parameters": {"type": "object", "properties": {"x": {}}}}}]
CALL = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": {"a": ["<é>"]}}}]}


BIG = "{% set b = 'x' * 4000000 %}"


def shipped(name):
    return ChatTemplate({"default": (FOLDER / f"{name}.jinja").read_text()}, special_tokens=TOKENS, now=lambda: DAY)


def one(source, messages=TURNS, **options):
    return ChatTemplate({"default": source}, special_tokens=TOKENS).render(messages, **options)


@pytest.mark.parametrize("name", ["chatml", "llama3", "qwen", "gemma", "mistral"])
@pytest.mark.parametrize("system", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"add_generation_prompt": False},
        {"tools": TOOLS},
        {"enable_thinking": False, "date_string": "1 Jan 2000"},
    ],
    ids=["plain", "no-prompt", "tools", "variables"],
)
def test_the_text_is_that_of_transformers(name, system, options):
    pytest.importorskip("transformers")
    from transformers.utils.chat_template_utils import render_jinja_template

    source = (FOLDER / f"{name}.jinja").read_text()
    if name == "llama3":
        options = {"date_string": "26 Jul 2024", **options}
    messages = [SYSTEM, *TURNS] if system else TURNS
    expected, _ = render_jinja_template(
        [messages], chat_template=source, **{"add_generation_prompt": True, **TOKENS, **options}
    )
    assert shipped(name).render(messages, **options) == expected[0]


def test_tool_calls_and_results_reach_the_template():
    text = shipped("llama3").render([*TURNS, CALL, {"role": "tool", "content": "42"}], add_generation_prompt=False)
    assert '{"name": "f", "parameters": {"a": ["<é>"]}}<|eot_id|>' in text
    assert text.endswith("<|start_header_id|>ipython<|end_header_id|>\n\n42<|eot_id|>")
    assert "Today: 29 Feb 2024\n" in text


def test_what_users_write_is_never_run():
    assert "ok {{ 7 * 7 }}" in shipped("chatml").render(TURNS)


# Where templates come from


def test_templates_of_a_folder(tmp_path):
    plain = write_folder(tmp_path / "a", tokenizer_config={"chat_template": "A{{ messages[0].content }}"})
    assert ChatTemplate.load(plain).render(TURNS[2:]) == "Aok {{ 7 * 7 }}"
    named = [
        {"name": "default", "template": "D"},
        {"name": "tool_use", "template": "T"},
        {"name": "rag", "template": "R"},
    ]
    several = ChatTemplate.load(write_folder(tmp_path / "b", tokenizer_config={"chat_template": named}))
    assert several.render(TURNS) == "D"
    assert several.render(TURNS, tools=TOOLS) == "T"
    assert ChatTemplate.load(tmp_path / "b", override="rag").render(TURNS) == "R"
    (tmp_path / "b" / "chat_template.jinja").write_text("J", encoding="utf-8")
    (tmp_path / "b" / "additional_chat_templates").mkdir()
    (tmp_path / "b" / "additional_chat_templates" / "extra.jinja").write_text("X", encoding="utf-8")
    files = ChatTemplate.load(tmp_path / "b")
    assert (files.render(TURNS), files.sources["extra"]) == ("J", "X")


def test_a_list_of_templates_that_cannot_be_read_is_a_model_error(tmp_path):
    with pytest.raises(ModelError, match="without name or template"):
        ChatTemplate.load(write_folder(tmp_path, tokenizer_config={"chat_template": [{"name": "default"}]}))


def test_templates_of_gguf_metadata():
    metadata = {"tokenizer.chat_template": "D", "tokenizer.chat_template.tool_use": "T", "tokenizer.ggml.model": "gpt2"}
    assert templates_from_gguf(metadata) == {"default": "D", "tool_use": "T"}


def test_a_template_given_by_the_user_goes_before_the_models(tmp_path):
    folder = write_folder(tmp_path / "m", tokenizer_config={"chat_template": "own"})
    (tmp_path / "mine.jinja").write_text("from a file", encoding="utf-8")
    assert ChatTemplate.load(folder, override=tmp_path / "mine.jinja").render(TURNS) == "from a file"
    assert ChatTemplate.load(folder, override="{{ bos_token }}text", special_tokens=TOKENS).render(TURNS) == "<s>text"
    with pytest.raises(ConfigError, match=r"nowhere\.jinja"):
        ChatTemplate.load(folder, override="nowhere.jinja")


def test_a_base_model_says_so_and_names_the_option(tmp_path):
    template = ChatTemplate.load(write_folder(tmp_path, tokenizer_config={}))
    assert not template.available
    with pytest.raises(RequestError, match=r"base model.*--chat-template"):
        template.render(TURNS)
    with pytest.raises(ConfigError, match=r"base model.*--chat-template"):
        template.require()
    shipped("chatml").require()


def test_several_templates_without_a_default_need_a_choice():
    with pytest.raises(RequestError, match="a, b"):
        ChatTemplate({"a": "A", "b": "B"}).render(TURNS)
    assert ChatTemplate({"only": "O"}).render(TURNS) == "O"


# What goes wrong


def test_a_syntax_error_is_found_at_start_with_its_line(tmp_path):
    with pytest.raises(ConfigError, match=r"line 2: \{\{ a b \}\}"):
        ChatTemplate.load(write_folder(tmp_path), override="{% if x %}\n{{ a b }}\n{% endif %}")


def test_a_template_that_raises_gives_its_words_the_message_and_the_line():
    with pytest.raises(RequestError, match=r"user and assistant must take turns.*line 11.*messages\[2\]") as caught:
        shipped("gemma").render([SYSTEM, TURNS[0], TURNS[0]])
    assert caught.value.param == "messages[2]"
    with pytest.raises(RequestError, match="Only user and assistant roles") as caught:
        shipped("mistral").render([TURNS[0], {"role": "robot", "content": "x"}])
    assert caught.value.param == "messages[1]"
    with pytest.raises(RequestError, match="no luck") as caught:
        one("{{ raise_exception('no luck') }}")
    assert caught.value.param == "messages"


def test_a_missing_key_is_named_with_its_message():
    with pytest.raises(RequestError, match="'message object' has no attribute 'content'") as caught:
        shipped("chatml").render([TURNS[0], {"role": "assistant", "content": None}])
    assert caught.value.param == "messages[1]"


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(5000) %}{% for j in range(5000) %}x{% endfor %}{% endfor %}",
        "{% for i in range(10**9) %}x{% endfor %}",
        "{{ 'x' * 10**9 }}",
        "{{ 10 ** (10 ** 9) }}",
        "{% set n = namespace(a='x') %}{% for i in range(99) %}{% set n.a = n.a + n.a %}{% endfor %}{{ n.a }}",
        "{% for i in range(90000) %}" + "x" * 99 + "{% endfor %}",
        # text out of text
        BIG + "{{ (b ~ b ~ b ~ b ~ b)|length }}",
        BIG + "{% set t = namespace(a=b) %}{% for i in range(30) %}{% set t.a = t.a ~ t.a %}{% endfor %}",
        BIG + "{% for i in range(99) %}{% set b %}{{ b }}{{ b }}{% endset %}{% set t = b[1:] %}{% endfor %}",
        BIG + "{{ (b.replace('x', 'xxxxxxxxxx'))|length }}",
        BIG + "{{ (b|replace('x', 'xxxxxxxxxx'))|length }}",
        BIG + "{{ (b.join('xxxxxxxxxx'))|length }}",
        BIG + "{{ ('xxxxxxxxxx'|join(b))|length }}",
        BIG + "{{ (([b] * 10)|join)|length }}",
        BIG + "{{ (''.join([b] * 10))|length }}",
        BIG + "{{ (([b] * 10)|tojson)|length }}",
        BIG + "{{ ('{0}{0}{0}{0}{0}'.format(b))|length }}",
        BIG + "{{ ('%(a)s%(a)s%(a)s%(a)s%(a)s' % {'a': b})|length }}",
        BIG + "{% set x %}{% for i in range(99) %}{{ b }}{% endfor %}{% endset %}",
        BIG + "{% macro f() %}{{ b }}{{ b }}{{ b }}{% endmacro %}{{ (f() ~ f())|length }}",
        # widths
        "{{ ('x'.center(10**9))|length }}",
        "{{ ('x'.ljust(10**9))|length }}",
        "{{ ('x'.rjust(10**9))|length }}",
        "{{ ('7'.zfill(10**9))|length }}",
        "{{ ('\\t'.expandtabs(10**9))|length }}",
        "{{ ('x'|center(10**9))|length }}",
        "{{ ('x'|indent(10**9, true))|length }}",
        "{{ ('{:>999999999}'.format(1))|length }}",
        "{{ ('{:>{w}}'.format(1, w=10**9))|length }}",
        "{{ ('{a:>999999999}'.format_map({'a': 1}))|length }}",
        "{{ ('%999999999d' % 1)|length }}",
        "{{ ('%*d' % (10**9, 1))|length }}",
        "{{ ('%999999999d'|format(1))|length }}",
        "{{ ([1]|tojson(indent=10**9))|length }}",
        "{{ ([1]|batch(10**9, 'x')|list)|length }}",
        "{{ ([1]|slice(10**9)|list)|length }}",
        "{{ ((5).to_bytes(10**9))|length }}",
        "{{ ('x'.encode() * 10**9)|length }}",
        "{{ (['x']|map('center', 10**9)|list)|length }}",
    ],
)
def test_a_template_that_runs_away_is_stopped(source):
    with pytest.raises(RequestError, match="past its limits"):
        one(source)


@pytest.mark.parametrize(
    "source",
    [
        "{% set r = range(400) %}{% for i in r %}{% for j in r %}{% endfor %}{% endfor %}",
        "{% set r = range(400)|list %}{% for i in r %}{% for j in r if j %}{% endfor %}{% endfor %}",
        "{% set r = range(400) %}{% for i in r %}{% for j in r %}{{ loop.last or '' }}{% endfor %}{% endfor %}",
        "{% set r = range(40)|list %}{% for i in [r] * 60 recursive %}{{ loop([r] * 60) if loop.depth < 9 }}"
        "{% endfor %}",
        "{% set r = range(400)|list %}{% for i in r %}{% if 'x' in r %}{% endif %}{% endfor %}",
        "{% set r = range(400)|list %}{% for i in r %}{% if r|sum %}{% endif %}{% endfor %}",
        "{% set r = range(400)|list %}{% for i in r %}{% if i is in(r) %}{% endif %}{% endfor %}",
        "{% set l = namespace(a=[1, 2]) %}{% for i in range(40) %}{% set l.a = [l.a, l.a] %}{% endfor %}{{ l.a }}",
    ],
)
def test_loops_over_what_a_template_keeps_count(source, monkeypatch):
    monkeypatch.setattr(template_sandbox, "MAX_STEPS", 50_000)  # the real limit takes seconds to reach
    with pytest.raises(RequestError, match="past its limits"):
        one(source)


def test_a_template_within_its_limits_is_not_stopped():
    assert len(one("{% for i in range(90000) %}x{% endfor %}")) == 90000
    assert MAX_STEPS > 90000


def test_a_long_chat_of_long_messages_is_within_the_limits():
    turns = [{"role": ("user", "assistant")[i % 2], "content": f"{i} " + "word " * 400} for i in range(1001)]
    for name in ("chatml", "llama3", "qwen", "gemma", "mistral"):
        assert len(shipped(name).render(turns, max_chars=1 << 23)) > 2_000_000
    assert len(shipped("qwen").render([{"role": "user", "content": "x" * (1 << 22)}], max_chars=1 << 23)) > 1 << 22


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (
            "{% for i in [1, 2, 3] %}{{ loop.index }}/{{ loop.length }}{{ ';' if not loop.last }}{% endfor %}",
            "1/3;2/3;3/3",
        ),
        ("{% for i in [1, 2, 3] if i != 2 %}{{ i }}{{ loop.revindex }}{% else %}none{% endfor %}", "1231"),
        ("{% for i in nothing %}{% else %}none{% endfor %}", "none"),
        ("{% for k, v in {'a': 1}.items() %}{{ k ~ '=' ~ v ~ none }}{% endfor %}", "a=1None"),
        ("{% for i in [1, [2, [3]]] recursive %}{{ loop(i) if i is iterable else i }}{% endfor %}", "123"),
        ("{{ [1, 2]|join('-') }} {{ [{'a': 1}, {'a': 2}]|join('+', attribute='a') }}", "1-2 1+2"),
        ("{{ '%s %5.1f' % ('a', 2) }} {{ '%(k)s' % {'k': 1} }} {{ 7 % 4 }}", "a   2.0 1 3"),
        ("{{ '{:>4}|{a[b]}'.format(7, a={'b': 1}) }} {{ '{x}'.format_map({'x': 2}) }}", "   7|1 2"),
        (
            "{{ 'abc'[1:] ~ 'abc'[::-1] }} {{ 'b' in 'abc' }} {{ 1 < 2 < 3 }} {{ 'a' not in {'a': 1} }}",
            "bccba True True False",
        ),
        ("{% macro f(x) %}<{{ x }}{{ caller() }}>{% endmacro %}{% call f(1) %}c{% endcall %}", "<1c>"),
        ("{{ ' a '.strip() }}{{ 'a.b'.split('.')|last }}{{ 'x'.center(3) }}{{ 'aa'.replace('a', 'b', 1) }}", "ab x ba"),
        ("{{ [3, 1]|sort|map('string')|list }}{{ 'a\\nb'|indent(2) }}", "['1', '3']a\n  b"),
        ("{% filter upper %}a{{ 'b' }}{% endfilter %}{% set x | upper %}c{% endset %}{{ x }}", "ABC"),
    ],
)
def test_counting_changes_nothing_a_template_says(source, text):
    assert one(source) == text


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='x') }}",
        "{{ messages.__class__.__mro__ }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ namespace(_x=1) }}",
        "{% set n = namespace() %}{% set n.__init__ = 1 %}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    ],
)
def test_a_template_cannot_leave_its_box(source):
    with pytest.raises(RequestError):
        one(source)


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        ("hello", "messages"),
        ({"role": "user"}, "messages"),
        (["hello"], "messages[0]"),
        ([{"content": "x"}], "messages[0].role"),
        ([TURNS[0], {"role": "", "content": "x"}], "messages[1].role"),
        ([{"role": "user", "content": 3}], "messages[0].content"),
        ([{"role": "user", "content": "\ud83e"}], "messages[0].content"),
        ([{"role": "user", "content": [{"type": "text", "text": "\udc00"}]}], "messages[0].content[0].text"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "messages[0].content[0]"),
        ([{"role": "user", "content": "x", "extra": object()}], "messages"),
    ],
)
def test_malformed_messages_are_refused_with_their_place(messages, param):
    with pytest.raises(RequestError) as caught:
        shipped("chatml").render(messages)
    assert caught.value.param == param


def test_text_parts_are_joined_unless_the_template_handles_parts():
    parts = [{"role": "user", "content": [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]}]
    assert "user\na b<|im_end|>" in shipped("chatml").render(parts)
    assert "user\nab<end_of_turn>" in shipped("gemma").render(parts)  # this template trims each part


def test_the_place_of_a_value_stays_short(monkeypatch: pytest.MonkeyPatch):
    """Else a long name would be copied for each of the values below it."""
    places: list[str] = []
    check_one = chat_template._check_text

    def noted(value: object, where: str) -> None:
        places.append(where)
        check_one(value, where)

    monkeypatch.setattr(chat_template, "_check_text", noted)
    values = {"a" * 5000: ["b", {"c": "d"}]}
    ChatTemplate({"default": "{{ messages[0].role }}"}).render([{"role": "user", "content": "x", "extra": values}])
    assert len(places) == 8
    assert max(map(len, places)) <= 200
