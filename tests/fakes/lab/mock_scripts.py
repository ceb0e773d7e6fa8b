"""Servers that measurements are known to get wrong, as scripts: what the truth is stands beside each."""

from __future__ import annotations

from paceline.contracts.artefact import ChunkKind
from paceline.lab.mock import Fault, Match, Reply, Rule, Script, ScriptChunk, Service


def bundled_tokens() -> Script:
    """8 tokens in 2 chunks, 5 and 3, 90 ms apart: TPOT 30 ms, three ITL of 30 ms, one ICL of 90 ms."""
    chunks = (ScriptChunk(20, text="a b c d e"), ScriptChunk(90, text=" f g h"))
    return Script(reply=Reply(chunks=chunks))


def role_then_empty() -> Script:
    """A role at 10 ms, nothing at 20 ms, text at 200 ms: TTFT 200 ms."""
    chunks = (
        ScriptChunk(kind=ChunkKind.ROLE, at_ms=10),
        ScriptChunk(text="", num_tokens=0, at_ms=20),
        ScriptChunk(text="text", at_ms=200),
    )
    return Script(reply=Reply(chunks=chunks))


def reasoning_then_answer() -> Script:
    """Reasoning at 30 ms, the answer at 90 ms: TTFT 30 ms, time to the first answer 90 ms."""
    chunks = (
        ScriptChunk(kind=ChunkKind.ROLE, at_ms=5),
        ScriptChunk(kind=ChunkKind.REASONING, text="let me see", at_ms=30),
        ScriptChunk(text="it is four", at_ms=90),
    )
    return Script(reply=Reply(chunks=chunks, reasoning_tokens=3))


def tool_call_only() -> Script:
    """A call and no content: TTFT is that of the call's first piece, 25 ms."""
    chunks = (
        ScriptChunk(kind=ChunkKind.ROLE, at_ms=5),
        ScriptChunk(kind=ChunkKind.TOOL, tool="get_weather", text='{"city":', at_ms=25, num_tokens=3),
        ScriptChunk(kind=ChunkKind.TOOL, text=' "Oslo"}', at_ms=45, num_tokens=2),
    )
    return Script(reply=Reply(chunks=chunks, finish_reason="tool_calls"))


def no_token() -> Script:
    """The stream closes without a token: no TTFT at all."""
    return Script(reply=Reply(chunks=(ScriptChunk(10, ChunkKind.ROLE),), fault=Fault(cut_after_chunks=0)))


def zero_output() -> Script:
    """A complete answer of no tokens."""
    return Script(reply=Reply(chunks=(ScriptChunk(10, ChunkKind.ROLE),), completion_tokens=0))


def error_in_stream() -> Script:
    """HTTP 200, three tokens, an error object, [DONE]."""
    chunks = tuple(ScriptChunk(10, text=f" t{i}") for i in range(6))
    return Script(reply=Reply(chunks=chunks, fault=Fault(error_after_chunks=3, error_then_done=True)))


def serial(service_ms: float = 100.0) -> Script:
    """One request at a time, each `service_ms`: a queue that grows is the queue's, not the answer's time."""
    return Script(service=Service(ttft_ms=service_ms, slots=1, num_tokens=1))


def prefix_caching(block_tokens: int = 16) -> Script:
    """Prompts that were there before are found again: 1 ms for each token that was not."""
    return Script(service=Service(prefill_ms_per_token=1.0, prefix_cache=True, block_tokens=block_tokens))


def usage_differs() -> Script:
    """The text has 100 words, usage says 80."""
    chunks = tuple(ScriptChunk(1, text=" word") for _ in range(100))
    return Script(reply=Reply(chunks=chunks, completion_tokens=80))


def refuses_twice() -> Script:
    """503 twice, then answers."""
    return Script(rules=(Rule(times=2, reply=Reply(status=503, message="starting", retry_after_s=1)),))


def never_answers() -> Script:
    return Script(reply=Reply(fault=Fault(never_answer=True)))


def slow(ttft_ms: float = 1000.0) -> Script:
    """Every answer takes so long, any number at once."""
    return Script(service=Service(ttft_ms=ttft_ms, num_tokens=1))


def long_answers() -> Script:
    """One slot, 10 ms a token: a client that leaves gives the slot to the next."""
    return Script(service=Service(ttft_ms=10, tpot_ms=10, slots=1, num_tokens=2000))


def works_on() -> Script:
    """As `long_answers`, but a client that leaves is not noticed: 30 tokens are made to the end."""
    return Script(service=Service(ttft_ms=10, tpot_ms=10, slots=1, num_tokens=30, ignores_close=True))


def one_in_five_fails() -> Script:
    """Every fifth request is refused for good."""
    return Script(
        rules=(Rule(match=Match(every=5), reply=Reply(status=500, message="broken")),),
        service=Service(ttft_ms=5, tpot_ms=1, num_tokens=8),
    )
