"""`paceline chat`: a conversation in the terminal, or one answer with `--message`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from paceline.cli import sampling
from paceline.cli.options import EngineConfig, engine_options

if TYPE_CHECKING:
    from paceline.contracts.request import SamplingParams
    from paceline.llm import LLM

Messages = list[dict[str, str]]
HELP = "commands: /new forgets the conversation, /system TEXT sets the system prompt, /exit ends"


@engine_options
def chat(
    message: Annotated[str | None, typer.Option("--message", help="Ask this, print the answer, end.")] = None,
    system: Annotated[str | None, typer.Option("--system", help="System prompt.")] = None,
    *,
    max_tokens: sampling.MaxTokens = 512,
    temperature: sampling.Temperature = 0.2,
    top_p: sampling.TopP = 0.9,
    top_k: sampling.TopK = 0,
    min_p: sampling.MinP = 0.0,
    repetition_penalty: sampling.RepetitionPenalty = 1.1,
    stop: sampling.Stop = None,
    config: EngineConfig,
) -> None:
    """Talk to a model. Needs one with a chat template, or --chat-template FILE."""
    from paceline.cli.progress import loaded

    params = sampling.params(max_tokens, temperature, top_p, top_k, min_p, repetition_penalty, stop)
    with loaded(config) as llm:
        history: Messages = [{"role": "system", "content": system}] if system else []
        llm.require_chat_template()
        if message is not None:
            answer(llm, [*history, {"role": "user", "content": message}], params)
            return
        print(HELP)
        converse(llm, history, params)


def converse(llm: LLM, history: Messages, params: SamplingParams) -> None:
    """Read lines until /exit or end of input; a request that is refused leaves the conversation as it was."""
    from paceline.errors import RequestError

    while True:
        try:
            line = input("> ").strip()
        except EOFError:
            print()
            return
        if line == "/exit":
            return
        if line == "/new":
            history[:] = [m for m in history if m["role"] == "system"]
        elif line.startswith("/system "):
            history[:] = [{"role": "system", "content": line.removeprefix("/system ")}]
        elif line.startswith("/"):
            print(HELP)
        elif line:
            asked = [*history, {"role": "user", "content": line}]
            try:
                reply = answer(llm, asked, params)
            except RequestError as error:
                print(f"error: {error}")
                continue
            history[:] = [*asked, {"role": "assistant", "content": reply}]


def answer(llm: LLM, messages: Messages, params: SamplingParams) -> str:
    """Print the answer as it comes; returns it whole."""
    parts: list[str] = []
    for delta in llm.chat_stream(messages, params):
        print(delta.text, end="", flush=True)
        parts.append(delta.text)
    print()
    return "".join(parts)
