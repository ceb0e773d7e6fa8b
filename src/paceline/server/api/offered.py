"""Tools and reasoning of a chat request: what the model is shown, what its answer is read for, what it must be.

A model whose template shows no tools is told of them in the system message (the user's first where the template refuses
one), and its earlier calls are written as text.
With `tool_choice` none the tools are kept out of the prompt, and the answer is read for none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from paceline.errors import RequestError
from paceline.server.api.protocol import ChatRequest
from paceline.server.api.protocol.structured import StructuredOutput
from paceline.server.api.protocol.tools import Offer, tool_spec
from paceline.text.dialect import Dialect, dialect_of
from paceline.text.grammar.spec import encode_spec
from paceline.text.reading import Reading
from paceline.text.tools import DEFAULT_FORMAT, Bounds, call_grammar, with_calls_as_text, with_tools_told
from paceline.text.tools.grammar import MAX_PARALLEL_CALLS, tool_lines

if TYPE_CHECKING:
    import numpy as np

    from paceline.server.api.protocol import TokenizeRequest
    from paceline.server.state import ServerState
    from paceline.text import TextTokenizer
    from paceline.text.reasoning import ReasoningFormat

TAIL_TOKENS = 48  # of a prompt, in which an opening marker of reasoning is looked for
LONG_ANSWER = 8192  # tokens; arguments of answers that may be so long are not bounded
TOKENS_OF_CALL = 128  # a plain call takes fewer


def dialect_for(state: ServerState, *, tools: bool) -> Dialect:
    """The model's, unless the operator said otherwise. Raises RequestError for tools whose calls could not be read."""
    settings = state.settings
    dialect = dialect_of(
        state.pipeline, tools=tools, calls=settings.tool_call_parser, reasoning=settings.reasoning_parser
    )
    if tools and dialect.format is None:
        raise RequestError(
            "this model writes tool calls in a format of its own, which the server does not read",
            param="tools",
            fix="leave tools out; if its format is known after all, start the server with --tool-call-parser NAME",
        )
    return dialect


def tools_in_prompt(body: ChatRequest | TokenizeRequest) -> list[dict[str, Any]]:
    """Those that the model is shown. Raises RequestError as `offer_of`."""
    if isinstance(body, ChatRequest):
        offer = body.offer()
        return [] if offer is None else offer.plain
    return body.tools or []


def as_told(
    messages: Sequence[Mapping[str, Any]],
    options: Mapping[str, Any],
    tools: list[dict[str, Any]],
    dialect: Dialect,
) -> tuple[Sequence[Mapping[str, Any]], Mapping[str, Any]]:
    """Messages and options as the model's template takes them. Raises RequestError."""
    format = dialect.format or DEFAULT_FORMAT
    if not dialect.shows_calls:
        messages = with_calls_as_text(messages, format)
    if tools and dialect.shows_tools:
        return messages, {**options, "tools": tools}
    if tools:
        specs = [tool_spec(tool) for tool in tools]
        messages = with_tools_told(messages, format, specs, takes_system=dialect.takes_system)
    return messages, options


def reading_of(state: ServerState, body: ChatRequest, ids: np.ndarray, *, constrained: bool) -> Reading | None:
    """What to look for in the answers to a prompt; None when they are text alone. `constrained`: by a grammar of the
    client's, which leaves no room for reasoning."""
    offer = body.offer()
    dialect = dialect_for(state, tools=offer is not None)
    reasoning, inside = dialect.reasoning, False
    if constrained:
        reasoning = None
    if reasoning is not None:
        reasoning, inside = _opened(reasoning, body, state.pipeline.tokenizer, ids)
    if offer is None and reasoning is None:
        return None
    return Reading(
        reasoning=reasoning,
        inside=inside,
        format=None if offer is None else dialect.format,
        tools=() if offer is None else offer.tools,
        parallel=offer is None or offer.parallel,
        show_reasoning=body.include_reasoning is not False,
    )


