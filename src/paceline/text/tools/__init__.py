"""Tool calls: text of an answer to calls, while it comes; calls to text; grammars that make an answer be calls.

    format = detect_format(template, vocabulary) or DEFAULT_FORMAT
    parser = make_parser(format, tools)
    for text in deltas: events += parser.feed(text)         -> Text, CallStarted, ArgumentsDelta, CallEnded
    events += parser.finish()
    collect(events)                                         -> text and calls, for an answer that is not streamed
    call_grammar(format, tools, parallel=True)              -> a GrammarSpec under which an answer is calls

Laws: events do not depend on how the text was cut; text outside of calls comes out exactly; what may still become a
marker is held back, and nothing more; the arguments of a complete call are JSON. What looks like a call and is none is
text. `formats` lists the formats, the parsers say how strict they are. May import contracts, errors and `text.grammar`.
"""

from paceline.text.tools.events import (
    ArgumentsDelta,
    CallEnded,
    CallStarted,
    Event,
    Parsed,
    Text,
    Tidied,
    ToolCall,
    ToolParser,
    ToolSpec,
    collect,
)
from paceline.text.tools.formats import (
    DEFAULT_FORMAT,
    FORMATS,
    ToolFormat,
    detect_format,
    get_format,
    make_parser,
    takes_tools,
)
from paceline.text.tools.grammar import call_grammar
from paceline.text.tools.history import with_calls_as_text, with_tools_told
from paceline.text.tools.schemas import Bounds, arguments_schema
from paceline.text.tools.writing import serialise, system_block

__all__ = [
    "DEFAULT_FORMAT",
    "FORMATS",
    "ArgumentsDelta",
    "Bounds",
    "CallEnded",
    "CallStarted",
    "Event",
    "Parsed",
    "Text",
    "Tidied",
    "ToolCall",
    "ToolFormat",
    "ToolParser",
    "ToolSpec",
    "arguments_schema",
    "call_grammar",
    "collect",
    "detect_format",
    "get_format",
    "make_parser",
    "serialise",
    "system_block",
    "takes_tools",
    "with_calls_as_text",
    "with_tools_told",
]
