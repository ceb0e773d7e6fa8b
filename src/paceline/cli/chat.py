"""`paceline chat`: a conversation in the terminal, or one answer with `--message`; the model is here or at `--url`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer

from paceline.cli import sampling
from paceline.cli.options import EngineConfig, engine_options

if TYPE_CHECKING:
    from paceline.contracts.request import SamplingParams

Messages = list[dict[str, str]]


class Talker(Protocol):
    """Whoever answers: an `LLM`, or a server."""

    def chat_stream(self, messages: Messages, params: SamplingParams, /) -> Iterator[Any]:
        """Pieces of the answer, each with a `text`."""
        ...


HELP = "commands: /new forgets the conversation, /system TEXT sets the system prompt, /exit ends"


@engine_options
def chat(
    message: Annotated[str | None, typer.Option("--message", help="Ask this, print the answer, end.")] = None,
    system: Annotated[str | None, typer.Option("--system", help="System prompt.")] = None,
    url: Annotated[
        str | None, typer.Option("--url", help="Talk to a server there (http://HOST:PORT) instead of loading a model.")
    ] = None,
    api_key: Annotated[str | None, typer.Option("--api-key", help="The server's key.")] = None,
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
    """Talk to a model. Needs one with a chat template, or --chat-template FILE; or a server's --url."""
    params = sampling.params(max_tokens, temperature, top_p, top_k, min_p, repetition_penalty, stop)
    history: Messages = [{"role": "system", "content": system}] if system else []
    if url is not None:
        from paceline.cli.remote import RemoteChat

        with closing(RemoteChat(url, api_key, config.model.model)) as remote:
            talk(remote, history, params, message)
        return
    from paceline.assemble import require_chat_template
    from paceline.cli.progress import loaded

    require_chat_template(config)  # before a model is loaded for nothing
    with loaded(config) as llm:
        talk(llm, history, params, message)


def talk(talker: Talker, history: Messages, params: SamplingParams, message: str | None) -> None:
    """One answer to `message`, or a conversation."""
    if message is not None:
        answer(talker, [*history, {"role": "user", "content": message}], params)
    else:
        print(HELP)
        converse(talker, history, params)


def converse(talker: Talker, history: Messages, params: SamplingParams) -> None:
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
                reply = answer(talker, asked, params)
            except RequestError as error:
                print(f"error: {error}")
                continue
            history[:] = [*asked, {"role": "assistant", "content": reply}]


def answer(talker: Talker, messages: Messages, params: SamplingParams) -> str:
    """Print the answer as it comes; returns it whole. Reasoning that a server tells apart stands before it, between
    lines that say so, and is not part of it."""
    parts: list[str] = []
    thinks = False
    for delta in talker.chat_stream(messages, params):
        thought = getattr(delta, "thought", "")
        if thought:
            print("" if thinks else "[reasoning]\n", end="")
            thinks = True
            print(thought, end="", flush=True)
        if delta.text:
            print("\n[answer]\n" if thinks else "", end="")
            thinks = False
            print(delta.text, end="", flush=True)
            parts.append(delta.text)
    print()
    return "".join(parts)