def _opened(
    reasoning: ReasoningFormat, body: ChatRequest, tokenizer: TextTokenizer, ids: np.ndarray
) -> tuple[ReasoningFormat | None, bool]:
    """Is the end of the prompt within reasoning? An answer that goes on with a text has none of its own."""
    if not body.continue_final_message:
        tail = tokenizer.decode(ids[-TAIL_TOKENS:].tolist(), skip_special=False)
        return reasoning, reasoning.is_open(tail)
    content = body.messages[-1].get("content") or ""
    text = content if isinstance(content, str) else "".join(part["text"] for part in content)
    inside = text.rfind(reasoning.begin) > text.rfind(reasoning.end)
    return (reasoning, True) if inside else (None, False)


def client_grammar(body: ChatRequest) -> StructuredOutput | None:
    """The one that the client asks for. Raises RequestError when the answer may be calls as well."""
    wanted = body.structured_output()
    if wanted is not None and body.offer() is not None:
        raise RequestError(
            "an answer that keeps to a grammar from its first letter cannot hold tool calls",
            param=wanted.param,
            fix="leave it or tools out, or set tool_choice to none",
        )
    return wanted


async def calls_grammar(state: ServerState, offer: Offer, reading: Reading, budget: int) -> StructuredOutput:
    """That the answer is calls. `budget`: tokens it may have. Raises RequestError."""
    tokenizer = state.pipeline.tokenizer
    special = {tokenizer.added_text[index]: index for index in tokenizer.special_ids}
    limits = limits_within(budget, parallel=offer.parallel)
    data, places = await state.engine.text(_calls_grammar, offer, reading, special, limits)
    return StructuredOutput(data, "tools", places)


@dataclass(frozen=True)
class Limits:
    """What keeps required calls within the tokens that an answer may have, for a model that does not stop by itself."""

    max_calls: int
    bounds: Bounds | None  # of strings and lists that have none of their own


def limits_within(budget: int, *, parallel: bool) -> Limits:
    """A call for every 128 tokens of `budget`, and strings of as many characters as it has tokens (about a quarter of
    it; half of that where there may be several calls). Made of powers of two, so that few grammars serve all."""
    size = 1 << max(0, budget.bit_length() - 1)
    max_calls = max(1, min(MAX_PARALLEL_CALLS, size // TOKENS_OF_CALL)) if parallel else 1
    if budget >= LONG_ANSWER:
        return Limits(max_calls, None)
    chars = max(16, size if max_calls == 1 else size // 2)
    return Limits(max_calls, Bounds(max_string_chars=chars, max_items=max(8, chars // 32)))


def _calls_grammar(
    offer: Offer, reading: Reading, special_ids: dict[str, int], limits: Limits
) -> tuple[bytes, tuple[str, ...]]:
    """In the text thread. The grammar, and which field each of its lines comes from."""
    assert reading.format is not None
    spec = call_grammar(
        reading.format,
        offer.tools,
        offer.name,
        parallel=offer.parallel,
        special_ids=special_ids,
        reasoning=reading.reasoning,
        inside=reading.inside,
        max_calls=limits.max_calls,
        bounds=limits.bounds,
    )
    try:
        data = encode_spec(msgspec.structs.replace(spec, finish=True))
    except RequestError as error:
        raise RequestError(error.message, param="tools", seen=error.seen, expected=error.expected) from None
    return data, tuple("" if at is None else f"tools[{at}].function.parameters" for at in tool_lines(spec))


def dialect_line(state: ServerState) -> str:
    """How the model's calls and reasoning are read, for an operator."""
    settings = state.settings
    dialect = dialect_of(
        state.pipeline, tools=True, calls=settings.tool_call_parser, reasoning=settings.reasoning_parser
    )
    known = f"in the format {dialect.format}" if dialect.format else "in a format that is not known"
    told = "its template shows it the tools" if dialect.shows_tools else "a system message tells it of the tools"
    thinks = f", reasoning between {dialect.reasoning.begin} and {dialect.reasoning.end}" if dialect.reasoning else ""
    return f"tool calls {known}: {told}{thinks}"
