"""The demo's clients: every call at its time through the stock `openai` client, streamed, timed where it arrives."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from paceline.contracts.slo import Outcome, Timeline
from paceline.errors import ConfigError

if TYPE_CHECKING:
    from paceline.cli.demo_load import Job


def require_openai() -> None:
    """Raise ConfigError where the client is missing."""
    try:
        import openai  # noqa: F401
    except ImportError:
        raise ConfigError(
            "the demo's client is not installed",
            seen="no module openai",
            fix="pip install 'paceline[demo]' (make demo does it)",
        ) from None


def drive(url: str, model: str, jobs: Sequence[Job]) -> dict[int, list[Timeline]]:
    """Timelines by job, one per choice, on the client's clock: `planned` is when the schedule wanted the call sent.
    A call that fails shows in its outcome."""
    return asyncio.run(_drive(url, model, jobs))


async def _drive(url: str, model: str, jobs: Sequence[Job]) -> dict[int, list[Timeline]]:
    from openai import AsyncOpenAI

    start = time.monotonic()
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=600.0) as client:
        calls = [_call(client, model, job, start + job.at_s) for job in jobs]
        return dict(enumerate(await asyncio.gather(*calls)))


async def _call(client: Any, model: str, job: Job, planned: float) -> list[Timeline]:
    import openai

    await asyncio.sleep(max(0.0, planned - time.monotonic()))
    lines = [Timeline(planned=planned, arrival=time.monotonic()) for _ in range(job.n)]
    silent = [0] * job.n  # tokens that came without text: they count with the next text
    try:
        stream = await client.chat.completions.create(
            model=model,
            messages=list(job.messages),
            max_tokens=job.max_tokens,
            temperature=job.temperature,
            n=job.n,
            stream=True,
        )
        async with stream:
            async for chunk in stream:
                for choice in chunk.choices:
                    line = lines[choice.index]
                    tokens = silent[choice.index] + (chunk.model_extra or {})["paceline"]["num_tokens"]
                    if tokens and (choice.delta.content or (choice.finish_reason and line.chunks)):
                        line.chunks.append((time.monotonic(), tokens))
                        tokens = 0
                    silent[choice.index] = tokens
                    if choice.finish_reason:
                        line.end = time.monotonic()
                if job.cancel_after is not None and lines[0].num_tokens >= job.cancel_after:
                    lines[0].outcome, lines[0].end = Outcome.CLIENT_CANCEL, time.monotonic()
                    break
    except openai.APIStatusError as error:
        _fail(job, lines, Outcome.HTTP_ERROR, error)
    except openai.APIError as error:
        _fail(job, lines, Outcome.STREAM_ERROR, error)
    for line in lines:
        if line.end != line.end:  # no end came
            line.end, line.outcome = time.monotonic(), Outcome.TRUNCATED
    return lines


def _fail(job: Job, lines: Sequence[Timeline], outcome: Outcome, error: Exception) -> None:
    print(f"a call ({job.kind}) failed: {error}", file=sys.stderr, flush=True)
    for line in lines:
        line.outcome, line.end = outcome, time.monotonic()


def answer(url: str, model: str, question: str, max_tokens: int) -> str:
    """One chat answer, printed as it comes."""
    from openai import OpenAI

    parts: list[str] = []
    with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        stream = client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": question}],
            max_tokens=max_tokens,
            temperature=0.0,
            stream=True,
        )
        for chunk in stream:
            text = chunk.choices[0].delta.content or "" if chunk.choices else ""
            print(text, end="", flush=True)
            parts.append(text)
    print()
    return "".join(parts).strip()
