"""How one model writes tool calls and reasoning, as far as its template and vocabulary tell.

dialect = dialect_of(pipeline, tools=True)
dialect.format, dialect.reasoning          -> for `reading.Reading`
dialect.shows_tools, dialect.shows_calls   -> whether prompts need help: `tools.told`, `tools.system_block`
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec

from paceline.errors import ConfigError, RequestError
from paceline.text.reasoning import ReasoningFormat, detect_reasoning, get_reasoning
from paceline.text.tools import DEFAULT_FORMAT, detect_format, get_format, takes_tools

if TYPE_CHECKING:
    from paceline.text.chat_template import ChatTemplate
    from paceline.text.pipeline import TextPipeline
    from paceline.text.tokenizer import TextTokenizer

AUTO, NONE = "auto", "none"


class Dialect(msgspec.Struct, frozen=True):
    """What is known of a model before it says anything."""

    format: str | None  # of calls; None: the template shows tools, and the model answers in a format of its own
    reasoning: ReasoningFormat | None
    shows_tools: bool  # the template shows the model the tools it is given
    shows_calls: bool  # and the calls of earlier turns
    takes_system: bool = True  # False: it refuses a system message. Only known where tools have to be told in one


@lru_cache(maxsize=8)
def dialect_of(pipeline: TextPipeline, *, tools: bool = False, calls: str = AUTO, reasoning: str = AUTO) -> Dialect:
    """The dialect of a model in requests with `tools`, or without: they may have templates of their own. `calls` is the
    name of a format, `reasoning` that of markers or "none"; "auto" asks the template. Raises ConfigError for a name
    that does not exist."""
    source = pipeline.template.source(tools=tools)
    shows_tools = takes_tools(source)
    found: str | None
    if calls != AUTO:
        found = get_format(calls).name
    else:
        found = detect_format(source, _Entries(pipeline.tokenizer)) or (None if shows_tools else DEFAULT_FORMAT)
    markers = None
    if reasoning != NONE:
        markers = detect_reasoning(source) if reasoning == AUTO else get_reasoning(reasoning)
    takes_system = not tools or shows_tools or source is None or _takes_system(pipeline.template)
    return Dialect(found, markers, shows_tools, "tool_calls" in (source or ""), takes_system)


def _takes_system(template: ChatTemplate) -> bool:
    """Tried out: the words with which templates refuse differ."""
    try:
        template.render([{"role": "system", "content": "a"}, {"role": "user", "content": "b"}])
    except RequestError:
        return False
    except ConfigError:  # it is no template: said when somebody writes a message
        return True
    return True


class _Entries:
    """The vocabulary as a container of texts."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer

    def __contains__(self, text: object) -> bool:
        return isinstance(text, str) and self._tokenizer.token_id(text) is not None
