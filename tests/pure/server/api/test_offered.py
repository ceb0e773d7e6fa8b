"""What keeps required calls within an answer."""

from __future__ import annotations

import pytest
from tests.fakes.api_server import byte_tokenizer
from tests.pure.server.api.tool_kit import WEATHER

from paceline.server.api.offered import Limits, as_told, limits_within
from paceline.text import ChatTemplate, TextPipeline
from paceline.text.dialect import dialect_of
from paceline.text.tools import Bounds


@pytest.mark.parametrize(
    ("budget", "parallel", "limits"),
    [
        (1, True, Limits(1, Bounds(16, 8))),
        (100, True, Limits(1, Bounds(64, 8))),
        (512, True, Limits(4, Bounds(256, 8))),
        (512, False, Limits(1, Bounds(512, 16))),
        (1023, True, Limits(4, Bounds(256, 8))),
        (8191, True, Limits(16, Bounds(2048, 64))),
        (8192, True, Limits(16, None)),
        (100_000, False, Limits(1, None)),
    ],
)
def test_calls_and_strings_fit_the_answer(budget: int, parallel: bool, limits: Limits):
    assert limits_within(budget, parallel=parallel) == limits


def test_a_conversation_with_tools_fits_templates_that_take_turns_and_refuse_a_system_message():
    template = ChatTemplate(
        {
            "default": "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
            "{{ raise_exception('take turns, without system') }}{% endif %}{{ m.content }}|{% endfor %}"
        }
    )
    dialect = dialect_of(TextPipeline(byte_tokenizer(), template), tools=True)
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": {"city": "Bern"}}}
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "sunny"},
        {"role": "user", "content": [{"type": "text", "text": "And?"}]},
    ]
    told, options = as_told(messages, {}, [WEATHER], dialect)
    text = template.render(told, **options)
    assert text.startswith("You can call tools.")
    assert text.endswith("sunny\n</tool_response>\nAnd?|")
